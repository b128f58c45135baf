"""Who holds which GPU, or CPUs and memory of a host: the one place where they are taken and given back.

A gang is taken in one transaction or not at all. Three independent guards make sure that no GPU is held twice: the
conditional update (``state = 'AVAILABLE' AND exclusive_holders = 0``, its row count checked), the CHECK constraints
of ``gpu``, and the partial unique index on ``allocation(gpu_uuid)`` of what is not released. For shares of GPUs, and
CPUs and memory of hosts, see ``shares``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, exists, insert, literal, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import IllegalTransition, NotFound, ReservationConflict, StaleEpoch
from gpu_platform.domain.hosts.share import first_use
from gpu_platform.domain.jobs.attempt import AttemptKey
from gpu_platform.domain.placing.placement import Placement
from gpu_platform.domain.states import JOB_TRANSITIONS, GpuState, HostState, JobState, check_transition
from gpu_platform.store.database import change, insert_new, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs.queue import leave_queue
from gpu_platform.store.leadership.leader import EPOCH
from gpu_platform.store.leadership.leases import host_terms
from gpu_platform.store.models import allocation, gpu, host, job, reservation
from gpu_platform.store.reservations import shares
from gpu_platform.store.transitions import next_state

_ACTOR = "control"
_HELD_IN_SERVICE = [state.value for state in (GpuState.ALLOCATED, GpuState.IN_USE, GpuState.DRAINING)]
_IN_SERVICE = [GpuState.AVAILABLE.value, GpuState.DRAINED.value, *_HELD_IN_SERVICE]


@dataclass(frozen=True)
class Taken:
    """A place that an attempt holds."""

    terms: dict[str, int]
    """The fencing token of each host, for the launch."""
    repeated: bool = False
    """It was taken before: ranks may run there already."""


@writing
def reserve_gang(session: Session, key: AttemptKey, placement: Placement, *, now: datetime) -> Taken:
    """Take every GPU of the placement for the attempt, or none: QUEUED -> ALLOCATED, AVAILABLE -> ALLOCATED.

    Repeating it while the attempt holds its GPUs is a no-op. Raises :class:`ReservationConflict` (naming the GPU, or
    because the attempt was released before), :class:`StaleEpoch`, :class:`IllegalTransition`, :class:`NotFound`.
    """
    claim = {"job_id": key.job_id, "attempt": key.attempt, "epoch": placement.epoch, "reserved_at": now}
    if not insert_new(session, reservation, claim):
        if lock_held(session, key):
            _check_place(session, key, placement)
            return Taken(host_terms(session, key, placement.hosts), repeated=True)
        raise ReservationConflict(f"attempt {key} was released before it could reserve; start a new attempt")
    take_job(session, key, placement, now)
    _check_epoch(session, placement)
    take_gpus(session, key, placement, now)
    leave_queue(session, key.job_id, now)
    announce(session, key, placement, now)
    return Taken(host_terms(session, key, placement.hosts))


@writing
def mark_running(session: Session, key: AttemptKey, now: datetime) -> None:
    """Every rank has a process: the job is RUNNING (by way of STARTING), its GPUs are IN_USE. Idempotent.

    Raises :class:`NotFound`, :class:`ReservationConflict` (the attempt does not hold GPUs), :class:`IllegalTransition`.
    """
    set_running(session, key, now)


def set_running(session: Session, key: AttemptKey, now: datetime) -> None:
    """Inside a transaction: see :func:`mark_running`."""
    if not lock_held(session, key):
        if session.execute(_LOCK_JOB, {"key_job": key.job_id}).one_or_none() is None:
            raise NotFound(f"there is no job {key.job_id!r}", job_id=key.job_id)
        raise ReservationConflict(f"attempt {key} holds no GPUs; it was released or never reserved")
    row = session.execute(_LOCK_JOB, {"key_job": key.job_id}).one()
    if row.state == JobState.RUNNING:
        return
    check_transition(f"job {key.job_id}", JobState(row.state), JobState.RUNNING)
    session.execute(_JOB_RUNNING, {"key_job": key.job_id, "now": now})
    ours = {"key_job": key.job_id, "key_attempt": key.attempt}
    session.execute(_ALLOCATIONS_RUNNING, {**ours, "now": now})
    session.execute(_LOCK_HELD_GPUS, ours)
    session.execute(_GPUS_IN_USE, ours)
    where = {"job_id": key.job_id, "attempt": key.attempt}
    if row.state == JobState.ALLOCATED:
        append_event(session, "job.starting", _ACTOR, now, **where)
    append_event(session, "job.running", _ACTOR, now, **where)


@writing
def release_gang(
    session: Session, key: AttemptKey, *, now: datetime, quarantine: Mapping[str, str] | None = None
) -> None:
    """Give back everything the attempt holds and close it for good: a ``reserve`` that comes later loses.

    Idempotent, also when the attempt never reserved anything. ``quarantine`` maps GPU uuids to the reason why they
    become DEGRADED instead of AVAILABLE. A GPU that is out of service stays as it is. A host that was DRAINING for
    this gang becomes DRAINED.
    """
    if close_reservation(session, key, now):
        give_back(session, key, now, quarantine or {})


def close_reservation(session: Session, key: AttemptKey, now: datetime) -> bool:
    """Inside a transaction: the attempt can never reserve again. True if it held GPUs, to :func:`give_back`."""
    tombstone = {"job_id": key.job_id, "attempt": key.attempt, "reserved_at": None, "released_at": now}
    if insert_new(session, reservation, tombstone):
        return False
    return change(session, _CLOSE, {"key_job": key.job_id, "key_attempt": key.attempt, "now": now}) == 1


def give_back(session: Session, key: AttemptKey, now: datetime, quarantine: Mapping[str, str]) -> None:
    """Inside a transaction that has just closed the reservation."""
    ours = {"key_job": key.job_id, "key_attempt": key.attempt}
    draining = session.scalars(_LOCK_DRAINING, ours).all()
    shares.release_host_resources(session, key)
    held = session.execute(_LOCK_HELD_GPUS, ours).all()
    without_gpus = set(session.scalars(_HOSTS_WITHOUT_GPUS, ours))
    session.execute(_FREE_GPUS, ours)
    shares.release_shares(session, key)
    session.execute(_END_ALLOCATIONS, {**ours, "now": now})
    for row in held:
        if row.uuid in quarantine and row.state in _HELD_IN_SERVICE:
            quarantine_gpu(session, row.uuid, quarantine[row.uuid], now)
        elif row.state == GpuState.DRAINING:
            _announce_drained(session, row.uuid, now)
    data = {"gpus": [row.uuid for row in held], "hosts": sorted({row.host for row in held} | without_gpus)}
    append_event(session, "gang.released", _ACTOR, now, job_id=key.job_id, attempt=key.attempt, data=data)
    for name in draining:
        settle_drain(session, name, now)


@reading
def holders(session: Session, gpu_uuid: str) -> list[AttemptKey]:
    """The attempts that hold the GPU, or a share of it."""
    return _keys(session, allocation.c.gpu_uuid == gpu_uuid)


@reading
def users(session: Session, gpu_uuid: str) -> list[AttemptKey]:
    """The holders whose reservation is not parked: only these may run processes on the GPU."""
    return _keys(session, (allocation.c.gpu_uuid == gpu_uuid) & ~_PARKED)


@reading
def held_attempts(session: Session, host: str | None = None) -> list[AttemptKey]:
    """The attempts that hold GPUs, on ``host`` or anywhere."""
    return _keys(session, allocation.c.host == host if host is not None else literal(True))


@reading
def is_held(session: Session, key: AttemptKey) -> bool:
    return holds(session, key)


def announce(session: Session, key: AttemptKey, placement: Placement, now: datetime) -> None:
    """Inside a transaction: the events of a gang that has its place."""
    where = {"job_id": key.job_id, "attempt": key.attempt}
    data = {
        "hosts": placement.hosts,
        "gpus": placement.gpu_uuids,
        "slices": [part.model_dump(mode="json", exclude_defaults=True) for part in placement.slices],
        "level": placement.level.value,
        "why": placement.why,
        "bandwidth_gb_s": placement.bandwidth_gb_s,
        "decided_in_ms": placement.decided_in_ms,
    }
    append_event(session, "job.placed", "scheduler", now, data=data, **where)
    append_event(
        session, "gang.reserved", _ACTOR, now, data={"gpus": placement.gpu_uuids, "hosts": placement.hosts}, **where
    )


def quarantine_gpu(session: Session, uuid: str, reason: str, now: datetime) -> None:
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


# ---- the steps ----


def take_job(session: Session, key: AttemptKey, placement: Placement, now: datetime) -> None:
    """Inside a transaction: QUEUED -> ALLOCATED, at this attempt and place."""
    ours = {"key_job": key.job_id, "key_attempt": key.attempt}
    if change(session, _TAKE_JOB, {**ours, "placed": placement.model_dump_json(), "now": now}):
        return
    row = session.execute(_LOCK_JOB, {"key_job": key.job_id}).one_or_none()
    if row is None:
        raise NotFound(f"there is no job {key.job_id!r}", job_id=key.job_id)
    if row.state != JobState.QUEUED:
        raise _illegal(key, row.state, JobState.ALLOCATED)
    raise ReservationConflict(f"attempt {key} is outdated: job {key.job_id} is at attempt {row.attempt}")


def _check_place(session: Session, key: AttemptKey, placement: Placement) -> None:
    """It holds GPUs: these, unless a workflow that is older than the row was given others."""
    held = session.scalars(_HELD_WHERE, {"key_job": key.job_id, "key_attempt": key.attempt}).all()
    if sorted(held) != sorted(placement.gpu_uuids) and placement.gpu_uuids:
        raise ReservationConflict(f"attempt {key} holds other GPUs already: {', '.join(held)}")


def _check_epoch(session: Session, placement: Placement) -> None:
    if not placement.epoch:
        return
    epoch = session.scalar(_LOCKED_EPOCH) or 0
    if placement.epoch != epoch:
        raise StaleEpoch(f"a scheduler of epoch {placement.epoch} decided this, but epoch {epoch} leads now")


def take_gpus(
    session: Session, key: AttemptKey, placement: Placement, now: datetime, *, on_lost_hosts: bool = False
) -> None:
    """Inside a transaction: see :func:`reserve_gang`. ``on_lost_hosts``: its ranks run there already."""
    claims = shares.allocation_items(placement)
    uuids = [claim.uuid for claim in claims if claim.uuid is not None]
    if len(set(uuids)) != len(uuids) or not claims:
        raise ReservationConflict(f"the placement of {key} names a GPU twice, or none at all")
    with_room = shares.need_host_resources(claims)
    names = sorted({claim.host for claim in claims})
    hosts = {row.name: row.state for row in session.execute(_TO_TAKE[with_room], {"names": names})}
    if on_lost_hosts:
        hosts = dict.fromkeys(hosts, HostState.READY.value)
    if with_room:
        shares.take_host_resources(session, claims)
    rows = {row.uuid: row for row in session.execute(_LOCK_GPUS, {"uuids": uuids})} if uuids else {}
    shared = [claim for claim in claims if claim.grant is not None]
    namespace = shares.namespace_of(session, key.job_id) if shared else ""
    for claim in claims:
        if claim.uuid is None:
            _check_host(claim, hosts.get(claim.host))
        else:
            _check_gpu(claim, rows.get(claim.uuid), hosts.get(claim.host), namespace)
    whole = [claim.uuid for claim in claims if claim.grant is None and claim.uuid is not None]
    if whole and change(session, _TAKE_GPUS, {"uuids": whole}) != len(whole):
        raise ReservationConflict(f"one of {', '.join(whole)} was taken meanwhile")
    for claim in shared:
        if claim.grant is None or claim.uuid is None:
            continue
        if not shares.take_share(session, claim.uuid, first_use(claim.grant, namespace)):
            raise ReservationConflict(f"a part of {claim.uuid} was taken meanwhile", gpu_uuid=claim.uuid)
    held = [
        {
            "job_id": key.job_id,
            "attempt": key.attempt,
            "number": number,
            "gpu_uuid": claim.uuid,
            "host": claim.host,
            "reserved_at": now,
            **shares.allocation_values(claim, rows[claim.uuid].memory_mib if claim.uuid is not None else 0),
        }
        for number, claim in enumerate(claims)
    ]
    try:
        session.execute(_ALLOCATE, held)
    except IntegrityError as error:
        raise ReservationConflict(f"one of {', '.join(uuids)} is held already") from error


def _check_host(claim: shares.AllocationItem, state: str | None) -> None:
    """For a slice without GPUs."""
    if state != HostState.READY:
        problem = "is not registered" if state is None else f"is {state}"
        raise ReservationConflict(f"host {claim.host} {problem}", host=claim.host)


def _check_gpu(claim: shares.AllocationItem, row: Any, host_state: str | None, namespace: str) -> None:
    problem = None
    if row is None:
        problem = "is not registered"
    elif row.host != claim.host:
        problem = f"is on {row.host}, not on {claim.host}"
    elif host_state != HostState.READY:
        problem = f"is on {claim.host}, which is {host_state}"
    elif claim.grant is not None:
        refused = shares.check_share(row, first_use(claim.grant, namespace))
        problem = refused and f"on {claim.host} {refused}"
    elif row.state != GpuState.AVAILABLE:
        problem = f"on {claim.host} is {row.state}" + (f" ({row.reason})" if row.reason else "")
    elif row.exclusive_holders or row.sm_percent_used or row.mig_mask:
        problem = f"on {claim.host} is partly taken"
    if problem is not None:
        raise ReservationConflict(f"GPU {claim.uuid} {problem}", gpu_uuid=claim.uuid, host=claim.host)


def holds(session: Session, key: AttemptKey) -> bool:
    """Inside a transaction: see :func:`is_held`."""
    return session.scalar(_HELD, {"key_job": key.job_id, "key_attempt": key.attempt}) is not None


def lock_held(session: Session, key: AttemptKey) -> bool:
    """Inside a transaction: does the attempt hold something? If so, nobody can release it before the commit."""
    return session.scalar(_LOCK_HELD, {"key_job": key.job_id, "key_attempt": key.attempt}) is not None


def _keys(session: Session, condition: Any) -> list[AttemptKey]:
    query = select(allocation.c.job_id, allocation.c.attempt).where(allocation.c.released_at.is_(None), condition)
    rows = session.execute(query.distinct().order_by(allocation.c.job_id, allocation.c.attempt))
    return [AttemptKey(job_id=row.job_id, attempt=row.attempt) for row in rows]


def _illegal(key: AttemptKey, current: str, wanted: JobState) -> IllegalTransition:
    allowed = sorted(JOB_TRANSITIONS[JobState(current)])
    return IllegalTransition(subject=f"job {key.job_id}", current=current, wanted=wanted.value, allowed=allowed)


# ---- the statements, compiled once ----

_OURS = (allocation.c.job_id == bindparam("key_job")) & (allocation.c.attempt == bindparam("key_attempt"))
_OUR_HELD_GPUS = select(allocation.c.gpu_uuid).where(_OURS, allocation.c.released_at.is_(None))
_HELD_WHERE = select(allocation.c.gpu_uuid).where(
    _OURS, allocation.c.released_at.is_(None), allocation.c.gpu_uuid.is_not(None)
)
_THIS_RESERVATION = (reservation.c.job_id == bindparam("key_job")) & (reservation.c.attempt == bindparam("key_attempt"))

_PARKED = (
    exists()
    .where(
        reservation.c.job_id == allocation.c.job_id,
        reservation.c.attempt == allocation.c.attempt,
        reservation.c.parked,
    )
    .correlate(allocation)
)
_HELD = select(literal(1)).where(_THIS_RESERVATION, reservation.c.released_at.is_(None))
_LOCK_HELD = _HELD.with_for_update(read=True)
_CLOSE = (
    update(reservation)
    .where(_THIS_RESERVATION, reservation.c.released_at.is_(None))
    .values(released_at=bindparam("now"))
)
_LOCKED_EPOCH = EPOCH.with_for_update(read=True)

_LOCK_JOB = select(job.c.state, job.c.attempt).where(job.c.id == bindparam("key_job")).with_for_update(key_share=True)
_TAKE_JOB = (
    update(job)
    .where(
        job.c.id == bindparam("key_job"),
        job.c.state == JobState.QUEUED.value,
        job.c.attempt <= bindparam("key_attempt"),
    )
    .values(
        state=next_state(job.c.state, {JobState.QUEUED: JobState.ALLOCATED}),
        attempt=bindparam("key_attempt"),
        placement=bindparam("placed"),
        state_at=bindparam("now"),
    )
)
_JOB_RUNNING = (
    update(job)
    .where(job.c.id == bindparam("key_job"))
    .values(state=JobState.RUNNING.value, started_at=bindparam("now"), state_at=bindparam("now"))
)

_HOSTS = (
    select(host.c.name, host.c.state).where(host.c.name.in_(bindparam("names", expanding=True))).order_by(host.c.name)
)
_TO_TAKE = {False: _HOSTS.with_for_update(read=True), True: _HOSTS.with_for_update(key_share=True)}
"""With or without CPUs and memory: who only takes GPUs of a host waits for nobody else who does."""
_LOCK_DRAINING = (
    select(host.c.name)
    .where(
        host.c.state == HostState.DRAINING.value,
        host.c.name.in_(select(allocation.c.host).where(_OURS, allocation.c.released_at.is_(None))),
    )
    .order_by(host.c.name)
    .with_for_update(key_share=True)
)

_FREE = (
    (gpu.c.state == GpuState.AVAILABLE.value)
    & (gpu.c.exclusive_holders == 0)
    & (gpu.c.sm_percent_used == 0)
    & (gpu.c.mig_mask == 0)
)
_LOCK_GPUS = (
    select(
        gpu.c.uuid,
        gpu.c.host,
        gpu.c.state,
        gpu.c.reason,
        gpu.c.memory_mib,
        gpu.c.exclusive_holders,
        gpu.c.sm_percent_used,
        gpu.c.mig_mask,
        gpu.c.mig_media,
        gpu.c.share_mode,
        gpu.c.tenant,
        gpu.c.memory_used_mib,
    )
    .where(gpu.c.uuid.in_(bindparam("uuids", expanding=True)))
    .order_by(gpu.c.uuid)
    .with_for_update(key_share=True)
)
_TAKE_GPUS = (
    update(gpu)
    .where(gpu.c.uuid.in_(bindparam("uuids", expanding=True)), _FREE)
    .values(
        state=next_state(gpu.c.state, {GpuState.AVAILABLE: GpuState.ALLOCATED}),
        exclusive_holders=1,
        sm_percent_used=100,
        memory_used_mib=gpu.c.memory_mib,
    )
)
_ALLOCATE = insert(allocation)
_ALLOCATIONS_RUNNING = (
    update(allocation).where(_OURS, allocation.c.released_at.is_(None)).values(running_at=bindparam("now"))
)
_LOCK_HELD_GPUS = (
    select(gpu.c.uuid, gpu.c.host, gpu.c.state)
    .where(gpu.c.uuid.in_(_OUR_HELD_GPUS))
    .order_by(gpu.c.uuid)
    .with_for_update(key_share=True)
)
_HOSTS_WITHOUT_GPUS = (
    select(allocation.c.host)
    .where(_OURS, allocation.c.released_at.is_(None), allocation.c.gpu_uuid.is_(None))
    .distinct()
)
"""Hosts on which the attempt holds only CPUs and memory."""
_GPUS_IN_USE = (
    update(gpu)
    .where(gpu.c.uuid.in_(_OUR_HELD_GPUS), gpu.c.state == GpuState.ALLOCATED.value)
    .values(state=next_state(gpu.c.state, {GpuState.ALLOCATED: GpuState.IN_USE}))
)
_FREE_GPUS = (
    update(gpu)
    .where(gpu.c.uuid.in_(_OUR_HELD_GPUS.where(allocation.c.exclusive)))
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
    update(allocation).where(_OURS, allocation.c.released_at.is_(None)).values(released_at=bindparam("now"))
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
