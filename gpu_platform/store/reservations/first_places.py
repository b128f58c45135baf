"""The first place of a job: the leader reserves it, in the transaction in which it answers.

A job that was just admitted asks without a task token. The leader reserves what it decides for such requests, many in
one transaction, and nobody is told: the job's step looks for the reservation here. A job that gets no place soon asks
again with a task token (``place_gang``). Then its workflow reserves the leader's answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import PlatformError, StaleEpoch
from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.placement_request import NO_TOKEN, TOKEN_COMES, PlacementRequest
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import Store, reading, writing
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.leadership.leases import host_terms
from gpu_platform.store.models import job, reservation
from gpu_platform.store.reservations.batches import take_places

FIRST_ATTEMPT = 1


def admit_and_ask(store: Store, job_id: str, now: datetime) -> tuple[bool, Reserved | None]:
    """Admit a job, and ask for its first place if it may start now: PENDING -> QUEUED, with an entry in the queue.

    Returns whether it asks, and what its first attempt holds already: then this was done before. Raises as
    :func:`gpu_platform.store.jobs.jobs.admit_job` does.
    """
    return _admit_and_ask(store, job_id, store, now)


@writing
def _admit_and_ask(session: Session, job_id: str, store: Store, now: datetime) -> tuple[bool, Reserved | None]:
    row = jobs.admit_row(session, job_id, store, now)
    key = AttemptKey(job_id=job_id, attempt=FIRST_ATTEMPT)
    if (held := _reserved(session, [key]).get(key)) is not None:
        return False, held
    waits = row.retry_at is not None and row.retry_at > now
    if row.state != JobState.QUEUED or row.attempt >= FIRST_ATTEMPT or waits:
        return False, None
    if JobSpec.model_validate_json(row.spec).after or row.held is not None:
        return False, None
    queue.join_queue(session, key, row, NO_TOKEN, now)
    return True, None


@writing
def reserve_places(
    session: Session, decided: Sequence[tuple[PlacementRequest, Placement]], now: datetime
) -> dict[AttemptKey, PlatformError]:
    """Reserve many placements in one transaction. Returns attempt -> why it was refused; it holds nothing then.

    A job that does not ask in this way any more is refused with :class:`AsksOtherwise`. Raises :class:`StaleEpoch`;
    then nothing was reserved.
    """
    places = {AttemptKey(job_id=one.job_id, attempt=one.attempt): placement for one, placement in decided}
    batch = take_places(session, places, now, task_token=NO_TOKEN)
    refused = batch.conflicts | batch.refused
    for error in refused.values():
        if isinstance(error, StaleEpoch):
            raise error
    return refused


@reading
def reserved_places(session: Session, keys: Sequence[AttemptKey]) -> dict[AttemptKey, Reserved]:
    """Those of ``keys`` that the leader has reserved a placement for, and that have not gone on since."""
    return _reserved(session, keys)


@writing
def stop_asking(session: Session, key: AttemptKey) -> Reserved | None:
    """Let the leader reserve nothing for the job any more. Returns the place if it was reserved just now.

    The job keeps its place in the queue.
    """
    if queue.replace_token(session, key, NO_TOKEN, TOKEN_COMES):
        return None
    return _reserved(session, [key]).get(key)


def _reserved(session: Session, keys: Sequence[AttemptKey]) -> dict[AttemptKey, Reserved]:
    attempts = {key.job_id: key for key in keys}
    found = {}
    for row in session.execute(_RESERVED, {"job_ids": list(attempts)}):
        key = attempts[row.id]
        if row.attempt == key.attempt:
            placement = Placement.model_validate_json(row.placement)
            limit = None if row.changed_limit is None else LimitChange.model_validate_json(row.changed_limit)
            terms = host_terms(session, key, placement.hosts)
            found[key] = Reserved(placement=placement, terms=terms, limit=limit)
    return found


# ---- the statements, compiled once ----

_RESERVED = (
    select(job.c.id, job.c.attempt, job.c.placement, job.c.changed_limit)
    .join(reservation, (reservation.c.job_id == job.c.id) & (reservation.c.attempt == job.c.attempt))
    .where(
        job.c.id.in_(bindparam("job_ids", expanding=True)),
        job.c.state == JobState.ALLOCATED.value,
        reservation.c.reserved_at.is_not(None),
        reservation.c.released_at.is_(None),
    )
)
