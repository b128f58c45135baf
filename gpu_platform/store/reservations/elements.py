"""One step of an array in one transaction: elements that have ended give back what they hold, others get it, and the
next ones join the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import ReservationConflict
from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.element_changes import ElementValues
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import Store, writing
from gpu_platform.store.jobs.checkpoints import Start, write_start
from gpu_platform.store.jobs.element_values import limits_of, were_changed
from gpu_platform.store.jobs.elements import MadeElements, make_chosen, make_elements, queue_elements
from gpu_platform.store.jobs.known_arrays import KnownArray, known_array
from gpu_platform.store.models import job
from gpu_platform.store.reservations import batches
from gpu_platform.store.reservations.attempts import EndedAttempt
from gpu_platform.store.reservations.batches import BatchOfPlaces


@dataclass(frozen=True)
class ChosenElements:
    """Elements that are made whatever their place."""

    queued: IndexSet
    cancelled: IndexSet


@dataclass(frozen=True)
class ElementStep:
    """What has happened to elements since the last step, and how many more the array may have under way."""

    ended: Sequence[EndedAttempt] = ()
    running: Sequence[AttemptKey] = ()
    placed: Sequence[tuple[AttemptKey, Placement]] = ()
    again: Sequence[AttemptKey] = ()
    """They wait, but the queue has lost them."""
    stays: Sequence[AttemptKey] = ()
    """Attempts of ``ended`` whose elements wait for a placement again."""
    started: Sequence[Start] = ()
    """Later attempts of ``running``."""
    first: int = 0
    """So many elements were made before."""
    add: int = 0
    """How many more may be made."""
    skipped: IndexSet | None = None
    """Elements that were cancelled before they were made."""
    chosen: ChosenElements | None = None
    """Instead of ``add``, for an array whose elements wait for those of another one: these are made."""
    decided_limits: Mapping[AttemptKey, int] = field(default_factory=dict[AttemptKey, int])
    """Of ``placed``: for which time limit, in seconds, the leader decided. Missing: for none, or it did not say."""


@dataclass(frozen=True)
class ElementStepDone:
    """What a step led to."""

    taken: dict[AttemptKey, Reserved] = field(default_factory=dict)
    conflicts: dict[AttemptKey, str] = field(default_factory=dict)
    """Why a placement could not be reserved. These elements wait again."""
    made: list[AttemptKey] = field(default_factory=list)
    """The first attempts of elements that are new."""
    skipped: int = 0
    """How many new elements were made CANCELLED."""
    position: int = 0
    """So many elements have been made."""
    left: int = 0
    """How many elements have not been made yet. 0 if none was asked for, too."""
    refused: list[AttemptKey] = field(default_factory=list)
    """The database knows more of these than their workflow."""


def advance_elements(store: Store, array_id: str, step: ElementStep, now: datetime) -> ElementStepDone:
    """Carry out the step. Raises :class:`NotFound` if there is no such array."""
    return _advance(store, known_array(store, array_id), step, now)


@writing
def _advance(session: Session, known: KnownArray, step: ElementStep, now: datetime) -> ElementStepDone:
    # First what gives back: the array's next elements may get it.
    refused = batches.end_attempts(session, step.ended, now)
    refused |= batches.mark_running(session, step.running, now)
    for start in step.started:
        write_start(session, start, now)
    places = _take(session, known, step, now)
    refused |= places.refused
    made = _NONE_MADE
    if step.chosen is not None:
        made = make_chosen(session, known, step.chosen.queued, step.chosen.cancelled, step.first, now)
    elif step.add:
        made = make_elements(session, known, step.first, step.add, step.skipped, now)
    stay = [AttemptKey(job_id=key.job_id, attempt=key.attempt + 1) for key in step.stays if key not in refused]
    new = [] if known.spec.spans_hosts or made.held else made.keys
    waiting, differ = _still_queued(session, [*step.again, *places.conflicts, *stay], now)
    if made.may_differ:
        new_waiting, new_differ = _still_queued(session, new, now)
        waiting, differ = waiting | new_waiting, differ | new_differ
    else:
        waiting |= dict.fromkeys(new, now)
    queue_elements(session, known, waiting, now, differ)
    return ElementStepDone(
        taken=places.taken,
        conflicts={key: error.message for key, error in places.conflicts.items()},
        made=made.keys,
        skipped=made.skipped,
        position=made.position,
        left=made.left,
        refused=list(refused),
    )


def _take(session: Session, known: KnownArray, step: ElementStep, now: datetime) -> BatchOfPlaces:
    """Reserve what the leader found, and read with which time limits. An answer to what an element asked before its
    limit became longer is a conflict: what was promised to others counts on the shorter one."""
    placed = dict(step.placed)
    limits: dict[str, LimitChange] = {}
    if placed and were_changed(session, known.array_id):
        limits = limits_of(session, [key.job_id for key in placed])
    outdated = {
        key: ReservationConflict(f"job {key.job_id} got a longer time limit meanwhile, and asks again")
        for key, decided_s in step.decided_limits.items()
        if key in placed and key.job_id in limits and _is_longer(limits[key.job_id], decided_s)
    }
    places = batches.take_places(session, {key: placed[key] for key in placed if key not in outdated}, now)
    places.conflicts.update(outdated)
    for key in [key for key in places.taken if key.job_id in limits]:
        places.taken[key] = places.taken[key].model_copy(update={"limit": limits[key.job_id]})
    return places


def _is_longer(limit: LimitChange, seconds: int) -> bool:
    return limit.time_limit_s is None or limit.time_limit_s > seconds


def _still_queued(
    session: Session, keys: Sequence[AttemptKey], now: datetime
) -> tuple[dict[AttemptKey, datetime], dict[AttemptKey, ElementValues]]:
    """Those that wait, and are not held -> since when: they keep their places in the queue. And their values, of those
    that may have other ones than their array's submission. Those that were changed ask with what they say now."""
    if not keys:
        return {}, {}
    queued = {row.id: row for row in session.execute(_QUEUED, {"ids": [key.job_id for key in keys]})}
    waiting = {key: queued[key.job_id] for key in keys if key.job_id in queued}
    waiting = {key: row for key, row in waiting.items() if row.attempt < key.attempt}
    if anew := [row.id for row in waiting.values() if row.asks_anew is not None]:
        session.execute(_ASK_NOW, {"ids": anew})
    differ = {
        key: ElementValues(
            priority=row.priority,
            limit=None if row.changed_limit is None else LimitChange.model_validate_json(row.changed_limit),
        )
        for key, row in waiting.items()
    }
    return {key: row.queued_at or now for key, row in waiting.items()}, differ


_NONE_MADE = MadeElements([], 0, 0, 0)
_QUEUED = (
    select(job.c.id, job.c.attempt, job.c.queued_at, job.c.priority, job.c.changed_limit, job.c.asks_anew)
    .where(job.c.id.in_(bindparam("ids", expanding=True)), job.c.state == JobState.QUEUED.value, job.c.held.is_(None))
    .order_by(job.c.id)
    .with_for_update(key_share=True)
)
_ASK_NOW = update(job).where(job.c.id.in_(bindparam("ids", expanding=True))).values(asks_anew=None)
