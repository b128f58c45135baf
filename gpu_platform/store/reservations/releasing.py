"""A gang gives its place back: its GPUs, and CPUs and memory of hosts, in one transaction and for good."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import bindparam, exists, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.store.database import change, insert_new, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import allocation, gpu, host, reservation
from gpu_platform.store.reservations import shares
from gpu_platform.store.reservations.allocations import LOCK_HELD_GPUS, OUR_HELD_GPUS, OURS, THIS_RESERVATION
from gpu_platform.store.transitions import next_state

_ACTOR = "control"
_HELD_IN_SERVICE = [state.value for state in (GpuState.ALLOCATED, GpuState.IN_USE, GpuState.DRAINING)]
_IN_SERVICE = [GpuState.AVAILABLE.value, GpuState.DRAINED.value, *_HELD_IN_SERVICE]


@writing
def release_gang(
    session: Session, key: AttemptKey, *, now: datetime, faulty_gpus: Mapping[str, str] | None = None
) -> None:
    """Give back everything the attempt holds and close it for good: a ``reserve`` that comes later loses.

    Idempotent, also when the attempt never reserved anything. ``faulty_gpus`` maps GPU uuids to the reason why
    they become DEGRADED instead of AVAILABLE. A GPU that is out of service stays as it is. A host that was DRAINING for
    this gang becomes DRAINED.
    """
    if close_reservation(session, key, now):
        give_back(session, key, now, faulty_gpus or {})


# ---- the steps, inside a transaction; attempts.py, handover.py and restoring use them too ----


def close_reservation(session: Session, key: AttemptKey, now: datetime) -> bool:
    """Inside a transaction: the attempt can never reserve again. True: it held something, to :func:`give_back`."""
    tombstone = {"job_id": key.job_id, "attempt": key.attempt, "reserved_at": None, "released_at": now}
    if insert_new(session, reservation, tombstone):
        return False
    return change(session, _CLOSE, {"key_job": key.job_id, "key_attempt": key.attempt, "now": now}) == 1


def give_back(
    session: Session,
    key: AttemptKey,
    now: datetime,
    faulty_gpus: Mapping[str, str],
    used: Mapping[str, object] | None = None,
) -> None:
    """Inside a transaction that has just closed the reservation: free everything that the attempt holds.

    ``faulty_gpus``: as in :func:`release_gang`. ``used``: what ``record_usage`` says of the attempt, for the event.
    """
    ours = {"key_job": key.job_id, "key_attempt": key.attempt}
    draining = session.scalars(_LOCK_DRAINING, ours).all()
    shares.release_host_resources(session, key)
    held = session.execute(LOCK_HELD_GPUS, ours).all()
    without_gpus = set(session.scalars(_HOSTS_WITHOUT_GPUS, ours))
    session.execute(_FREE_GPUS, ours)
    shares.release_shares(session, key)
    session.execute(_END_ALLOCATIONS, {**ours, "now": now})
    for row in held:
        if row.uuid in faulty_gpus and row.state in _HELD_IN_SERVICE:
            degrade_gpu(session, row.uuid, faulty_gpus[row.uuid], now)
        elif row.state == GpuState.DRAINING:
            _announce_drained(session, row.uuid, now)
    data: dict[str, object] = {"gpus": [row.uuid for row in held]}
    data |= {"hosts": sorted({row.host for row in held} | without_gpus), **(used or {})}
    append_event(session, "gang.released", _ACTOR, now, job_id=key.job_id, attempt=key.attempt, data=data)
    for name in draining:
        settle_drain(session, name, now)


def degrade_gpu(session: Session, uuid: str, reason: str, now: datetime) -> None:
    """Inside a transaction: a GPU in use becomes DEGRADED; one that is out of service already stays as it is."""
    name = session.scalar(_DEGRADE, {"uuid_": uuid, "why": reason})
    if name is not None:
        data = {"state": GpuState.DEGRADED.value, "reason": reason}
        append_event(session, "gpu.state", _ACTOR, now, host=name, gpu_uuid=uuid, data=data)


def settle_drain(session: Session, name: str, now: datetime) -> None:
    """Inside a transaction that has locked the DRAINING host: it is DRAINED once nothing is held there."""
    held = exists().where(allocation.c.host == host.c.name, allocation.c.released_at.is_(None))
    done = update(host).where(host.c.name == name, host.c.state == HostState.DRAINING.value, ~held)
    if change(session, done.values(state=next_state(host.c.state, {HostState.DRAINING: HostState.DRAINED}))):
        append_event(session, "host.state", _ACTOR, now, host=name, data={"state": HostState.DRAINED.value})


def _announce_drained(session: Session, uuid: str, now: datetime) -> None:
    row = session.execute(_DRAINED_GPU, {"of_uuid": uuid}).one_or_none()
    if row is not None:
        data = {"state": GpuState.DRAINED.value, "reason": row.reason}
        append_event(session, "gpu.state", _ACTOR, now, host=row.host, gpu_uuid=uuid, data=data)


# ---- the statements, compiled once ----

_CLOSE = (
    update(reservation)
    .where(THIS_RESERVATION, reservation.c.released_at.is_(None))
    .values(released_at=bindparam("now"))
)
_LOCK_DRAINING = (
    select(host.c.name)
    .where(
        host.c.state == HostState.DRAINING.value,
        host.c.name.in_(select(allocation.c.host).where(OURS, allocation.c.released_at.is_(None))),
    )
    .order_by(host.c.name)
    .with_for_update(key_share=True)
)
_HOSTS_WITHOUT_GPUS = (
    select(allocation.c.host)
    .where(OURS, allocation.c.released_at.is_(None), allocation.c.gpu_uuid.is_(None))
    .distinct()
)
"""Hosts on which the attempt holds only CPUs and memory."""
_FREE_GPUS = (
    update(gpu)
    .where(gpu.c.uuid.in_(OUR_HELD_GPUS.where(allocation.c.exclusive)))
    .values(
        exclusive_holders=0,
        sm_percent_used=0,
        memory_used_mib=0,
        state=next_state(
            gpu.c.state,
            {
                GpuState.ALLOCATED: GpuState.AVAILABLE,
                GpuState.IN_USE: GpuState.AVAILABLE,
                GpuState.DRAINING: GpuState.DRAINED,
            },
        ),
    )
)
_END_ALLOCATIONS = (
    update(allocation).where(OURS, allocation.c.released_at.is_(None)).values(released_at=bindparam("now"))
)
_DRAINED_GPU = select(gpu.c.host, gpu.c.reason).where(
    gpu.c.uuid == bindparam("of_uuid"), gpu.c.state == GpuState.DRAINED.value
)
_DEGRADE = (
    update(gpu)
    .where(gpu.c.uuid == bindparam("uuid_"), gpu.c.state.in_(_IN_SERVICE))
    .values(
        state=next_state(gpu.c.state, {GpuState(state): GpuState.DEGRADED for state in _IN_SERVICE}),
        state_source="fault",
        reason=bindparam("why"),
    )
    .returning(gpu.c.host)
)
