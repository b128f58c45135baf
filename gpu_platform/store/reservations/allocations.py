"""Which attempt holds which GPU. ``reserving`` takes GPUs, ``releasing`` gives them back; here they are looked up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import bindparam, exists, func, literal, select
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey, jobs_by_attempt
from gpu_platform.store.database import reading
from gpu_platform.store.models import allocation, gpu, reservation


@reading
def holders(session: Session, gpu_uuid: str) -> list[AttemptKey]:
    """The attempts that hold the GPU, or a share of it."""
    return _keys(session, allocation.c.gpu_uuid == gpu_uuid)


@reading
def users(session: Session, gpu_uuid: str) -> dict[AttemptKey, datetime]:
    """The holders whose reservation is not parked, and since when they hold the GPU: only these may run processes on
    it."""
    query = select(allocation.c.job_id, allocation.c.attempt, func.min(allocation.c.reserved_at).label("since"))
    held = query.where(allocation.c.released_at.is_(None), allocation.c.gpu_uuid == gpu_uuid, ~_PARKED)
    by_attempt = (allocation.c.job_id, allocation.c.attempt)
    rows = session.execute(held.group_by(*by_attempt).order_by(*by_attempt))
    return {AttemptKey(job_id=row.job_id, attempt=row.attempt): row.since for row in rows}


@reading
def held_attempts(session: Session, host: str | None = None) -> list[AttemptKey]:
    """The attempts that hold GPUs, on ``host`` or anywhere."""
    return _keys(session, allocation.c.host == host if host is not None else literal(True))


class Holding(NamedTuple):
    """A GPU, or a share of it, that an attempt holds or has held."""

    host: str
    gpu_uuid: str
    since: datetime
    until: datetime | None
    """None: it is held now."""


@reading
def holdings(session: Session, job_id: str) -> list[Holding]:
    """All GPUs that the attempts of a job have held, by host and time."""
    return [Holding(*row) for row in session.execute(_HOLDINGS, {"job_id": job_id})]


@reading
def is_held(session: Session, key: AttemptKey) -> bool:
    """Does the attempt have a reservation that was not released?"""
    return session.scalar(_HELD, {"key_job": key.job_id, "key_attempt": key.attempt}) is not None


def those_held(session: Session, keys: Collection[AttemptKey]) -> set[AttemptKey]:
    """As :func:`is_held`, for several attempts: those that hold something."""
    return _those(session, _THOSE_HELD, keys)


def lock_held(session: Session, key: AttemptKey) -> bool:
    """Inside a transaction: does the attempt hold something? If so, nobody can release it before the commit."""
    return session.scalar(_LOCK_HELD, {"key_job": key.job_id, "key_attempt": key.attempt}) is not None


def lock_those_held(session: Session, keys: Collection[AttemptKey]) -> set[AttemptKey]:
    """As :func:`lock_held`, for several attempts: those that hold something."""
    return _those(session, _LOCK_THOSE_HELD, keys)


def by_number(keys: Iterable[AttemptKey]) -> Iterator[dict[str, Any]]:
    """The parameters of ``THEIRS_HELD``, once for each number that these attempts have."""
    for attempt, job_ids in jobs_by_attempt(keys).items():
        yield {"key_jobs": job_ids, "key_attempt": attempt}


def _those(session: Session, query: Any, keys: Collection[AttemptKey]) -> set[AttemptKey]:
    return {
        AttemptKey(job_id=job_id, attempt=theirs["key_attempt"])
        for theirs in by_number(keys)
        for job_id in session.scalars(query, theirs)
    }


def _keys(session: Session, condition: Any) -> list[AttemptKey]:
    query = select(allocation.c.job_id, allocation.c.attempt).where(allocation.c.released_at.is_(None), condition)
    rows = session.execute(query.distinct().order_by(allocation.c.job_id, allocation.c.attempt))
    return [AttemptKey(job_id=row.job_id, attempt=row.attempt) for row in rows]


# ---- the statements, compiled once ----

OURS = (allocation.c.job_id == bindparam("key_job")) & (allocation.c.attempt == bindparam("key_attempt"))
"""The allocations of one attempt, released ones too; ``key_job`` and ``key_attempt`` are given."""
THEIRS_HELD = (
    allocation.c.job_id.in_(bindparam("key_jobs", expanding=True))
    & (allocation.c.attempt == bindparam("key_attempt"))
    & allocation.c.released_at.is_(None)
)
"""What attempts hold that have the same number; ``key_jobs`` and ``key_attempt`` are given."""
THEIR_GPUS = select(allocation.c.gpu_uuid).where(THEIRS_HELD)
"""The GPUs that these attempts hold."""
LOCK_THEIR_GPUS = (
    select(gpu.c.uuid, gpu.c.state)
    .where(gpu.c.uuid.in_(THEIR_GPUS))
    .order_by(gpu.c.uuid)
    .with_for_update(key_share=True)
)
"""The rows of these GPUs, locked in the order of their uuids."""
THIS_RESERVATION = (reservation.c.job_id == bindparam("key_job")) & (reservation.c.attempt == bindparam("key_attempt"))
"""The reservation of this attempt."""

_PARKED = (
    exists()
    .where(
        reservation.c.job_id == allocation.c.job_id,
        reservation.c.attempt == allocation.c.attempt,
        reservation.c.parked,
    )
    .correlate(allocation)
)
_HOLDINGS = (
    select(allocation.c.host, allocation.c.gpu_uuid, allocation.c.reserved_at, allocation.c.released_at)
    .where(allocation.c.job_id == bindparam("job_id"), allocation.c.gpu_uuid.is_not(None))
    .order_by(allocation.c.host, allocation.c.reserved_at, allocation.c.gpu_uuid)
)
_HELD = select(literal(1)).where(THIS_RESERVATION, reservation.c.released_at.is_(None))
_LOCK_HELD = _HELD.with_for_update(read=True)
_THOSE_HELD = select(reservation.c.job_id).where(
    reservation.c.job_id.in_(bindparam("key_jobs", expanding=True)),
    reservation.c.attempt == bindparam("key_attempt"),
    reservation.c.released_at.is_(None),
)
_LOCK_THOSE_HELD = _THOSE_HELD.order_by(reservation.c.job_id).with_for_update(read=True)
