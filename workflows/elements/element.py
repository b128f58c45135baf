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
    """One element: the first attempt of a job."""

    attempt: Attempt
    progress: JobProgress
    standing: Standing = Standing.WAITS
    ranks: list[int] = field(default_factory=list)
    """Its ranks, once it was launched."""
    ran: bool = False
    """Its ranks have run."""
    is_marked: bool = False
    """The database says, or is being told, that it is RUNNING."""

    @classmethod
    def new(cls, spec: JobSpec, key: AttemptKey) -> Element:
        """An element that has just come into the queue. ``spec``: what the elements share."""
        return cls(Attempt(spec, key, Stop()), JobProgress(attempt=key.attempt))

    @property
    def key(self) -> AttemptKey:
        """Its job and attempt."""
        return self.attempt.key

    @property
    def host(self) -> str:
        """Its host. It must have a placement."""
        assert self.attempt.placement is not None
        return self.attempt.placement.hosts[0]
