"""Events: who did what to which job, host or GPU, and the change feed (what happened after ``seq``), in one table."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, select
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import EventsGone
from gpu_platform.domain.events import Event
from gpu_platform.store.database import Store, change, reading, upsert, writing
from gpu_platform.store.models import event, event_cut, job


def append_event(
    session: Session,
    kind: str,
    actor: str,
    now: datetime,
    *,
    job_id: str | None = None,
    attempt: int | None = None,
    host: str | None = None,
    gpu_uuid: str | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Add one event to the transaction; it is written, with the others, right before the commit.

    On PostgreSQL writing takes a global lock until the commit, so that ``seq`` becomes visible in order and a reader
    that saw 7 has missed nothing before it. That is why events come last.
    """
    row = {
        "at": now,
        "kind": kind,
        "actor": actor,
        "job_id": job_id,
        "attempt": attempt,
        "host": host,
        "gpu_uuid": gpu_uuid,
        "data": json.dumps(data) if data else "{}",
    }
    session.info.setdefault("events", []).append(row)


@writing
def note_event(session: Session, kind: str, data: Mapping[str, Any], now: datetime) -> None:
    """Write one event that belongs to no job or host."""
    append_event(session, kind, "control", now, data=data)


@reading
def read_events(
    session: Session,
    after: int,
    limit: int = 1000,
    job_id: str | None = None,
    visible: Collection[str] | None = None,
) -> list[Event]:
    """At most ``limit`` events with ``seq > after``, in order; only those of ``job_id`` if given.

    ``visible``: only events of jobs of these namespaces; None: all events.
    """
    if visible is not None and job_id is None:
        of_jobs = event.join(job, job.c.id == event.c.job_id)
        query = _READ.select_from(of_jobs).where(job.c.namespace.in_(sorted(visible)))
        rows = session.execute(query, {"after": after, "limit": limit})
    elif job_id is None:
        rows = session.execute(_READ, {"after": after, "limit": limit})
    else:
        rows = session.execute(_READ_OF_JOB, {"after": after, "limit": limit, "job_id": job_id})
    return [event_of(row) for row in rows]


@reading
def read_gpu_events(session: Session, gpu_uuid: str, limit: int = 50) -> list[Event]:
    """The newest ``limit`` events of a GPU, oldest first."""
    rows = session.execute(_READ_OF_GPU, {"gpu_uuid": gpu_uuid, "limit": limit}).all()
    return [event_of(row) for row in reversed(rows)]


@reading
def last_seq(session: Session) -> int:
    """The newest event's number; 0 before the first."""
    return session.scalar(_LAST) or 0


@reading
def oldest_after(session: Session, after: int) -> datetime | None:
    """When the first event with ``seq > after`` was written; None: there is none."""
    return session.scalar(_FIRST_AFTER, {"after": after})


@reading
def check_kept(session: Session, after: int) -> None:
    """Raises :class:`EventsGone` if events after the number ``after`` were removed. 0 means those that are kept."""
    removed = session.scalar(_CUT) or 0
    if 0 < after < removed:
        raise EventsGone(
            f"events up to number {removed} are older than scheduler.event_keep_days and were removed, so those after "
            f"{after} cannot all be read; begin after {removed}, or leave the number out",
            kept_after=removed,
        )


@writing
def remove_old(session: Session, before: datetime, limit: int) -> int:
    """Remove the oldest events, at most ``limit``, up to the first that is not older than ``before``. Returns how
    many."""
    last = 0
    for row in session.execute(_OLDEST, {"limit": limit}):
        if row.at >= before:
            break
        last = row.seq
    if last == 0:
        return 0
    upsert(session, event_cut, {"id": 1, "seq": last})
    return change(session, _REMOVE, {"last": last})


def change_token(store: Store) -> int:
    """Changes whenever another connection committed; cheap enough to ask every few milliseconds.

    SQLite: ``PRAGMA data_version`` on a connection kept for this. PostgreSQL: the newest ``seq``.
    """
    return store.change_token()


_READ = select(event).where(event.c.seq > bindparam("after")).order_by(event.c.seq).limit(bindparam("limit"))
_READ_OF_JOB = _READ.where(event.c.job_id == bindparam("job_id"))
_READ_OF_GPU = (
    select(event)
    .where(event.c.gpu_uuid == bindparam("gpu_uuid"))
    .order_by(event.c.seq.desc())
    .limit(bindparam("limit"))
)
_LAST = select(func.max(event.c.seq))
_CUT = select(event_cut.c.seq)
_OLDEST = select(event.c.seq, event.c.at).order_by(event.c.seq).limit(bindparam("limit"))
_REMOVE = delete(event).where(event.c.seq <= bindparam("last"))
_FIRST_AFTER = select(event.c.at).where(event.c.seq > bindparam("after")).order_by(event.c.seq).limit(1)


def event_of(row: Row[Any]) -> Event:
    """The event that the row keeps."""
    return Event(
        seq=row.seq,
        at=row.at,
        kind=row.kind,
        actor=row.actor,
        job_id=row.job_id,
        attempt=row.attempt,
        host=row.host,
        gpu_uuid=row.gpu_uuid,
        data=json.loads(row.data),
    )
