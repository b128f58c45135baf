"""The table of the audit log: append a batch, read it back."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import func, insert, select, text
from sqlalchemy.orm import Session

from gpu_platform.domain.audit import EMPTY, AuditEntry, AuditRecord, ChainHead, chained
from gpu_platform.store import models
from gpu_platform.store.database import reading, writing

_TABLE = models.audit
_LOCK = 0x6770755F61756474  # "gpu_audt": the advisory lock of those who append


@writing
def append(session: Session, entries: Sequence[AuditEntry]) -> ChainHead:
    """Append the entries. Returns the new head. One after the other appends, so each process writes in batches."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    at = [entry.at.timestamp() for entry in entries]
    records = list(chained(read_head(session), [entry.canonical() for entry in entries]))
    rows = [record.model_dump() | {"at": when} for record, when in zip(records, at, strict=True)]
    if rows:
        session.execute(insert(_TABLE), rows)
    return ChainHead(seq=records[-1].seq, hash=records[-1].hash) if records else read_head(session)


@reading
def read_head(session: Session) -> ChainHead:
    """The number and hash of the newest record."""
    row = session.execute(select(_TABLE.c.seq, _TABLE.c.hash).order_by(_TABLE.c.seq.desc()).limit(1)).first()
    return EMPTY if row is None else ChainHead(seq=row.seq, hash=row.hash)


@reading
def read_records(session: Session, after: int, limit: int) -> list[AuditRecord]:
    """At most ``limit`` records with a number above ``after``, in order."""
    query = select(_TABLE).where(_TABLE.c.seq > after).order_by(_TABLE.c.seq).limit(limit)
    return [AuditRecord(seq=row.seq, entry=row.entry, hash=row.hash) for row in session.execute(query)]


@reading
def first_since(session: Session, since_s: float) -> int:
    """The number of the first record at or after the time (Unix seconds); one above the last if there is none."""
    found = session.scalar(select(func.min(_TABLE.c.seq)).where(_TABLE.c.at >= since_s))
    return found if found is not None else read_head(session).seq + 1
