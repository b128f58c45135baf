"""Windows: what operators ask for, and what the leader opens and closes.

Two windows never keep the same GPU at the same time. Whoever makes or changes one locks the rows of its hosts first, so
two that have a host in common are checked one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InUse, InvalidRequest, NotFound
from gpu_platform.domain.hosts.gpu import HostWindow
from gpu_platform.domain.placing.window import Repeat, WindowPlace, WindowRow, conflict, span_text, time_text
from gpu_platform.domain.states import JobState
from gpu_platform.domain.windows import Window, WindowChanges, WindowHost, WindowRequest
from gpu_platform.store.database import read_record, read_records, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.hosts import window_cordons
from gpu_platform.store.leadership.leader import check_epoch
from gpu_platform.store.models import TimeWindowRecord, gpu, job, time_window
from gpu_platform.store.window_holders import overlapping
from gpu_platform.store.window_places import choose_places, lock_hosts
from gpu_platform.store.window_rows import ALL, PLACES, read_rows, row_of

OPENED, CLOSED = "window.opened", "window.closed"


@reading
def list_windows(session: Session) -> list[Window]:
    """All windows, those that begin first at the top."""
    found = read_records(session, TimeWindowRecord, ALL)
    return [_window(session, one) for one in sorted(found, key=lambda one: (one.start_at, one.name))]


@reading
def get_window(session: Session, name: str) -> Window:
    """One window. Raises :class:`NotFound`."""
    return _window(session, _get(session, name))


@reading
def describe(session: Session, name: str) -> Window:
    """One window with its jobs. Raises :class:`NotFound`."""
    one = _get(session, name)
    jobs = session.scalars(_JOBS, {"pattern": f'%"reservation":"{name}"%'}).all()
    to_stop = [] if one.is_open else overlapping(session, row_of(one))
    return _window(session, one).model_copy(update={"jobs": list(jobs), "to_stop": to_stop})


@reading
def get_row(session: Session, name: str) -> WindowRow | None:
    """One window as the scheduler sees it. None: there is none."""
    found = read_record(session, TimeWindowRecord, _ONE, {"name": name})
    return None if found is None else row_of(found)


@reading
def windows_by_host(session: Session) -> dict[str, list[HostWindow]]:
    """Host -> when it, or some of its GPUs, is kept."""
    found: dict[str, list[HostWindow]] = {}
    rows = read_records(session, TimeWindowRecord, ALL)
    for one in sorted(rows, key=lambda one: one.start_at):
        for place in _window(session, one).hosts:
            found.setdefault(place.host, []).append(
                HostWindow(
                    maintenance=one.maintenance,
                    is_open=one.is_open,
                    start_at=one.start_at,
                    end_at=one.end_at,
                    gpus=place.gpus,
                )
            )
    return found


@reading
def count_windows(session: Session) -> dict[tuple[str, str], int]:
    """(kind, state) -> how many windows: ``advance`` or ``maintenance``, ``coming`` or ``open``."""
    found = session.execute(
        select(time_window.c.maintenance, time_window.c.is_open, func.count()).group_by(
            time_window.c.maintenance, time_window.c.is_open
        )
    )
    return {
        ("maintenance" if maintenance else "advance", "open" if is_open else "coming"): count
        for maintenance, is_open, count in found
    }


@writing
def create(session: Session, request: WindowRequest, actor: str, now: datetime) -> Window:
    """Make a window. Raises :class:`InvalidRequest`, and :class:`InUse` if another window keeps the same, there is one
    of this name, or jobs may still run when it begins.
    """
    start = max(request.start_at or now, now)
    end = request.end_at or datetime.fromtimestamp(start.timestamp() + (request.duration_s or 0), UTC)
    _check_span(start, end, request.repeat, request.until_at, now)
    window = WindowRow(
        name=request.name,
        start=start.timestamp(),
        end=end.timestamp(),
        places=(),
        maintenance=request.maintenance,
        period_s=None if request.repeat is None else request.repeat.period_s,
        until=None if request.until_at is None else request.until_at.timestamp(),
        namespaces=request.namespaces,
        users=request.users,
    )
    if read_record(session, TimeWindowRecord, _ONE, {"name": request.name}) is not None:
        raise InUse(f"there is a window {request.name!r} already: delete it, or choose another name")
    window = choose_places(session, window, request, read_rows(session))
    _check_free(session, window, request.stop_running)
    row = {
        "name": request.name,
        "maintenance": request.maintenance,
        "is_open": False,
        "start_at": start,
        "end_at": end,
        "repeat": request.repeat,
        "until_at": request.until_at,
        "places": PLACES.dump_json(window.places).decode(),
        "namespaces": json.dumps(request.namespaces),
        "users": json.dumps(request.users),
        "reason": request.reason,
        "actor": actor,
        "created_at": now,
    }
    session.execute(insert(time_window), row)
    _announce(session, "window.created", window, actor, now)
    return get_window(session, request.name)


@writing
def change(session: Session, name: str, changes: WindowChanges, actor: str, now: datetime) -> Window:
    """Change a window. Raises :class:`NotFound`, :class:`InvalidRequest` and :class:`InUse`."""
    row = _get(session, name, lock=True)
    given = changes.model_fields_set
    if row.is_open and changes.start_at is not None:
        raise InvalidRequest(
            f"window {name} is open since {time_text(row.start_at.timestamp())}: only its end can move"
        )
    start = changes.start_at or row.start_at
    end = row.end_at + (start - row.start_at)
    if changes.end_at is not None:
        end = changes.end_at
    elif changes.duration_s is not None:
        end = datetime.fromtimestamp(start.timestamp() + changes.duration_s, UTC)
    repeat = changes.repeat if "repeat" in given else (None if row.repeat is None else Repeat(row.repeat))
    until = changes.until_at if "until_at" in given else row.until_at
    _check_span(start, end, repeat, until, now)
    values: dict[str, Any] = {"start_at": start, "end_at": end, "repeat": repeat, "until_at": until}
    for field in ("namespaces", "users"):
        value = getattr(changes, field)
        if value is not None:
            values[field] = json.dumps(value)
    if changes.reason is not None:
        values["reason"] = changes.reason
    after = row_of(TimeWindowRecord(**{**row.model_dump(), **values}))
    if row.maintenance and (after.namespaces or after.users):
        raise InvalidRequest("nobody's jobs run in a maintenance window: leave namespaces and users out")
    if not row.maintenance and not (after.namespaces or after.users):
        raise InvalidRequest(f"say whose jobs may use {name}: namespaces or users")
    lock_hosts(session, [place.host for place in after.places])
    # Who may still run at a start that stays, or comes later, was known when the window was made.
    _check_free(session, after, changes.stop_running or start >= row.start_at)
    session.execute(update(time_window).where(time_window.c.name == name).values(values))
    _announce(session, "window.updated", after, actor, now)
    return get_window(session, name)


@writing
def remove(session: Session, name: str, actor: str, now: datetime) -> None:
    """Forget a window. What it kept is free for everybody at once. Raises :class:`NotFound`."""
    row = _get(session, name, lock=True)
    session.execute(delete(time_window).where(time_window.c.name == name))
    window_cordons.end(session, name, now)
    _announce(session, "window.deleted", row_of(row), actor, now)


def _check_span(start: datetime, end: datetime, repeat: Repeat | None, until: datetime | None, now: datetime) -> None:
    if end <= start or end <= now:
        raise InvalidRequest(f"it would end at {time_text(end.timestamp())}: end it later than it begins, and than now")
    if repeat is not None and (end - start).total_seconds() >= repeat.period_s:
        raise InvalidRequest(f"it would begin again before it has ended: make it shorter than {repeat.period_s} s")
    if until is not None and until <= start:
        raise InvalidRequest(f"it begins at {time_text(start.timestamp())}: until_at must be later")


def _check_free(session: Session, window: WindowRow, stop_running: bool) -> None:
    """Refuse a window that keeps what another keeps, or that begins while jobs may still run there."""
    found = conflict(window, read_rows(session))
    if found is not None:
        other, at = found
        raise InUse(
            f"{window.name} and {other.name} would keep the same GPUs at {time_text(at)}: choose another time or other "
            "hosts, or change the other one",
            window=other.name,
        )
    if stop_running or window.is_open:
        return
    if jobs := jobs_in_the_way(session, window):
        named = ", ".join(jobs[:10]) + (f" and {len(jobs) - 10} more" if len(jobs) > 10 else "")
        raise InUse(
            f"{named} may still run when {window.name} begins ({time_text(window.start)}), by time limit or without "
            "one: begin later, choose other hosts, or have them stopped then (stop_running, --stop-running)",
            jobs=jobs,
        )


def jobs_in_the_way(session: Session, window: WindowRow) -> list[str]:
    """Inside a transaction: the jobs that hold what the window keeps, may not run in it, and may still run when it
    begins."""
    return overlapping(session, window)


def _announce(session: Session, kind: str, window: WindowRow, actor: str, now: datetime) -> None:
    data = {
        "window": window.name,
        "maintenance": window.maintenance,
        "when": span_text(window.start, window.end),
        "hosts": [place.host for place in window.places],
    }
    append_event(session, kind, actor, now, data=data)


def _get(session: Session, name: str, *, lock: bool = False) -> TimeWindowRecord:
    row = read_record(session, TimeWindowRecord, _ONE.with_for_update() if lock else _ONE, {"name": name})
    if row is None:
        raise no_such_window(name)
    return row


def no_such_window(name: str) -> NotFound:
    """There is no window of this name that one may see."""
    return NotFound(f"there is no advance reservation or maintenance window {name!r}", window=name)


def _window(session: Session, one: TimeWindowRecord) -> Window:
    window = row_of(one)
    names = [place.host for place in window.places]
    indices: dict[str, dict[str, int]] = {}
    for row in session.execute(_GPUS, {"hosts": names}):
        indices.setdefault(row.host, {})[row.uuid] = row.gpu_index
    return Window(
        name=one.name,
        maintenance=one.maintenance,
        is_open=one.is_open,
        start_at=one.start_at,
        end_at=one.end_at,
        repeat=None if one.repeat is None else Repeat(one.repeat),
        until_at=one.until_at,
        hosts=[_host(place, indices.get(place.host, {})) for place in window.places],
        namespaces=list(window.namespaces),
        users=list(window.users),
        reason=one.reason,
        actor=one.actor,
        created_at=one.created_at,
    )


def _host(place: WindowPlace, indices: dict[str, int]) -> WindowHost:
    if place.gpu_uuids is None:
        return WindowHost(host=place.host, gpus=len(indices))
    there = sorted(indices[uuid] for uuid in place.gpu_uuids if uuid in indices)
    return WindowHost(host=place.host, gpus=len(there), gpu_indices=there)


# ---- what the leader does ----


@writing
def advance(session: Session, epoch: int, now: datetime) -> list[str]:
    """Open windows that begin, and close those that have ended. Returns their names. Raises :class:`StaleEpoch`."""
    check_epoch(session, epoch)
    changed = []
    for one in read_records(session, TimeWindowRecord, ALL.with_for_update()):
        window = row_of(one)
        if now >= one.end_at:
            _close(session, window, now)
        elif not one.is_open and now >= one.start_at:
            session.execute(update(time_window).where(time_window.c.name == one.name).values(is_open=True))
            if one.maintenance:
                window_cordons.begin(session, one.name, [place.host for place in window.places], one.reason, now)
            _announce(session, OPENED, window, "scheduler", now)
        else:
            continue
        changed.append(one.name)
    return changed


def _close(session: Session, window: WindowRow, now: datetime) -> None:
    """Go on with the next occurrence. One that nobody opened, because no scheduler decided, is over as well."""
    where = time_window.c.name == window.name
    following = window.ending_after(now.timestamp())
    if following is None:
        session.execute(delete(time_window).where(where))
    else:
        start, end = (datetime.fromtimestamp(at, UTC) for at in (following.start, following.end))
        session.execute(update(time_window).where(where).values(is_open=False, start_at=start, end_at=end))
    window_cordons.end(session, window.name, now)
    _announce(session, CLOSED, window, "scheduler", now)


def due(rows: Iterable[WindowRow], now: float) -> bool:
    """Tell whether :func:`advance` would change one of these windows."""
    return any(now >= row.end or (not row.is_open and now >= row.start) for row in rows)


# ---- the statements, compiled once ----

_ONE = select(time_window).where(time_window.c.name == bindparam("name"))
_JOBS = (
    select(job.c.id)
    .where(
        job.c.state.in_([state.value for state in JobState if not state.is_terminal]),
        job.c.spec.like(bindparam("pattern")),
    )
    .order_by(job.c.id)
)
"""A name has no character that ``LIKE`` or JSON would read otherwise, but ``_``, which meets any."""
_GPUS = select(gpu.c.host, gpu.c.uuid, gpu.c.index.label("gpu_index")).where(
    gpu.c.host.in_(bindparam("hosts", expanding=True))
)
