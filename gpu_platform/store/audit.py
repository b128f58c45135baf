"""The table of the audit log: append a batch, read it back, and remove the oldest records once they are archived."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.orm import Session

from gpu_platform.domain.audit import EMPTY, AuditEntry, AuditRecord, ChainHead, chained
from gpu_platform.store import models
from gpu_platform.store.database import change, reading, writing

_TABLE = models.audit
_CUT = models.audit_cut
_INSERT = insert(_TABLE)
_NEWEST = select(_TABLE.c.seq, _TABLE.c.hash).order_by(_TABLE.c.seq.desc()).limit(1)
_LOCK = 0x6770755F61756474  # "gpu_audt": the advisory lock of those who append


@writing
def append(session: Session, entries: Sequence[AuditEntry]) -> ChainHead:
    """Append the entries. Returns the new head. One after the other appends, so each process writes in batches."""
    _wait_for_turn(session)
    return _append(session, entries)


def _wait_for_turn(session: Session) -> None:
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def _append(session: Session, entries: Sequence[AuditEntry]) -> ChainHead:
    at = [entry.at.timestamp() for entry in entries]
    records = list(chained(read_head(session), [entry.canonical() for entry in entries]))
    rows = [record.model_dump() | {"at": when} for record, when in zip(records, at, strict=True)]
    if rows:
        session.execute(_INSERT, rows)
    return ChainHead(seq=records[-1].seq, hash=records[-1].hash) if records else read_head(session)


@reading
def read_head(session: Session) -> ChainHead:
    """The number and hash of the newest record."""
    row = session.execute(_NEWEST).first()
    return EMPTY if row is None else ChainHead(seq=row.seq, hash=row.hash)


@reading
def read_cut(session: Session) -> ChainHead:
    """The last record that was removed from the log's beginning."""
    row = session.execute(select(_CUT.c.seq, _CUT.c.hash).order_by(_CUT.c.seq.desc()).limit(1)).first()
    return EMPTY if row is None else ChainHead(seq=row.seq, hash=row.hash)


@reading
def read_records(session: Session, after: int, limit: int) -> list[AuditRecord]:
    """At most ``limit`` records with a number above ``after``, in order, without those that were removed."""
    query = select(_TABLE).where(_TABLE.c.seq > max(after, read_cut(session).seq)).order_by(_TABLE.c.seq).limit(limit)
    return [AuditRecord(seq=row.seq, entry=row.entry, hash=row.hash) for row in session.execute(query)]


@reading
def first_since(session: Session, since_s: float) -> int:
    """The number of the first record at or after the time (Unix seconds); one above the last if there is none."""
    found = session.scalar(select(func.min(_TABLE.c.seq)).where(_TABLE.c.at >= since_s))
    return found if found is not None else read_head(session).seq + 1


@writing
def cut(session: Session, removed: ChainHead, entry: AuditEntry) -> bool:
    """Remove all records up to ``removed``, and append ``entry``, which says so. False: they were removed before.

    From now on they are not read any more; :func:`delete_removed` frees their space.
    """
    _wait_for_turn(session)
    found = session.scalar(select(_TABLE.c.hash).where(_TABLE.c.seq == removed.seq))
    if found != removed.hash or removed.seq <= read_cut(session).seq:
        return False
    session.execute(insert(_CUT), {"seq": removed.seq, "hash": removed.hash})
    _append(session, [entry])
    return True


@writing
def delete_removed(session: Session, limit: int) -> int:
    """Delete at most ``limit`` records that were removed. Returns how many."""
    first = session.scalar(select(func.min(_TABLE.c.seq)))
    if first is None or first > (last := read_cut(session).seq):
        return 0
    return change(session, delete(_TABLE).where(_TABLE.c.seq <= min(last, first + limit - 1)))
