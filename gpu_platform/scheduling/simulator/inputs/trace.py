"""Jobs of a trace: when each came, what it asked for, how long it ran."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest

WHOLE_GPU_MILLI = 1000


class TraceJob(BaseModel):
    """One job of a trace. A trace in our own format has one of these per line, as JSON; ``gpus`` is what a
    submission says."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    submit_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """Seconds since the trace began."""
    duration_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    """How many seconds it works if nothing stops it."""
    gpus: ResourceRequest = ResourceRequest(gpus_per_host=1)
    namespace: str = "default"
    user: str = "anonymous"
    name: str = ""
    """Names of jobs and commands say which runs are alike: see ``gpu_platform.prediction``."""
    command: str = ""
    priority: Annotated[int, Field(ge=-1000, le=1000)] = 0
    time_limit_s: Annotated[float | None, Field(gt=0)] = None
    """An attempt that runs longer is ended."""
    preemptible: bool = True
    grace_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """When it must stop, it keeps its GPUs for this many seconds and does no more work."""
    checkpoint_s: Annotated[float | None, Field(gt=0)] = None
    """How often it saves its work, in seconds, to resume from there. None: as the simulation says for all jobs."""


@dataclass(frozen=True)
class Trace:
    """A trace of jobs with its name."""

    name: str
    jobs: list[TraceJob]
    """The jobs by time of arrival, then in the order of the file."""
    notes: list[str] = field(default_factory=list)
    """What was left out or changed when the file was read. Shown with every report."""

    @classmethod
    def of(cls, name: str, jobs: Iterable[TraceJob], notes: Iterable[str] = ()) -> Trace:
        """Build a trace. Raises InvalidRequest if two jobs have the same id."""
        ordered = sorted(jobs, key=lambda job: job.submit_s)
        twice = [job_id for job_id, count in Counter(job.id for job in ordered).items() if count > 1]
        if twice:
            raise InvalidRequest(f"{name} has several jobs called {twice[0]}: ids must differ")
        return cls(name, ordered, list(notes))

    def part(self, skip: int, count: int | None) -> Trace:
        """Return the trace with only ``count`` jobs, after the first ``skip``. None: all of them."""
        return Trace(self.name, self.jobs[skip : None if count is None else skip + count], self.notes)

    def limited(self, factor: float) -> Trace:
        """Give jobs without a time limit one of ``factor`` times their duration, because users' limits are guesses."""
        jobs = [
            job if job.time_limit_s else job.model_copy(update={"time_limit_s": max(1.0, factor * job.duration_s)})
            for job in self.jobs
        ]
        return Trace(self.name, jobs, [*self.notes, f"jobs without a time limit get {factor:g} times their run time"])


def request_of(job: TraceJob) -> PlacementRequest:
    """Return the job as the scheduler sees it before its first attempt."""
    return PlacementRequest(
        job_id=job.id,
        attempt=0,
        resources=job.gpus,
        priority=job.priority,
        namespace=job.namespace,
        user=job.user,
        enqueued_at=job.submit_s,
        time_limit_s=job.time_limit_s,
        preemptible=job.preemptible,
        checkpoints=job.checkpoint_s is not None,
        grace_s=job.grace_s,
    )


@cache
def gang(gpus: int, host_size: int) -> ResourceRequest:
    """Return a request for this many GPUs as a gang: on one host if they fit, else on the fewest hosts with equal
    slices.

    It asks for no topology level, because old traces have none.
    """
    hosts = -(-gpus // host_size)
    while gpus % hosts:
        hosts += 1
    return ResourceRequest(hosts=hosts, gpus_per_host=gpus // hosts, allow_cross_numa=True)
