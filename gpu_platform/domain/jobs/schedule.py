"""Schedules: the same job again and again, by a calendar or at an interval. Each firing submits an ordinary job."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState

MAX_INTERVAL_S = 366 * 86400
MAX_BACKFILL = 1000
"""The most firings of one backfill: each submits a job."""
MAX_CATCH_UP = 1000
"""The most firings that are made up for after an outage, if each submits a job."""
MAX_OF_A_USER, MAX_OF_A_NAMESPACE = 100, 1000
"""The most schedules: each fires for ever, whether somebody looks or not."""
SHOWN_RUNS = 10
"""How many firings a schedule shows."""
_CRON = re.compile(r"@(hourly|daily|weekly|monthly|yearly)|[^\s@]\S*( +\S+){4}")


class Overlap(StrEnum):
    """What happens when a schedule fires while the job of an earlier firing has not ended."""

    SKIP = "skip"
    BUFFER_ONE = "buffer-one"
    """One job is submitted once the earlier one has ended, however often the schedule fired meanwhile."""
    BUFFER_ALL = "buffer-all"
    """One job after the other, for each firing."""
    CANCEL_OTHER = "cancel-other"
    """The earlier job is cancelled, and the new one is submitted when it has ended."""
    ALLOW = "allow"
    """They run side by side."""


class ScheduleRequest(BaseModel):
    """When to submit which job."""

    model_config = ConfigDict(extra="forbid")

    cron: Annotated[
        str | None,
        Field(
            max_length=200,
            description="Minute, hour, day of the month, month, day of the week; or @hourly, @daily, …",
            examples=["0 2 * * 1-5"],
        ),
    ] = None
    every_s: Annotated[
        int | None, Field(ge=1, le=MAX_INTERVAL_S, description="Instead of cron: an interval, counted from 1970")
    ] = None
    timezone: Annotated[
        str, Field(max_length=64, pattern=r"^[A-Za-z0-9_+/-]+$", description="Time zone of cron", examples=["UTC"])
    ] = "UTC"
    overlap: Overlap = Overlap.SKIP
    catch_up_s: Annotated[
        int, Field(ge=10, le=MAX_INTERVAL_S, description="Firings missed in an outage are made up for so long")
    ] = 3600
    paused: bool = False
    job: JobSpec

    @field_validator("cron")
    @classmethod
    def _has_five_fields(cls, value: str | None) -> str | None:
        if value is not None and not _CRON.fullmatch(value):
            raise ValueError(
                f"{value!r} is not five fields (minute, hour, day of the month, month, day of the week), @hourly, "
                "@daily, @weekly, @monthly or @yearly"
            )
        return value

    @field_validator("job")
    @classmethod
    def _names_no_single_moment(cls, value: JobSpec) -> JobSpec:
        fixed = [name for name in ("begin_at", "deadline_at", "after") if getattr(value, name)]
        if fixed:
            raise ValueError(f"a schedule submits its job many times, and {fixed[0]} is of one job: leave it out")
        return value

    @model_validator(mode="after")
    def _fires_in_one_way(self) -> Self:
        if (self.cron is None) == (self.every_s is None):
            raise ValueError("say either cron or every_s")
        missed = self.most_firings(self.catch_up_s)
        if self.overlap in (Overlap.ALLOW, Overlap.BUFFER_ALL) and missed > MAX_CATCH_UP:
            raise ValueError(
                f"it fires up to {missed} times in the {self.catch_up_s} s that are made up for after an outage, and "
                f"with overlap {self.overlap} each submits a job; at most {MAX_CATCH_UP} are possible: make catch_up_s "
                "smaller"
            )
        return self

    def most_firings(self, span_s: float) -> int:
        """How often it fires in so many seconds, at most."""
        if self.every_s is not None:
            return int(span_s // self.every_s) + 1
        assert self.cron is not None
        days = int(span_s // 86400) + 2
        if self.cron.startswith("@"):
            return days * (24 if self.cron == "@hourly" else 1)
        minute, hour = self.cron.split()[:2]
        return min(int(span_s // 60) + 1, days * _times(minute, 60) * _times(hour, 24))


def _times(field: str, most: int) -> int:
    """How many values a field of cron stands for, at most."""
    found = 0
    for part in field.split(","):
        values, _, step = part.partition("/")
        first, _, last = values.partition("-")
        if values == "*" or (step and not last):
            count = most
        elif last:
            count = max(1, int(last) - int(first) + 1) if first.isdecimal() and last.isdecimal() else most
        else:
            count = 1
        found += -(-count // int(step)) if step.isdecimal() and len(step) < 4 and int(step) else count
    return min(found, most)


class SubmittedSchedule(BaseModel):
    """What Temporal keeps of a schedule, sealed: a database that was lost is restored from it."""

    request: ScheduleRequest
    actor: str
    created_at: datetime


class ScheduleRun(BaseModel):
    """One firing."""

    due_at: datetime
    job_id: str | None = None
    """None: no job was submitted; see ``refusal``."""
    state: JobState | None = None
    refusal: str | None = None
    """Why no job was submitted, e.g. for want of quota."""


class Schedule(BaseModel):
    """A schedule as the API shows it. Times are UTC."""

    id: str
    namespace: str
    user: str
    """As whom its jobs run."""
    request: ScheduleRequest
    paused: bool
    note: str = ""
    """Why it was paused or resumed last."""
    created_at: datetime
    next_times: list[datetime] = []
    """When it fires next. Only when one schedule is shown."""
    runs: list[ScheduleRun] = []
    """The newest firings, newest first. Only when one schedule is shown."""


class Backfill(BaseModel):
    """Fire for times that are past, as if the schedule had been there."""

    model_config = ConfigDict(extra="forbid")

    start_at: datetime
    end_at: datetime
    overlap: Overlap = Overlap.BUFFER_ALL

    @model_validator(mode="after")
    def _is_a_span(self) -> Self:
        if self.start_at.tzinfo is None or self.end_at.tzinfo is None:
            raise ValueError("start_at and end_at need a time zone")
        if self.start_at >= self.end_at:
            raise ValueError("start_at must be earlier than end_at")
        return self
