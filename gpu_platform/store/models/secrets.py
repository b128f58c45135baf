"""Tables of secrets and of job tokens."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import LargeBinary, Text
from sqlmodel import Field

from gpu_platform.store.models.columns import Record, text_column, time_column


class SecretRecord(Record, table=True):
    """A secret of a namespace. Its value is sealed with a key that is not in the database."""

    namespace: str = Field(primary_key=True, sa_type=Text)
    name: str = Field(primary_key=True, sa_type=Text)
    sealed: bytes = Field(sa_type=LargeBinary)
    key_id: str = text_column()
    """Of the key of the ring that sealed it."""
    is_text: bool
    created_at: datetime = time_column()
    created_by: str = text_column()
    updated_at: datetime = time_column()
    updated_by: str = text_column()


class JobTokenRecord(Record, table=True):
    """A token of a running attempt. Only its SHA-256 is kept: see :class:`ApiTokenRecord`."""

    hash: str = Field(primary_key=True, sa_type=Text)
    job_id: str = Field(index=True, sa_type=Text)
    attempt: int
    host: str = text_column()
    """The host that it was given to."""
    created_at: datetime = time_column()
