"""Tables of schedules, and of workflows that wait for the end of jobs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index, Text
from sqlmodel import Field

from gpu_platform.store.models.columns import (
    Record,
    optional_text_column,
    text_column,
    time_column,
)


class ScheduleRecord(Record, table=True):
    """A schedule: the truth about what is submitted, and for whom. Temporal only says when."""

    id: str = Field(primary_key=True, sa_type=Text)
    namespace: str = text_column()
    user: str = text_column()
    actor: str = text_column()
    """Who made it: the actor of its submissions in the event log."""
    name: str = text_column()
    request: str = text_column()
    paused: bool
    note: str = text_column()
    created_at: datetime = time_column()
    revision: int = 0
    """Counts the changes of this row."""
    applied: int = 0
    """The newest revision that Temporal has."""


class ScheduleRunRecord(Record, table=True):
    """One firing of a schedule, and the job that it made."""

    __table_args__ = (Index("ix_schedule_run_due_at", "schedule_id", "due_at"),)

    schedule_id: str = Field(primary_key=True, sa_type=Text)
    workflow_id: str = Field(primary_key=True, sa_type=Text)
    due_at: datetime = time_column()
    job_id: str | None = Field(default=None, sa_type=Text, index=True)
    refusal: str | None = optional_text_column()


class JobWatchRecord(Record, table=True):
    """A workflow that waits for the end of a job. The row goes when the workflow has seen the end."""

    job_id: str = Field(primary_key=True, sa_type=Text)
    workflow_id: str = Field(primary_key=True, sa_type=Text)
