"""Tables of what was moved out of the database: files of ended jobs, and how far the events were removed."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Text
from sqlmodel import Field

from gpu_platform.store.models.columns import Record, UtcDateTime, text_column, time_column


class ArchiveRecord(Record, table=True):
    """A file of the archive whose jobs have all left the database."""

    number: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    archived_at: datetime = time_column()
    entries: int
    """How many jobs, arrays and pipelines it has."""


class ArchivedJobRecord(Record, table=True):
    """A job, an array or a pipeline that is only in the archive, and whose it was."""

    job_id: str = Field(primary_key=True, sa_type=Text)
    number: int
    """The number of its file."""
    namespace: str = text_column()
    user: str = text_column()
    archived_at: datetime = Field(sa_type=UtcDateTime, index=True)


class EventCutRecord(Record, table=True):
    """All events up to ``seq`` are removed, or may be. There is one row at most."""

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    seq: int = Field(sa_type=BigInteger)
