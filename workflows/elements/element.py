"""The elements of an array that its workflow drives itself: where each of them is."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.job import JobProgress
from gpu_platform.domain.jobs.spec import JobSpec
from workflows.attempts.attempt import Attempt, Stop


class Standing(Enum):
    """Where an element is."""

    WAITS = auto()
    """It is in the queue."""
    PLACED = auto()
    """The leader has answered. The next step reserves the placement."""
    LAUNCHES = auto()
    """It holds its place, and its host starts it."""
    RUNS = auto()
    ENDS = auto()
    """It is being stopped, or its end is being written."""


@dataclass
class Element:
    """One element: an attempt of a job. Later attempts are here only if the one before lost its host."""

    attempt: Attempt
    progress: JobProgress
    standing: Standing = Standing.WAITS
    ranks: list[int] = field(default_factory=list)
    """Its ranks, once it was launched."""
    ran: bool = False
    """Its ranks have run."""
    is_marked: bool = False
    """The database says, or is being told, that it is RUNNING."""
    stays: bool = False
    """Its attempt ends, and the array drives the next one."""

    @classmethod
    def new(cls, spec: JobSpec, key: AttemptKey, progress: JobProgress | None = None) -> Element:
        """An element that has just come into the queue. ``spec``: what the elements share."""
        return cls(Attempt(spec, key, Stop()), progress or JobProgress(attempt=key.attempt))

    def next_attempt(self) -> Element:
        """The element in its next attempt. What stops the job stops this one, too."""
        progress = self.progress.model_copy(update={"attempt": self.key.attempt + 1})
        key = AttemptKey(job_id=self.key.job_id, attempt=progress.attempt)
        return Element(Attempt(self.attempt.spec, key, self.attempt.stop), progress)

    @property
    def key(self) -> AttemptKey:
        """Its job and attempt."""
        return self.attempt.key

    @property
    def host(self) -> str:
        """Its host. It must have a placement."""
        assert self.attempt.placement is not None
        return self.attempt.placement.hosts[0]
