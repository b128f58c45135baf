"""Promised starts: what a waiting job was told, until when it holds, and why it was taken back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class WithdrawalCode(StrEnum):
    """Why a promise does not hold any more: the label of metrics."""

    OVERRUN = "overrun"
    """A job that holds what was promised has run over its time limit."""
    HOST_OUT = "host_out"
    """A host or a GPU left service."""
    CAME_AHEAD = "came_ahead"
    """A job that was not ahead when the promise was given is served before it."""
    PREEMPTION = "preemption"
    """Other jobs are stopped for a job that comes first, which needs what was promised."""
    QUOTA = "quota"
    """The quotas do not allow the job now."""
    POLICY = "policy"
    """The policy was changed."""
    RUNS_LONGER = "runs_longer"
    """A running job may run longer than was known, because its time counts from the start of its ranks."""
    WINDOW = "window"
    """An operator made or changed a window that keeps what was promised."""
    JOB_CHANGED = "job_changed"
    """The job asks for something else now."""
    JOB_LEFT = "job_left"
    """The job does not wait any more, although it did not start."""
    NO_SCHEDULER = "no_scheduler"
    """No scheduler decided at that time."""
    UNKNOWN = "unknown"
    """No reason was found: the promise is broken."""


class PromiseOutcome(StrEnum):
    """What became of a promise."""

    GIVEN = "given"
    EARLIER = "earlier"
    """A later decision promised an earlier start."""
    KEPT = "kept"
    WITHDRAWN = "withdrawn"
    """Taken back, or moved to a later date, for a reason that promises depend on."""
    BROKEN = "broken"
    """The same without such a reason: the scheduler made a mistake."""


@dataclass(frozen=True, slots=True)
class PromisedPlace:
    """What is set aside for a job on one host."""

    host: str
    gpu_uuids: tuple[str, ...]
    host_resources: bool = False
    """CPUs or memory of the host, too."""


@dataclass(frozen=True, slots=True)
class PromisedStart:
    """A promise as the leader keeps it. A new leader goes on with it."""

    job_id: str
    attempt: int
    start: float
    """Unix seconds: the job starts then at the latest."""
    given_at: float
    """Unix seconds: when it was told first."""
    class_key: str
    """What the job asks for: see ``PlacementRequest.class_key``. A job that asks for something else has no promise."""
    time_limit_s: float | None = None
    places: tuple[PromisedPlace, ...] = ()
    """Empty with EASY backfill, which looks for the place at each decision."""
    waits_for: str = ""
    """A job that has run over its time limit and holds the places. Until it ends the date is not told, but the places
    stay set aside."""

    @property
    def is_told(self) -> bool:
        """False while nobody knows the date."""
        return not self.waits_for


@dataclass(frozen=True, slots=True)
class PromiseChange:
    """What a decision did to one promise."""

    job_id: str
    attempt: int
    outcome: PromiseOutcome
    start: float
    """The date that was promised. For ``given`` and ``earlier``: the new date."""
    given_at: float
    code: WithdrawalCode | None = None
    reason: str = ""
    """Why, in words."""
    later: float | None = None
    """The date that is promised instead of a withdrawn one. None: there is none now."""
