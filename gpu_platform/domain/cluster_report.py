"""The key figures of a cluster over a period: how well GPUs are used, how long jobs wait, what fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from pydantic import BaseModel


class Spread(BaseModel):
    """How values are spread. Seconds, unless the field says otherwise."""

    count: int = 0
    mean: float | None = None
    """None, as the others: there are no values."""
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    longest: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of ``values``. A percentile is always one of the values."""
        if not values:
            return cls()
        ordered = sorted(values)

        def percentile(percent: int) -> float:
            return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]

        mean = math.fsum(ordered) / len(ordered)
        return cls(
            count=len(ordered),
            mean=mean,
            p50=percentile(50),
            p90=percentile(90),
            p99=percentile(99),
            longest=ordered[-1],
        )


class GpuTime(BaseModel):
    """GPU time of the period. A share of a GPU counts as that part of it."""

    gpus: int
    """GPUs that the hosts have now."""
    gpu_hours: float
    """Hours that these GPUs were there: each since its host was registered. Of GPUs that a host had and does not
    report any more, the hours for which attempts held them."""
    allocated_gpu_hours: float
    """Hours that attempts held GPUs, from the reservation to the release."""
    allocation_ratio: float | None = None
    """Allocated over all GPU hours. None: there were no GPUs."""
    busy_gpu_hours: float
    """Mean utilisation times GPU hours within the period, summed over the attempts that have ended and were
    measured."""
    utilization_of_allocated_percent: float | None = None
    """Mean utilisation of the GPUs that these attempts held. None: none was measured."""
    utilization_of_all_percent: float | None = None
    """``busy_gpu_hours`` over ``gpu_hours``. Attempts that still run do not count yet."""
    energy_kwh: float
    """Of attempts that have ended. One that began before the period counts with its part within it."""


class JobFigures(BaseModel):
    """Jobs of the period. An element of an array is a job."""

    submitted: int
    completed: int
    failed: int
    cancelled: int
    completed_per_hour: float
    success_ratio: float | None = None
    """Completed over completed and failed. None: no job ended in one of these ways."""
    retries: int
    """How often an attempt failed, or could not begin on its GPUs, and its job went back to the queue."""
    preemptions: int
    wait_s: Spread
    """From the entry into the queue until the ranks ran, of starts in the period. A retry keeps its place in the queue
    and is not counted; a preempted job waits again."""
    completion_s: Spread
    """From the submission to the end, of completed jobs."""
    failures: dict[str, int]
    """Failed jobs by the kind of their failure."""


class FailureFigures(BaseModel):
    """Faults of GPUs and losses of hosts."""

    gpu_faults: int
    """Faults of hardware: those that a program caused, or that are only watched, do not count."""
    hosts_lost: int


class HostFigures(BaseModel):
    """One host in the period."""

    host: str
    gpus: int
    host_hours: float
    """Hours since it was registered, within the period."""
    allocated_gpu_hours: float
    allocation_ratio: float | None = None
    gpu_faults: int
    losses: int
    mtbf_h: float | None = None
    """Host hours per GPU fault or loss. None: there was neither."""


class ModelFigures(BaseModel):
    """All GPUs of one model in the period."""

    model: str
    gpus: int
    gpu_hours: float
    gpu_faults: int
    mtbf_h: float | None = None
    """GPU hours per fault, those of GPUs that have gone too. None: there was none."""


class UserFigures(BaseModel):
    """One user in one namespace: what attempts that have ended used within the period, and jobs that ended in it."""

    namespace: str
    user: str
    gpu_hours: float
    energy_kwh: float
    utilization_percent: float | None = None
    """Mean utilisation of the GPUs that were held. None: never measured."""
    completed: int
    failed: int
    cancelled: int
    wait_p50_s: float | None = None


class PeriodPart(BaseModel):
    """An hour or a day of the period, for plots."""

    begin: datetime
    hours: float
    """The last part may be shorter."""
    gpu_hours: float
    allocated_gpu_hours: float
    submitted: int
    completed: int
    failed: int


class ClusterReport(BaseModel):
    """Answer of ``GET /v1/report``: the key figures of ``since`` to before ``until``."""

    since: datetime
    until: datetime
    gpu_time: GpuTime
    jobs: JobFigures
    failures: FailureFigures
    hosts: list[HostFigures]
    gpu_models: list[ModelFigures]
    users: list[UserFigures]
    parts: list[PeriodPart]
    """The period in hours, or in days if it is longer than three days."""
