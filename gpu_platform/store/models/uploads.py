"""Tables of uploaded code."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, LargeBinary, Text
from sqlmodel import Field

from gpu_platform.store.models.columns import Record, text_column, time_column


class UploadRecord(Record, table=True):
    """An archive that a user sent to a namespace, by the SHA-256 of its content. Each user has rows of their own:
    whoever knows a hash finds nothing of another."""

    namespace: str = Field(primary_key=True, sa_type=Text)
    user: str = Field(primary_key=True, sa_type=Text)
    sha256: str = Field(primary_key=True, sa_type=Text)
    size_bytes: int = Field(sa_type=BigInteger)
    received: int = Field(sa_type=BigInteger)
    """Bytes of its chunks that are there, without a gap."""
    complete: bool
    """The content was compared with the hash."""
    created_at: datetime = time_column()
    created_by: str = text_column()
    used_at: datetime = time_column()
    """When it was last sent, or a job with it was last submitted."""


class UploadChunkRecord(Record, table=True):
    """A part of an archive."""

    namespace: str = Field(primary_key=True, sa_type=Text)
    user: str = Field(primary_key=True, sa_type=Text)
    sha256: str = Field(primary_key=True, sa_type=Text)
    start: int = Field(primary_key=True, sa_type=BigInteger)
    """Its first byte, from the beginning of the archive."""
    content: bytes = Field(sa_type=LargeBinary)
