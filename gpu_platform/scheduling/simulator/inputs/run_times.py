"""What the simulated scheduler knows of run times: what it learns, nothing but time limits, or the truth."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.run_time import RunTime
from gpu_platform.prediction.run_time_predictor import JobTraits, RunTimePredictor
from gpu_platform.scheduling.simulator.inputs.trace import TraceJob

KINDS = ("learned", "limits", "known")
NOBODY = "anonymous"
"""The user of a job in a trace that names no users."""


class RunTimes(Protocol):
    """Says how long a job will probably run."""

    def expect(self, job: TraceJob) -> RunTime | None:
        """Return what is known when the job comes."""
        ...

    def ended(self, job: TraceJob) -> None:
        """Note that the job ran to its end."""
        ...


class LearnedFromTrace:
    """Learns from each job that has ended, as the leader does. ``earlier``: jobs that ended before the simulation."""

    def __init__(self, earlier: Iterable[TraceJob] = ()) -> None:
        self._predictor = RunTimePredictor()
        self._told: dict[str, RunTime | None] = {}
        for job in sorted(earlier, key=lambda job: job.submit_s + job.duration_s):
            self.ended(job)

    def expect(self, job: TraceJob) -> RunTime | None:
        """Return the prediction."""
        told = self._told[job.id] = self._predictor.predict(_traits(job))
        return told

    def ended(self, job: TraceJob) -> None:
        """Learn the job's run time."""
        self._predictor.learn(_traits(job), job.duration_s, self._told.pop(job.id, None))


class OnlyLimits:
    """Knows nothing but time limits."""

    def expect(self, job: TraceJob) -> RunTime | None:
        """Return None."""

    def ended(self, job: TraceJob) -> None:
        """Learn nothing."""


class KnownRunTimes:
    """Knows the truth: the bound of what better predictions could bring."""

    def expect(self, job: TraceJob) -> RunTime | None:
        """Return the true run time."""
        run_s = max(1.0, job.duration_s)
        return RunTime(run_s, run_s, run_s)

    def ended(self, job: TraceJob) -> None:
        """There is nothing to learn."""


def run_times_of(kind: str, earlier: Iterable[TraceJob] = ()) -> RunTimes:
    """Return what is known, by its name in KINDS. Raises InvalidRequest."""
    if kind not in KINDS:
        raise InvalidRequest(f"there are no run times {kind!r}; there are: {', '.join(KINDS)}")
    made = {"learned": lambda: LearnedFromTrace(earlier), "limits": OnlyLimits, "known": KnownRunTimes}
    return made[kind]()


def _traits(job: TraceJob) -> JobTraits:
    return JobTraits(
        namespace=job.namespace,
        user="" if job.user == NOBODY else job.user,
        name=job.name,
        command=job.command,
        gpus=job.gpus.gpus,
        model=job.gpus.model or "",
        time_limit_s=job.time_limit_s,
    )
