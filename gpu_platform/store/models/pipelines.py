"""Tables of pipelines. How far a pipeline is follows from its specification and the rows of its jobs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Text
from sqlmodel import Field

from gpu_platform.store.models.columns import (
    Record,
    optional_text_column,
    optional_time_column,
    text_column,
    time_column,
)


class PipelineRecord(Record, table=True):
    """A pipeline that was accepted."""

    id: str = Field(primary_key=True, sa_type=Text)
    namespace: str = text_column()
    user: str = text_column()
    actor: str = text_column()
    """Who submitted it: the actor of its submissions in the event log."""
    name: str = text_column()
    spec: str = text_column()
    state: str = Field(sa_type=Text, index=True)
    tries: int = 0
    """How often it was retried."""
    uses_cache: bool
    stopped_by: str | None = optional_text_column()
    created_at: datetime = time_column()
    finished_at: datetime | None = optional_time_column()


class PipelineJobRecord(Record, table=True):
    """A job of a step: submitted, refused, or taken from an earlier pipeline."""

    pipeline_id: str = Field(primary_key=True, sa_type=Text)
    step: str = Field(primary_key=True, sa_type=Text)
    number: int = Field(primary_key=True)
    """Which of the jobs of a step with ``for_each``; 0 for others."""
    tries: int = Field(primary_key=True)
    """How often the pipeline had been retried when it was submitted."""
    superseded: bool
    """A retry runs it again: it counts no more."""
    job_id: str | None = Field(default=None, sa_type=Text, index=True)
    state: str | None = optional_text_column()
    """How the job ended. NULL: the pipeline has not seen its end."""
    refusal: str | None = optional_text_column()
    directory: str = text_column()
    cached: bool
    cache_key: str | None = Field(default=None, sa_type=Text, index=True)
    output_read: bool
    output: str | None = optional_text_column()
    """JSON."""
    problem: str | None = optional_text_column()
