"""One step of an array in one transaction: elements that have ended give back what they hold, others get it, and the
next ones join the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import Store, writing
from gpu_platform.store.jobs.checkpoints import Start, write_start
from gpu_platform.store.jobs.elements import (
    KnownArray,
    MadeElements,
    known_array,
    make_chosen,
    make_elements,
    queue_elements,
)
from gpu_platform.store.models import job
from gpu_platform.store.reservations import batches
from gpu_platform.store.reservations.attempts import EndedAttempt
from gpu_platform.store.reservations.reserving import Taken


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


@dataclass(frozen=True)
class ElementStepDone:
    """What a step led to."""

    taken: dict[AttemptKey, Taken] = field(default_factory=dict)
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
    places = batches.take_places(session, dict(step.placed), now)
    refused |= places.refused
    made = _NONE_MADE
    if step.chosen is not None:
        made = make_chosen(session, known, step.chosen.queued, step.chosen.cancelled, step.first, now)
    elif step.add:
        made = make_elements(session, known, step.first, step.add, step.skipped, now)
    stay = [AttemptKey(job_id=key.job_id, attempt=key.attempt + 1) for key in step.stays if key not in refused]
    waiting = _still_queued(session, [*step.again, *places.conflicts, *stay], now)
    if not known.spec.spans_hosts:
        waiting |= dict.fromkeys(made.keys, now)
    queue_elements(session, known, waiting, now)
    return ElementStepDone(
        taken=places.taken,
        conflicts={key: error.message for key, error in places.conflicts.items()},
        made=made.keys,
        skipped=made.skipped,
        position=made.position,
        left=made.left,
        refused=list(refused),
    )


def _still_queued(session: Session, keys: Sequence[AttemptKey], now: datetime) -> dict[AttemptKey, datetime]:
    """Those that wait -> since when: they keep their places in the queue."""
    if not keys:
        return {}
    rows = session.execute(_QUEUED, {"ids": [key.job_id for key in keys]})
    queued = {row.id: row for row in rows}
    waiting = [key for key in keys if key.job_id in queued and queued[key.job_id].attempt < key.attempt]
    return {key: queued[key.job_id].queued_at or now for key in waiting}


_NONE_MADE = MadeElements([], 0, 0, 0)
_QUEUED = select(job.c.id, job.c.attempt, job.c.queued_at).where(
    job.c.id.in_(bindparam("ids", expanding=True)), job.c.state == JobState.QUEUED.value
)
