"""Promised and estimated starts against what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from pydantic import Field

from gpu_platform.scheduling.simulator.dates import ToldPromise
from gpu_platform.scheduling.simulator.records import SimulationRun
from gpu_platform.scheduling.simulator.reports.distribution import Distribution, ReportData

EXACT_S = 1.0
"""A start counts as on time if it differs by less than this."""
NEAR = 0.1
"""An estimate is near if its error is at most this part of the wait."""


class PromiseFigures(ReportData):
    """How many promised starts were kept. A job that was promised a start has one promise for each time that it
    waited: the earliest start that it was told."""

    given: int = 0
    kept: int = 0
    withdrawn: int = 0
    """The job started later, or had not started when the simulation ended after the promised start. It was told why."""
    reasons: dict[str, int] = Field(default_factory=dict)
    """How many were withdrawn for each reason."""
    broken: int = 0
    """The same without a reason."""
    open: int = 0
    """The simulation ended before the promised start."""
    late_s: Distribution = Distribution.of([])
    """How late the jobs with a broken or withdrawn promise started. Those that did not start count up to the end."""


class EstimateFigures(ReportData):
    """How good estimated starts were. Jobs were asked about when they had arrived and had to wait."""

    asked: int = 0
    without: int = 0
    """Of these, how many got no estimate."""
    started: int = 0
    """How many had an estimate and started. The figures below are about these."""
    error_s: Distribution = Distribution.of([])
    """Difference between estimated and real start, in either direction."""
    near: float = 0.0
    """The part of the jobs whose error is at most a tenth of their wait."""
    late: float = 0.0
    """The part of the jobs that started after the estimate."""
    within: float = 0.0
    """The part of the jobs with an 80 % interval that started in it."""


def promises_of(run: SimulationRun, jobs: Container[str] | None = None) -> PromiseFigures:
    """Return the figures of the promises to the jobs with these ids. None: to all jobs."""
    promises = [one for one in run.told.promises if jobs is None or one.job_id in jobs]
    open_ = [one for one in promises if one.started_at_s is None and one.start_s >= run.end_s - EXACT_S]
    too_late = [one for one in promises if _late_s(one, run.end_s) >= EXACT_S]
    reasons = Counter(str(one.withdrawn) for one in too_late if one.withdrawn is not None)
    return PromiseFigures(
        given=len(promises),
        kept=len(promises) - len(too_late) - len(open_),
        withdrawn=reasons.total(),
        reasons=dict(sorted(reasons.items())),
        broken=len(too_late) - reasons.total(),
        open=len(open_),
        late_s=Distribution.of([_late_s(one, run.end_s) for one in too_late]),
    )


def _late_s(one: ToldPromise, end_s: float) -> float:
    return (end_s if one.started_at_s is None else one.started_at_s) - one.start_s


def estimates_of(run: SimulationRun, jobs: Container[str] | None = None) -> EstimateFigures:
    """Return the figures of the estimates for the jobs with these ids. None: for all jobs."""
    asked = [one for one in run.told.estimates if jobs is None or one.job_id in jobs]
    known = [
        (one.started_at_s - one.start_s, one.started_at_s - one.asked_at_s)
        for one in asked
        if one.start_s is not None and one.started_at_s is not None
    ]
    between = [(*one.between_s, one.started_at_s) for one in asked if one.between_s and one.started_at_s is not None]
    within = sum(low - EXACT_S <= at <= high + EXACT_S for low, high, at in between)
    near = sum(abs(error) <= max(EXACT_S, NEAR * wait) for error, wait in known)
    return EstimateFigures(
        asked=len(asked),
        without=sum(one.start_s is None for one in asked),
        started=len(known),
        error_s=Distribution.of([abs(error) for error, _ in known]),
        near=near / len(known) if known else 0.0,
        within=within / len(between) if between else 0.0,
        late=sum(error >= EXACT_S for error, _ in known) / len(known) if known else 0.0,
    )
