"""An array whose elements each wait for the element of another array with the same index (kind ``each``).

What may start is read from the rows of both arrays: elements of the other one that have ended, and have no counterpart
yet. The array's workflow asks for a bounded number of them at once (:func:`ready`), and makes them by their names. The
leader tells it only that there are new ones (:func:`to_be_woken`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Row, and_, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import array_of, element_id, is_array_id
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.dependency import DependencyKind, IfUnmet, WatchedJob
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.placement import Reason, WaitCode
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import TERMINAL_JOB_STATES, ArrayState, JobState
from gpu_platform.store.database import insert_new
from gpu_platform.store.jobs.awaited import indices_of, states_of
from gpu_platform.store.models import dependency, job, job_array

MOST_CANCELLED = 256
"""So many elements that can never start are named at once."""
_EACH = DependencyKind.EACH.value
_AT_ONCE = 500
_TERMINAL = sorted(state.value for state in TERMINAL_JOB_STATES)
_UNMET = [state for state in _TERMINAL if state != JobState.COMPLETED]
_ARRAY_ENDED = sorted(state.value for state in ArrayState if state.is_terminal)
_ARRAY_LIVE = sorted(state.value for state in ArrayState if not state.is_terminal)


@dataclass(frozen=True)
class ReadyElements:
    """Which elements have no row yet and may be made now."""

    queued: list[int] = field(default_factory=list[int])
    """Their counterparts have COMPLETED."""
    cancelled: list[int] = field(default_factory=list[int])
    """Their counterparts ended otherwise, or somebody cancelled them."""
    skips_left: list[int] = field(default_factory=list[int])
    """Elements that somebody cancelled, and that are not named yet."""
    more: bool = False
    """More are to run than there is room for."""
    again: bool = False
    """More never start than are named here: look again at once."""
    since: int = 0
    """All elements with smaller indices have rows: look from here on the next time."""
    over: bool = False
    """No other element will ever be ready."""
    why_never: str = ""
    """With ``over``: why the elements that still have no row never start. Empty: all have one."""


def after_array(spec: JobSpec) -> str | None:
    """The array for whose elements those of this one wait. None: there is none."""
    return next((one.job_id for one in spec.after if one.kind is DependencyKind.EACH), None)


def check(session: Session, other: str, spec: JobSpec, array: ArraySpec | None) -> None:
    """Raise :class:`InvalidRequest` unless the elements of this array can wait for those of ``other``."""
    if not is_array_id(other):
        raise InvalidRequest(f"{other} is no array, so it has no elements to come after: use --after {other}")
    if array is None:
        raise InvalidRequest(
            f"only an array comes after each element of another one: submit an array with the indices of {other} "
            "(--array), or let the job wait for the whole array (--after)"
        )
    there = indices_of(session, other)
    if there is None:
        return  # it was looked up before
    asked = array.index_set
    lonely, left_out = asked.missing_from(there), there.missing_from(asked)
    if lonely is not None or left_out is not None:
        why = f"{lonely} is not in {other}" if lonely is not None else f"{left_out} is only in {other}"
        raise InvalidRequest(
            f"the array asks for the indices {_cut(str(asked))}, and {other} has {_cut(str(there))}: {why}. Each "
            f"element waits for the one with its index: submit it with --array {_cut(str(there))}, or wait for the "
            f"whole array with --after {other}",
            array_id=other,
        )
    state = states_of(session, [other]).get(other)
    if state is not None and state.is_terminal and spec.if_unmet is not IfUnmet.HOLD:
        completed = session.scalar(_ANY_COMPLETED, {"theirs": other})
        if completed is None:
            raise InvalidRequest(
                f"no element would ever start: array {other} ended {state}, and none of its elements has COMPLETED. "
                "Leave the dependency out, or run that array again (jobs retry)",
                array_id=other,
            )


def ready(
    session: Session, array_id: str, spec: JobSpec, indices: IndexSet, *, since: int, room: int,
    skipped: IndexSet | None, now: datetime, forgotten: datetime,
) -> ReadyElements:  # fmt: skip
    """Inside a transaction: which elements may be made now: at most ``room`` that are to run, MOST_CANCELLED others.

    It notes what it has seen, so that nobody wakes the array for that again. Repeating it is a no-op. ``forgotten``: an
    array that was not known then, and is not now, will not be restored.
    """
    other = after_array(spec)
    if other is None:
        return ReadyElements(over=True)
    # Without a row this database was restored to a point before the submission.
    fields = {"job_id": array_id, "after_job": other, "after_array": other, "kind": _EACH, "recorded_at": now}
    insert_new(session, dependency, fields)
    recorded_at = session.execute(_ROW, {"ours": array_id}).scalar_one()
    theirs = session.execute(_THEIRS, {"theirs": other}).one_or_none()
    seen = _ended(session, other, theirs)
    holds = spec.if_unmet is IfUnmet.HOLD
    names = {"ours": array_id, "theirs": other, "since": since}
    queued = list(session.scalars(_READY, {**names, "states": [JobState.COMPLETED.value], "most": room + 1}))
    unmet = [] if holds else list(session.scalars(_READY, {**names, "states": _UNMET, "most": MOST_CANCELLED + 1}))
    skips, skips_left = _without_row(session, array_id, skipped or ())
    cancelled = sorted({*unmet[:MOST_CANCELLED], *skips})
    more, again = len(queued) > room, len(unmet) > MOST_CANCELLED or bool(skips_left)
    queued = [index for index in queued[:room] if index not in skips]
    has_ended = theirs is not None and theirs.state in _ARRAY_ENDED
    is_lost = theirs is None and recorded_at < forgotten
    is_last = (is_lost or has_ended) and not (more or again)
    why = ""
    if is_last:
        made = session.scalar(_MADE, {"ours": array_id}) or 0
        if made + len(queued) + len(cancelled) < len(indices):
            ended = "is not known any more" if theirs is None else f"ended {theirs.state}"
            why = f"array {other} {ended}, and these elements were to run only after its own had COMPLETED"
    over = is_last and not (why and holds)
    session.execute(_SEEN, {"ours": array_id, "seen_": seen, "released": now if over else None})
    first = _first_open(session, names, indices, theirs)
    return ReadyElements(queued, cancelled, skips_left, more, again, first, over, why)


def why_unmet(session: Session, spec: JobSpec, indices: Iterable[int]) -> dict[int, str]:
    """Index -> why the element never starts: how its counterpart ended."""
    other = after_array(spec)
    if other is None:
        return {}
    names = {element_id(other, index): index for index in indices}
    found: dict[int, str] = {}
    for name, state in states_of(session, names).items():
        if state.is_terminal and state is not JobState.COMPLETED:
            found[names[name]] = WatchedJob(name, DependencyKind.EACH, state).why_unmet
    return found


def reasons(session: Session, array_ids: Collection[str]) -> dict[str, Reason]:
    """Array -> for the elements of which array its own wait."""
    names = sorted(one for one in array_ids if is_array_id(one))
    found: dict[str, Reason] = {}
    for begin in range(0, len(names), _AT_ONCE):
        for row in session.execute(_OPEN_OF, {"names": names[begin : begin + _AT_ONCE]}):
            state = "not known" if row.state is None else row.state
            message = f"its elements wait for those of array {row.after_job} ({state}), each for its own"
            found[row.job_id] = Reason(code=WaitCode.DEPENDENCY, message=message)
    return found


def to_be_woken(session: Session, forgotten: datetime, ended: Collection[str] | None) -> set[str]:
    """Arrays for whose elements there is something new. ``ended``: only because of these jobs and arrays. None: all."""
    if ended is None:
        return {row.job_id for row in session.execute(_NEWS, {"forgotten": forgotten})}
    names = sorted({array_of(one) or one for one in ended if is_array_id(array_of(one) or one)})
    found: set[str] = set()
    for begin in range(0, len(names), _AT_ONCE):
        found.update(session.scalars(_AFTER, {"ended": names[begin : begin + _AT_ONCE]}))
    return found


def _ended(session: Session, other: str, theirs: Row[Any, Any, Any] | None) -> int:
    count = session.scalar(_ENDS, {"theirs": other}) or 0
    return count + (theirs is not None and theirs.state in _ARRAY_ENDED)


def _first_open(
    session: Session, names: Mapping[str, str | int], indices: IndexSet, theirs: Row[Any, Any, Any] | None
) -> int:
    """The smallest index from which the next look must begin. An array that itself makes its elements out of order is
    looked at from the beginning."""
    if theirs is None or after_array(JobSpec.model_validate_json(theirs.spec)) is not None:
        return 0
    first = session.scalar(_FIRST_WITHOUT_ROW, names)
    place = min(theirs.position, len(indices) - 1)
    # Beyond its position the other array makes its elements yet, in the order of their indices.
    return indices[place] if first is None else min(first, indices[place])


def _without_row(session: Session, array_id: str, indices: Iterable[int]) -> tuple[set[int], list[int]]:
    """Those of the indices that have no row, at most MOST_CANCELLED, and those that were not looked at."""
    wanted = list(indices)
    found: set[int] = set()
    for begin in range(0, len(wanted), MOST_CANCELLED):
        part = wanted[begin : begin + MOST_CANCELLED]
        there = set(session.scalars(_THERE, {"ours": array_id, "wanted": part}))
        found.update(index for index in part if index not in there)
        if len(found) >= MOST_CANCELLED:
            return found, wanted[begin + MOST_CANCELLED :]
    return found, []


def _cut(text: str, longest: int = 120) -> str:
    return text if len(text) <= longest else text[:longest].rpartition(",")[0] + ",…"


# ---- the statements, compiled once ----

_theirs, _ours, _their_array = job.alias("theirs"), job.alias("ours"), job_array.alias("their_array")
_PAIRS = (
    select(_theirs.c.array_index)
    .outerjoin(_ours, and_(_ours.c.array_id == bindparam("ours"), _ours.c.array_index == _theirs.c.array_index))
    .where(_theirs.c.array_id == bindparam("theirs"), _theirs.c.array_index >= bindparam("since"), _ours.c.id.is_(None))
    .order_by(_theirs.c.array_index)
)
_READY = _PAIRS.where(_theirs.c.state.in_(bindparam("states", expanding=True))).limit(bindparam("most"))
_FIRST_WITHOUT_ROW = _PAIRS.limit(1)
_THEIRS = select(job_array.c.state, job_array.c.position, job_array.c.spec).where(job_array.c.id == bindparam("theirs"))
_ROW = select(dependency.c.recorded_at).where(dependency.c.job_id == bindparam("ours"), dependency.c.kind == _EACH)
_ENDED_ELEMENTS = select(func.count()).select_from(job).where(job.c.state.in_(_TERMINAL))
_ENDS = _ENDED_ELEMENTS.where(job.c.array_id == bindparam("theirs"))
_MADE = select(func.count()).select_from(job).where(job.c.array_id == bindparam("ours"))
_ANY_COMPLETED = (
    select(job.c.id).where(job.c.array_id == bindparam("theirs"), job.c.state == JobState.COMPLETED.value).limit(1)
)
_THERE = select(job.c.array_index).where(
    job.c.array_id == bindparam("ours"), job.c.array_index.in_(bindparam("wanted", expanding=True))
)
_SEEN = (
    update(dependency)
    .where(dependency.c.job_id == bindparam("ours"), dependency.c.kind == _EACH)
    .values(seen=bindparam("seen_"), released_at=bindparam("released"))
)
_OPEN = (
    select(dependency.c.job_id)
    .join(job_array, job_array.c.id == dependency.c.job_id)
    .where(dependency.c.kind == _EACH, dependency.c.released_at.is_(None), job_array.c.state.in_(_ARRAY_LIVE))
)
_OPEN_OF = (
    select(dependency.c.job_id, dependency.c.after_job, _their_array.c.state)
    .outerjoin(_their_array, _their_array.c.id == dependency.c.after_job)
    .where(
        dependency.c.kind == _EACH,
        dependency.c.released_at.is_(None),
        dependency.c.job_id.in_(bindparam("names", expanding=True)),
    )
)
_AFTER = _OPEN.where(dependency.c.after_job.in_(bindparam("ended", expanding=True)))
_all_ends = _ENDED_ELEMENTS.where(job.c.array_id == dependency.c.after_job).correlate(dependency).scalar_subquery()
_NEWS = _OPEN.outerjoin(_their_array, _their_array.c.id == dependency.c.after_job).where(
    or_(
        and_(
            _their_array.c.state.in_(_ARRAY_ENDED),
            func.coalesce(dependency.c.seen, -1) != _all_ends + 1,
        ),
        and_(_their_array.c.state.in_(_ARRAY_LIVE), func.coalesce(dependency.c.seen, -1) != _all_ends),
        and_(_their_array.c.id.is_(None), dependency.c.recorded_at < bindparam("forgotten")),
    )
)
