"""Notices: what happened to a job or an array, as one person or channel is told it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel

from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.notify import NotifyOn, NotifyRule
from gpu_platform.domain.notifications import Tone


@dataclass(frozen=True)
class Happened:
    """One event of which somebody is told."""

    event: Event
    rules: tuple[NotifyRule, ...]
    """Those that it concerns."""
    on: frozenset[NotifyOn]
    """What it is, in the words of rules."""
    of: Job | Array
    """As it is now: it may have gone on since the event."""
    time_limit_s: int | None = None


class Notice(BaseModel):
    """What happened to a job, as one person or channel is told it."""

    id: str
    """Of the event and the destination: who gets it twice knows it."""
    on: NotifyOn
    job_id: str
    target: str
    address: str | None = None
    at: datetime
    title: str
    line: str
    """The same in one line, for a message about several jobs."""
    body: str
    tone: Tone = "info"
    due_at: datetime | None = None
    """It is told only then, and only if ``attempt`` still runs. None: at once."""
    attempt: int | None = None


class Notices(BaseModel):
    """Notices for the destinations of one user."""

    notices: list[Notice]


class RunningAttempt(BaseModel):
    """Asks whether this attempt of a job still runs."""

    job_id: str
    attempt: int


class Undelivered(BaseModel):
    """Notices that a target did not take for so long that nobody tries any more."""

    target: str
    reason: str
    jobs: list[str]
