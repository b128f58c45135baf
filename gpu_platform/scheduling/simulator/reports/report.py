"""The report of a run: the numbers by which policies are compared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from gpu_platform.scheduling.simulator.records import JobOutcome, SimulatedJob, SimulationRun
from gpu_platform.scheduling.simulator.reports.distribution import Distribution, ReportData
from gpu_platform.scheduling.simulator.reports.told import EstimateFigures, PromiseFigures, estimates_of, promises_of

BUCKETS = 240
SLOWDOWN_BOUND_S = 10.0
"""Shorter jobs count as this long. Otherwise their slowdown would hide that of all other jobs (Feitelson)."""
SIZES = ((1, 1), (2, 8), (9, 64), (65, None))
"""Classes of jobs by their number of GPUs."""


class SizeClass(ReportData):
    """Waiting times of the jobs of one size."""

    gpus: str
    """The numbers of GPUs, e.g. ``9-64``."""
    jobs: int
    waiting_s: Distribution
    promises: PromiseFigures = PromiseFigures()
    estimates: EstimateFigures = EstimateFigures()


class NamespaceShare(ReportData):
    """What one namespace got."""

    namespace: str
    jobs: int
    gpu_hours: float
    waiting_s: Distribution
    served: float
    """The fraction of the time between submission and end in which its jobs ran, weighted by GPUs."""
    promises: PromiseFigures = PromiseFigures()
    estimates: EstimateFigures = EstimateFigures()


class TimeSeries(ReportData):
    """The mean of each quantity over equal intervals of the run."""

    at_s: list[float]
    """The middle of each interval."""
    held_gpus: list[float]
    down_gpus: list[float]
    waiting_jobs: list[float]
    wanted_gpus: list[float]
    stranded: list[float]


class SimulationReport(ReportData):
    """The result of one policy on one trace. Ratios are 0 to 1."""

    policy: str
    gpus: int
    begin_s: float
    end_s: float
    """When the last job ended, or when the simulation was stopped."""
    jobs: dict[JobOutcome, int]
    """How many jobs had which outcome. Every job of the trace counts once."""
    utilisation: float
    """GPU-seconds of work that was kept, divided by those of all GPUs."""
    allocation_ratio: float
    """GPU-seconds held by jobs, divided by those of GPUs in working order."""
    fragmentation: float
    """While jobs waited: the mean fraction of free GPUs that a random job of the trace could not use."""
    waiting_s: Distribution
    """From submission to the first start, for jobs that started."""
    completion_s: Distribution
    """From submission to the end, for jobs that completed."""
    slowdown: float
    """The mean of completion time divided by run time, bounded."""
    by_size: list[SizeClass]
    promises: PromiseFigures = PromiseFigures()
    """Promised starts against what happened. The size classes and the namespaces have their own."""
    estimates: EstimateFigures = EstimateFigures()
    """Estimated starts against what happened."""
    preemptions: int
    moves: int
    """How often jobs were moved, for defragmentation and recovery."""
    failures: int
    restarts: int
    recovery_s: Distribution
    """From a failure that stopped a job until the job ran again."""
    lost_gpu_hours: float
    """Work that was done and had to be done again."""
    fairness: float
    """Jain's index of the namespaces' ``served``: 1 if all are served equally, 1/n if only one is served."""
    namespaces: list[NamespaceShare]
    levels: dict[str, int]
    """How close together the GPUs of jobs with several GPUs were: jobs by topology level."""
    decision_ms: Distribution | None = None
    """Wall-clock time of a decision on this machine. Nothing else differs between two equal runs."""
    waiting_quantiles_s: list[float]
    """The quantiles from 0 % to 100 % in steps of 1 %."""
    completion_quantiles_s: list[float]
    series: TimeSeries

    @property
    def jobs_left(self) -> int:
        """Jobs that were not finished at the end."""
        return self.jobs[JobOutcome.WAITING] + self.jobs[JobOutcome.RUNNING] + self.jobs[JobOutcome.NOT_ARRIVED]

    @property
    def jobs_failed(self) -> int:
        """Jobs that failed or reached their time limit."""
        return self.jobs[JobOutcome.FAILED] + self.jobs[JobOutcome.TIMED_OUT]


def report_on(run: SimulationRun, policy: str) -> SimulationReport:
    """Return the report of a run under the name of its policy."""
    span_s = run.end_s - run.begin_s
    owned = run.gpus * span_s
    down = run.timeline.integral("down", run.begin_s, run.end_s)
    waiting = _waits(run, run.records)
    completed = [r for r in run.records if r.outcome is JobOutcome.COMPLETED and not _ran_before(run, r)]
    completion = [_completion_s(r) for r in completed]
    namespaces = _namespaces(run)
    outcomes = Counter(record.outcome for record in run.records)
    return SimulationReport(
        policy=policy,
        gpus=run.gpus,
        begin_s=run.begin_s,
        end_s=run.end_s,
        jobs={outcome: outcomes[outcome] for outcome in JobOutcome},
        utilisation=_ratio(sum(map(_useful, run.records)), owned),
        allocation_ratio=_ratio(run.timeline.integral("held", run.begin_s, run.end_s), owned - down),
        fragmentation=_fragmentation(run),
        waiting_s=Distribution.of(waiting),
        completion_s=Distribution.of(completion),
        slowdown=_mean(max(1.0, _completion_s(r) / max(SLOWDOWN_BOUND_S, r.job.duration_s)) for r in completed),
        by_size=_by_size(run),
        promises=promises_of(run),
        estimates=estimates_of(run),
        preemptions=sum(record.preemptions for record in run.records),
        moves=sum(record.moves for record in run.records),
        failures=run.failures,
        restarts=sum(record.restarts for record in run.records),
        recovery_s=Distribution.of([seconds for record in run.records for seconds in record.recovery_s]),
        lost_gpu_hours=sum(record.lost_gpu_seconds for record in run.records) / 3600,
        fairness=_jain([share.served for share in namespaces]),
        namespaces=namespaces,
        levels=dict(sorted(Counter(r.level for r in run.records if r.level and r.job.gpus.gpus > 1).items())),
        decision_ms=Distribution.of([seconds * 1e3 for seconds in run.decision_s]) if run.decision_s else None,
        waiting_quantiles_s=_quantiles(waiting),
        completion_quantiles_s=_quantiles(completion),
        series=_series(run),
    )


def _useful(record: SimulatedJob) -> float:
    return max(0.0, record.gpu_seconds - record.lost_gpu_seconds)


def _ran_before(run: SimulationRun, record: SimulatedJob) -> bool:
    """Tell whether it ran already when the simulation began. Then nobody knows how long it had waited."""
    return record.first_start_s is not None and record.first_start_s < run.begin_s


def _waits(run: SimulationRun, records: Iterable[SimulatedJob]) -> list[float]:
    """Return the waiting times of the jobs that started."""
    return [
        r.first_start_s - r.job.submit_s for r in records if r.first_start_s is not None and not _ran_before(run, r)
    ]


def _completion_s(record: SimulatedJob) -> float:
    return (record.end_s or 0.0) - record.job.submit_s


def _fragmentation(run: SimulationRun) -> float:
    """Return the mean of ``stranded``, weighted by the time in which jobs waited."""
    at, waiting = run.timeline.steps("waiting")
    _, stranded = run.timeline.steps("stranded")
    lasted = np.diff(at, append=run.end_s) * (waiting > 0)
    return _ratio(float(stranded @ lasted), float(lasted.sum()))


def _by_size(run: SimulationRun) -> list[SizeClass]:
    classes = []
    for least, most in SIZES:
        last = math.inf if most is None else most
        of_size = [r for r in run.records if least <= r.job.gpus.gpus <= last]
        name = f"> {least - 1}" if most is None else str(least) if least == most else f"{least}-{most}"
        ids = {record.job.id for record in of_size}
        classes.append(
            SizeClass(
                gpus=name,
                jobs=len(of_size),
                waiting_s=Distribution.of(_waits(run, of_size)),
                promises=promises_of(run, ids),
                estimates=estimates_of(run, ids),
            )
        )
    return classes


def _namespaces(run: SimulationRun) -> list[NamespaceShare]:
    """Return the namespaces by name. A job that has not ended counts up to the end of the simulation."""
    shares = []
    for name in sorted({record.job.namespace for record in run.records}):
        own = [r for r in run.records if r.job.namespace == name]
        arrived = [r for r in own if r.outcome not in (JobOutcome.NOT_ARRIVED, JobOutcome.REFUSED)]
        present = sum(
            ((r.end_s if r.end_s is not None else run.end_s) - max(run.begin_s, r.job.submit_s)) * r.request.gpu_count
            for r in arrived
        )
        held = sum(record.gpu_seconds for record in arrived)
        shares.append(
            NamespaceShare(
                namespace=name,
                jobs=len(own),
                gpu_hours=held / 3600,
                waiting_s=Distribution.of(_waits(run, arrived)),
                served=_ratio(held, present) if present else 1.0,
                promises=promises_of(run, {record.job.id for record in own}),
                estimates=estimates_of(run, {record.job.id for record in own}),
            )
        )
    return shares


def _series(run: SimulationRun) -> TimeSeries:
    def means(name: str) -> list[float]:
        return [round(value, 4) for value in run.timeline.means(name, run.begin_s, run.end_s, BUCKETS).tolist()]

    step = (run.end_s - run.begin_s) / BUCKETS
    return TimeSeries(
        at_s=[round(run.begin_s + (number + 0.5) * step, 3) for number in range(BUCKETS)],
        held_gpus=means("held"),
        down_gpus=means("down"),
        waiting_jobs=means("waiting"),
        wanted_gpus=means("wanted"),
        stranded=means("stranded"),
    )


def _jain(values: Sequence[float]) -> float:
    """Return Jain's index: Jain, Chiu, Hawe: A Quantitative Measure of Fairness (DEC-TR-301, 1984)."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def _quantiles(values: Sequence[float]) -> list[float]:
    return np.percentile(values, np.arange(101), method="higher").round(3).tolist() if values else []


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
