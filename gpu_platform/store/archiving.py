"""Ended jobs leave the database for files: which may go, what their lines say, and where each went.

A job goes when no row of another table names it, besides its usage and events: then nothing that lives can miss it.
The order is: the line is in a file on disk (``workers/scheduler/job_archive.py``), then its rows go, a few at a time
(:func:`remove`), and when all of the file's are gone, the file is done (:func:`finish`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import ColumnElement, Row, Table, bindparam, delete, func, or_, select
from sqlalchemy.orm import Session

from gpu_platform.domain.states import TERMINAL_JOB_STATES, ArrayState, PipelineState
from gpu_platform.store.database import change, insert_all_new, insert_new, reading, writing
from gpu_platform.store.jobs.dependencies import HAS_WAITERS
from gpu_platform.store.models import (
    archive,
    archived_job,
    checkpoint,
    dependency,
    event,
    idempotency,
    job,
    job_array,
    job_token,
    job_watch,
    pipeline,
    pipeline_job,
    queue_entry,
    reservation,
    schedule_run,
    usage,
)

Kind = Literal["job", "array", "pipeline"]
KINDS: tuple[Kind, ...] = ("pipeline", "array", "job")
"""In this order they go: a pipeline names its jobs, and an array's row counts its elements."""
_JSON = frozenset(
    {
        "spec",
        "placement",
        "failure",
        "stopped_by",
        "held",
        "changed_limit",
        "changed",
        "notify",
        "array",
        "shape",
        "ranks",
        "unmeasured_hosts",
        "data",
        "output",
    }
)
"""Columns with JSON text. The archive has their values, not their text."""


@dataclass(frozen=True)
class ArchivedEntry:
    """A job, an array or a pipeline in the archive."""

    kind: Kind
    id: str
    namespace: str
    user: str


@dataclass(frozen=True)
class ArchiveLine:
    """What a line of the archive says."""

    entry: ArchivedEntry
    text: str
    """JSON, without an end of line."""


@reading
def last_number(session: Session) -> int:
    """The number of the newest file that is done; 0: there is none."""
    return session.scalar(select(func.max(archive.c.number))) or 0


@reading
def oldest_end(session: Session, before: datetime) -> datetime | None:
    """When the first of those ended that ended before this time and may go. None: none may."""
    ends = [session.scalar(_ENDS[kind], {"before": before}) for kind in KINDS]
    return min((end for end in ends if end is not None), default=None)


@reading
def may_go(session: Session, kind: Kind, before: datetime, limit: int) -> list[str]:
    """The ids of at most ``limit`` that ended before this time and may go, those that ended first."""
    return list(session.scalars(_OLDEST[kind], {"before": before, "limit": limit}))


@reading
def lines_of(session: Session, kind: Kind, ids: Collection[str]) -> list[ArchiveLine]:
    """The lines of these jobs, arrays or pipelines, in the order of their ids."""
    wanted = {"ids": list(ids)}
    table = _TABLES[kind]
    rows = session.execute(select(table).where(table.c.id.in_(bindparam("ids", expanding=True))), wanted).all()
    parts = {name: _by_owner(session, query, wanted) for name, query in _PARTS[kind].items()}
    return [_line(kind, row, {name: found[row.id] for name, found in parts.items()}) for row in sorted(rows, key=_id)]


@writing
def remove(session: Session, number: int, entries: Sequence[ArchivedEntry], now: datetime) -> int:
    """Delete the rows of these entries, which are in the file ``number``. Returns how many there were.

    What is named again meanwhile stays, and is archived once more later. Repeating it is a no-op.
    """
    gone = 0
    for kind in KINDS:
        of_kind = {entry.id: entry for entry in entries if entry.kind == kind}
        if not of_kind:
            continue
        # A submission that waits for one of them holds its row: it comes first, and is seen by the second statement.
        session.execute(_LOCK[kind], {"ids": list(of_kind)}).all()
        ids = list(session.scalars(_STILL[kind], {"ids": list(of_kind)}))
        found = [of_kind[one] for one in ids]
        rows = [
            {
                "job_id": one.id,
                "number": number,
                "namespace": one.namespace,
                "user": one.user,
                "archived_at": now,
            }
            for one in found
        ]
        insert_all_new(session, archived_job, rows)
        for table, column in _ROWS[kind]:
            session.execute(delete(table).where(table.c[column].in_(bindparam("ids", expanding=True))), {"ids": ids})
        gone += len(ids)
    return gone


@writing
def finish(session: Session, number: int, entries: int, now: datetime) -> None:
    """Write down that the jobs of a file are gone. The next file has the next number. Repeating it is a no-op."""
    insert_new(session, archive, {"number": number, "archived_at": now, "entries": entries})


@writing
def forget_archived(session: Session, before: datetime, limit: int) -> int:
    """Forget of at most ``limit`` jobs, archived before this time, in which file they are. Returns of how many."""
    old = select(archived_job.c.job_id).where(archived_job.c.archived_at < before)
    ids = list(session.scalars(old.order_by(archived_job.c.archived_at).limit(limit)))
    return change(session, delete(archived_job).where(archived_job.c.job_id.in_(ids))) if ids else 0


def _id(row: Row[Any]) -> str:
    return row.id


def _by_owner(session: Session, query: Any, wanted: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in session.execute(query, wanted):
        columns = _plain(row)
        found[columns.pop("owner")].append(columns)
    return found


def _line(kind: Kind, row: Row[Any], parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> ArchiveLine:
    entry = ArchivedEntry(kind, row.id, row.namespace, row.user)
    text = json.dumps({"entry": kind, **_plain(row), **parts}, separators=(",", ":"), ensure_ascii=False)
    return ArchiveLine(entry, text)


def _plain(row: Row[Any]) -> dict[str, Any]:
    return {name: _value(name, value) for name, value in row._mapping.items() if value is not None}


def _value(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return json.loads(value) if name in _JSON else value


def _names(table: Table, column: str, owner: Table) -> ColumnElement[bool]:
    """A row of ``table`` names the row of ``owner``."""
    other = table.alias(f"{table.name}_{column}")
    return select(other.c[column]).where(other.c[column] == owner.c.id).exists()


# ---- what may go, and the statements, compiled once ----

_element, _step = job.alias("element"), pipeline_job.alias("step")
_array_of_it = job_array.alias("array_of_it")
_IS_STEP = select(_step.c.step).where(_step.c.job_id == _element.c.id).correlate(_element).exists()
_TERMINAL = sorted(state.value for state in TERMINAL_JOB_STATES)
_TABLES: dict[Kind, Table] = {"job": job, "array": job_array, "pipeline": pipeline}
_FREE: dict[Kind, ColumnElement[bool]] = {
    "pipeline": pipeline.c.state.in_([state.value for state in PipelineState if state is not PipelineState.RUNNING]),
    "array": job_array.c.state.in_([state.value for state in ArrayState if state.is_terminal])
    & ~or_(
        _names(idempotency, "job_id", job_array),
        _names(dependency, "job_id", job_array),
        _names(job_watch, "job_id", job_array),
        select(dependency.c.job_id)
        .where(dependency.c.after_array == job_array.c.id, dependency.c.released_at.is_(None))
        .correlate(job_array)
        .exists(),
        select(_element.c.id)
        .where(_element.c.array_id == job_array.c.id, or_(_element.c.state.not_in(_TERMINAL), _IS_STEP))
        .correlate(job_array)
        .exists(),
    ),
    "job": job.c.state.in_(_TERMINAL)
    & ~or_(
        HAS_WAITERS,
        _names(reservation, "job_id", job),
        _names(idempotency, "job_id", job),
        _names(dependency, "job_id", job),
        _names(queue_entry, "job_id", job),
        _names(job_watch, "job_id", job),
        _names(pipeline_job, "job_id", job),
        _names(schedule_run, "job_id", job),
        select(_array_of_it.c.id).where(_array_of_it.c.id == job.c.array_id).exists(),
    ),
}
"""It has ended, and no row that lives names it."""
_ROWS: dict[Kind, tuple[tuple[Table, str], ...]] = {
    "job": ((job_token, "job_id"), (checkpoint, "job_id"), (job, "id")),
    "array": ((job_array, "id"),),
    "pipeline": ((pipeline_job, "pipeline_id"), (pipeline, "id")),
}
"""What goes with it."""
_OF_THESE = bindparam("ids", expanding=True)
_USAGE = select(usage.c.job_id.label("owner"), *[column for column in usage.c if column.name != "job_id"])
_EVENTS = select(event.c.job_id.label("owner"), *[column for column in event.c if column.name != "job_id"])
_STEPS = select(pipeline_job.c.pipeline_id.label("owner"), *[c for c in pipeline_job.c if c.name != "pipeline_id"])
_PARTS: dict[Kind, dict[str, Any]] = {
    "job": {
        "usage": _USAGE.where(usage.c.job_id.in_(_OF_THESE)).order_by(usage.c.job_id, usage.c.attempt),
        "events": _EVENTS.where(event.c.job_id.in_(_OF_THESE)).order_by(event.c.job_id, event.c.seq),
    },
    "array": {"events": _EVENTS.where(event.c.job_id.in_(_OF_THESE)).order_by(event.c.job_id, event.c.seq)},
    "pipeline": {"jobs": _STEPS.where(pipeline_job.c.pipeline_id.in_(_OF_THESE)).order_by(*pipeline_job.primary_key)},
}
_OLDEST = {
    kind: select(table.c.id)
    .where(table.c.finished_at < bindparam("before"), _FREE[kind])
    .order_by(table.c.finished_at, table.c.id)
    .limit(bindparam("limit"))
    for kind, table in _TABLES.items()
}
_ENDS = {
    kind: select(table.c.finished_at)
    .where(table.c.finished_at < bindparam("before"), _FREE[kind])
    .order_by(table.c.finished_at, table.c.id)
    .limit(1)
    for kind, table in _TABLES.items()
}
_LOCK = {
    kind: select(table.c.id).where(table.c.id.in_(_OF_THESE)).order_by(table.c.id).with_for_update()
    for kind, table in _TABLES.items()
}
_STILL = {kind: select(table.c.id).where(table.c.id.in_(_OF_THESE), _FREE[kind]) for kind, table in _TABLES.items()}
