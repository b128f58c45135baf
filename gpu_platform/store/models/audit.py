"""The table of the audit log."""

from __future__ import annotations

from sqlalchemy import BigInteger
from sqlmodel import Field

from gpu_platform.store.models.columns import Record, text_column


class AuditRecord(Record, table=True):
    """One record of the audit log, see :class:`gpu_platform.domain.audit.AuditRecord`. Triggers forbid every change."""

    seq: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    at: float = Field(index=True)
    """Unix seconds of the entry, to search by. The entry's own time is what counts."""
    entry: str = text_column()
    hash: str = text_column()


class AuditCutRecord(Record, table=True):
    """All records of the audit log up to this one are in an archive, and may be deleted. Triggers forbid every
    change."""

    seq: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    hash: str = text_column()
