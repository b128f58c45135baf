"""What the scheduler said about starts while jobs waited, to be compared with what happened."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_platform.domain.jobs.placement import EstimateBasis
from gpu_platform.domain.placing.promise import PromiseOutcome, WithdrawalCode
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from gpu_platform.scheduling.simulator.inputs.trace import Trace


@dataclass(slots=True)
class ToldPromise:
    """The promise to one job during one wait. A later decision may promise an earlier start."""

    job_id: str
    given_at_s: float
    start_s: float
    """The earliest start that was promised."""
    started_at_s: float | None = None
    withdrawn: WithdrawalCode | None = None
    """Why it was taken back. The job may have got a later promise since. None: it was not, or without a reason."""


@dataclass(slots=True)
class ToldEstimate:
    """What one job was told when it had arrived and had to wait."""

    job_id: str
    asked_at_s: float
    start_s: float | None
    """None: the scheduler gave no estimate."""
    basis: EstimateBasis | None
    between_s: tuple[float, float] | None = None
    """The interval that was told with the estimate."""
    started_at_s: float | None = None


@dataclass
class ToldDates:
    """All promises and estimates of a simulation."""

    promises: list[ToldPromise] = field(default_factory=list)
    estimates: list[ToldEstimate] = field(default_factory=list)
    _promised: dict[str, ToldPromise] = field(default_factory=dict)
    _estimated: dict[str, ToldEstimate] = field(default_factory=dict)

    def note_promises(self, scheduler: Scheduler, decision: Decision, now: float) -> None:
        """Note the promises after a decision. Dates come from ``scheduler.promises`` alone."""
        for change in decision.promises:
            known = self._promised.get(change.job_id)
            if change.outcome is PromiseOutcome.WITHDRAWN and known is not None:
                known.withdrawn = change.code
        for job_id, start_s in scheduler.promises.items():
            known = self._promised.get(job_id)
            if known is None:
                known = self._promised[job_id] = ToldPromise(job_id, now, start_s)
                self.promises.append(known)
            elif start_s < known.start_s:
                known.start_s = start_s

    def ask(self, scheduler: Scheduler, job_id: str, now: float) -> None:
        """Ask the scheduler when a waiting job will start, as a user who looks at it now."""
        reason = scheduler.why(job_id, now)
        if reason is not None:
            told = ToldEstimate(job_id, now, reason.estimated_start, reason.estimate, reason.estimated_between)
            self.estimates.append(told)
            self._estimated[job_id] = told

    def started(self, job_id: str, now: float) -> None:
        """Note that a job started."""
        for open_dates in (self._promised, self._estimated):
            told = open_dates.pop(job_id, None)
            if told is not None:
                told.started_at_s = now


def spread(trace: Trace, count: int) -> set[str]:
    """Return the ids of about ``count`` jobs, spread evenly over the trace."""
    every = max(1, len(trace.jobs) // count) if count else len(trace.jobs) + 1
    return {job.id for job in trace.jobs[every - 1 :: every]}
