"""A gang gives its place back: its GPUs, and CPUs and memory of hosts, in one transaction and for good."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, exists, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.store.database import change, insert_all_new, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import allocation, gpu, host, reservation
from gpu_platform.store.reservations import shares
from gpu_platform.store.reservations.allocations import LOCK_THEIR_GPUS, THEIR_GPUS, THEIRS_HELD, by_number
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
        give_back(session, {key: Return(faulty_gpus or {})}, now)


@dataclass(frozen=True)
class Return:
    """What is said of an attempt that gives back what it holds."""

    faulty_gpus: Mapping[str, str] = field(default_factory=dict)
    """As in :func:`release_gang`."""
    used: Mapping[str, object] = field(default_factory=dict)
    """What ``record_usage`` says of the attempt, for the event."""


# ---- the steps, inside a transaction; attempts.py, handover.py and restoring use them too ----


def close_reservation(session: Session, key: AttemptKey, now: datetime) -> bool:
    """Inside a transaction: the attempt can never reserve again. True: it held something, to :func:`give_back`."""
    return key in close_reservations(session, [key], now)


def close_reservations(session: Session, keys: Collection[AttemptKey], now: datetime) -> set[AttemptKey]:
    """Inside a transaction: as :func:`close_reservation`. Returns those that held something, to :func:`give_back`."""
    tombstones = [
        {"job_id": key.job_id, "attempt": key.attempt, "reserved_at": None, "released_at": now} for key in keys
    ]
    if insert_all_new(session, reservation, tombstones) == len(tombstones):
        return set()
    held = set()
    for theirs in by_number(keys):
        for job_id in session.scalars(_CLOSE, {**theirs, "now": now}):
            held.add(AttemptKey(job_id=job_id, attempt=theirs["key_attempt"]))
    return held


def give_back(session: Session, returns: Mapping[AttemptKey, Return], now: datetime) -> None:
    """Inside a transaction that has just closed the reservations: free everything that these attempts hold."""
    for theirs in by_number(returns):
        _give_back(session, theirs, returns, now)


def _give_back(
    session: Session, theirs: Mapping[str, Any], returns: Mapping[AttemptKey, Return], now: datetime
) -> None:
    draining = session.scalars(_LOCK_DRAINING, theirs).all()
    shares.release_host_resources(session, theirs)
    held = session.execute(LOCK_THEIR_GPUS, theirs).all()
    places = session.execute(_PLACES, theirs).all()
    session.execute(_FREE_GPUS, theirs)
    shares.release_shares(session, theirs)
    session.execute(_END_ALLOCATIONS, {**theirs, "now": now})
    by_job: dict[str, list[Any]] = {job_id: [] for job_id in theirs["key_jobs"]}
    for place in places:
        by_job[place.job_id].append(place)
    states = {row.uuid: row.state for row in held}
    for job_id, ours in by_job.items():
        key = AttemptKey(job_id=job_id, attempt=theirs["key_attempt"])
        mine = {place.gpu_uuid for place in ours}
        for uuid in states.keys() & mine & returns[key].faulty_gpus.keys():
            if states[uuid] in _HELD_IN_SERVICE:
                degrade_gpu(session, uuid, returns[key].faulty_gpus[uuid], now)
        data: dict[str, object] = {"gpus": sorted(uuid for uuid in mine if uuid is not None)}
        data |= {"hosts": sorted({place.host for place in ours}), **returns[key].used}
        append_event(session, "gang.released", _ACTOR, now, job_id=key.job_id, attempt=key.attempt, data=data)
    for uuid, state in states.items():
        if state == GpuState.DRAINING:
            _announce_drained(session, uuid, now)
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
    .where(
        reservation.c.job_id.in_(bindparam("key_jobs", expanding=True)),
        reservation.c.attempt == bindparam("key_attempt"),
        reservation.c.released_at.is_(None),
    )
    .values(released_at=bindparam("now"))
    .returning(reservation.c.job_id)
)
_LOCK_DRAINING = (
    select(host.c.name)
    .where(
        host.c.state == HostState.DRAINING.value,
        host.c.name.in_(select(allocation.c.host).where(THEIRS_HELD)),
    )
    .order_by(host.c.name)
    .with_for_update(key_share=True)
)
_PLACES = select(allocation.c.job_id, allocation.c.host, allocation.c.gpu_uuid).where(THEIRS_HELD)
"""Where each attempt holds what. Without a GPU: only CPUs and memory of the host."""
_FREE_GPUS = (
    update(gpu)
    .where(gpu.c.uuid.in_(THEIR_GPUS.where(allocation.c.exclusive)))
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
_END_ALLOCATIONS = update(allocation).where(THEIRS_HELD).values(released_at=bindparam("now"))
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
