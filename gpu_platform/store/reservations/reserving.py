"""A gang takes its place: every GPU, and CPUs and memory of hosts, in one transaction, or nothing at all.

Three independent guards make sure that no GPU is held twice: the conditional update (``state = 'AVAILABLE' AND
exclusive_holders = 0``, its row count checked), the CHECK constraints of ``gpu``, and the partial unique index on
``allocation(gpu_uuid)`` of what is not released. For shares of GPUs, and CPUs and memory of hosts, see ``shares``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey, jobs_by_attempt
from gpu_platform.domain.errors import AsksOtherwise, IllegalTransition, NotFound, ReservationConflict
from gpu_platform.domain.hosts.share import first_use
from gpu_platform.domain.jobs.hold import Hold
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.domain.states import JOB_TRANSITIONS, GpuState, HostState, JobState
from gpu_platform.store.database import change, insert_all_new, insert_new, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs.queue import leave_queue_together
from gpu_platform.store.leadership.leader import check_epoch
from gpu_platform.store.leadership.leases import current_terms, host_terms
from gpu_platform.store.models import allocation, gpu, host, job, reservation
from gpu_platform.store.reservations import shares
from gpu_platform.store.reservations.allocations import OURS, lock_held
from gpu_platform.store.transitions import next_state

Places = Mapping[AttemptKey, Placement]
"""What each attempt is to hold."""


@writing
def reserve_gang(session: Session, key: AttemptKey, placement: Placement, *, now: datetime) -> Reserved:
    """Take every GPU of the placement for the attempt, or none: QUEUED -> ALLOCATED, AVAILABLE -> ALLOCATED.

    Repeating it while the attempt holds its GPUs is a no-op. Raises :class:`ReservationConflict` (naming the GPU, or
    because the attempt was released before), :class:`StaleEpoch`, :class:`IllegalTransition`, :class:`NotFound`.
    """
    return take_place(session, key, placement, now)


# ---- the steps, inside a transaction; batches.py, first_places.py, handover.py and restoring.py use them too ----


def take_place(
    session: Session, key: AttemptKey, placement: Placement, now: datetime, *, task_token: bytes | None = None
) -> Reserved:
    """Inside a transaction: see :func:`reserve_gang`. ``task_token``: only if the job's entry in the queue has it."""
    row = {"job_id": key.job_id, "attempt": key.attempt, "epoch": placement.epoch, "reserved_at": now}
    if not insert_new(session, reservation, row):
        if lock_held(session, key):
            _check_place(session, key, placement)
            terms = host_terms(session, key, placement.hosts)
            return Reserved(placement=placement, terms=terms, repeated=True)
        raise ReservationConflict(f"attempt {key} was released before it could reserve; start a new attempt")
    return _take(session, {key: placement}, now, task_token)[key]


def have_reserved(session: Session, keys: Iterable[AttemptKey]) -> set[AttemptKey]:
    """Inside a transaction: those of the attempts that have reserved before. They may have been released since."""
    found: set[AttemptKey] = set()
    for attempt, job_ids in jobs_by_attempt(keys).items():
        rows = session.scalars(_RESERVED, {"attempt": attempt, "job_ids": job_ids})
        found.update(AttemptKey(job_id=job_id, attempt=attempt) for job_id in rows)
    return found


def take_places(
    session: Session, places: Places, now: datetime, *, task_token: bytes | None = None
) -> dict[AttemptKey, Reserved]:
    """Inside a transaction: as :func:`take_place`, for several attempts with a few statements for all of them.

    It raises if anything is wrong with one of them, also if one has reserved before. Then what it did must be undone,
    and :func:`take_place` says for each whether it can reserve.
    """
    rows = [
        {"job_id": key.job_id, "attempt": key.attempt, "epoch": placement.epoch, "reserved_at": now}
        for key, placement in places.items()
    ]
    if insert_all_new(session, reservation, rows) != len(rows):
        raise ReservationConflict("some of the attempts have reserved or were released before")
    return _take(session, places, now, task_token)


def _take(session: Session, places: Places, now: datetime, task_token: bytes | None) -> dict[AttemptKey, Reserved]:
    take_jobs(session, places, now)
    for epoch in {placement.epoch for placement in places.values()} - {0}:
        check_epoch(session, epoch)
    take_gpus(session, places, now)
    left = leave_queue_together(session, places, now, task_token)
    if task_token is not None and (others := places.keys() - left):
        raise AsksOtherwise(f"attempt {min(others, key=str)} does not ask in this way any more")
    terms = current_terms(session, {host for placement in places.values() for host in placement.hosts})
    taken = {}
    for key, placement in places.items():
        announce(session, key, placement, now)
        taken[key] = Reserved(placement=placement, terms={host: terms[host] for host in placement.hosts})
    return taken


def announce(session: Session, key: AttemptKey, placement: Placement, now: datetime) -> None:
    """Inside a transaction: write the events of a gang that has just taken its GPUs."""
    where = {"job_id": key.job_id, "attempt": key.attempt}
    data = {
        "hosts": placement.hosts,
        "gpus": placement.gpu_uuids,
        "slices": [host_slice.model_dump(mode="json", exclude_defaults=True) for host_slice in placement.slices],
        "level": placement.level.value,
        "why": placement.why,
        "bandwidth_gb_s": placement.bandwidth_gb_s,
        "decided_in_ms": placement.decided_in_ms,
    }
    append_event(session, "job.placed", "scheduler", now, data=data, **where)
    append_event(
        session, "gang.reserved", "control", now, data={"gpus": placement.gpu_uuids, "hosts": placement.hosts}, **where
    )


def take_jobs(session: Session, places: Places, now: datetime) -> None:
    """Inside a transaction: each job goes from QUEUED to ALLOCATED, with this attempt and placement.

    Raises :class:`NotFound`, :class:`IllegalTransition`, and :class:`ReservationConflict` for an older attempt, and for
    a job that was held or changed meanwhile.
    """
    rows = [
        {
            "key_job": key.job_id,
            "key_attempt": key.attempt,
            "placed": placement.model_dump_json(),
            "now": now,
        }
        for key, placement in places.items()
    ]
    if change(session, _TAKE_JOB, rows) == len(rows):
        return
    if len(places) > 1:
        raise ReservationConflict("some of the jobs do not wait for these attempts")
    [key] = places
    row = session.execute(_LOCK_JOB, {"key_job": key.job_id}).one_or_none()
    if row is None:
        raise NotFound(f"there is no job {key.job_id!r}", job_id=key.job_id)
    if row.state != JobState.QUEUED:
        raise _illegal(key, row.state, JobState.ALLOCATED)
    if row.held is not None:
        raise ReservationConflict(f"job {key.job_id} is {Hold.model_validate_json(row.held).message}")
    if row.asks_anew is not None:
        raise ReservationConflict(f"job {key.job_id} was changed meanwhile, and asks again")
    raise ReservationConflict(f"attempt {key} is outdated: job {key.job_id} is at attempt {row.attempt}")


def take_gpus(session: Session, places: Places, now: datetime, *, on_lost_hosts: bool = False) -> None:
    """Inside a transaction: see :func:`reserve_gang`. Raises :class:`ReservationConflict`.

    ``on_lost_hosts``: also on LOST hosts, where its ranks run already.
    """
    items_of = {key: _items(key, placement) for key, placement in places.items()}
    items = [item for of_one in items_of.values() for item in of_one]
    uuids = sorted({item.uuid for item in items if item.uuid is not None})
    hosts = _take_host_resources(session, items)
    if on_lost_hosts:
        hosts = dict.fromkeys(hosts, HostState.READY.value)
    rows = {row.uuid: row for row in session.execute(_LOCK_GPUS, {"uuids": uuids})} if uuids else {}
    held: list[dict[str, Any]] = []
    for key, of_one in items_of.items():
        shared = any(item.grant is not None for item in of_one)
        namespace = shares.namespace_of(session, key.job_id) if shared else ""
        for item in of_one:
            if item.uuid is None:
                _check_host(item, hosts.get(item.host))
            else:
                _check_gpu(item, rows.get(item.uuid), hosts.get(item.host), namespace)
        _take_shares(session, of_one, namespace)
        held += _allocations(key, of_one, rows, now)
    whole = [item.uuid for item in items if item.grant is None and item.uuid is not None]
    if whole and change(session, _TAKE_GPUS, {"uuids": whole}) != len(whole):
        raise ReservationConflict(f"one of {', '.join(whole)} was taken meanwhile")
    try:
        session.execute(_ALLOCATE, held)
    except IntegrityError as error:
        raise ReservationConflict(f"one of {', '.join(uuids)} is held already") from error


def _items(key: AttemptKey, placement: Placement) -> list[shares.AllocationItem]:
    items = shares.allocation_items(placement)
    uuids = [item.uuid for item in items if item.uuid is not None]
    if len(set(uuids)) != len(uuids) or not items:
        raise ReservationConflict(f"the placement of {key} names a GPU twice, or none at all")
    return items


def _allocations(
    key: AttemptKey, items: Sequence[shares.AllocationItem], gpus: Mapping[str, Any], now: datetime
) -> list[dict[str, Any]]:
    """The rows of ``allocation`` for one attempt."""
    return [
        {
            "job_id": key.job_id,
            "attempt": key.attempt,
            "number": number,
            "gpu_uuid": item.uuid,
            "host": item.host,
            "reserved_at": now,
            **shares.allocation_values(item, gpus[item.uuid].memory_mib if item.uuid is not None else 0),
        }
        for number, item in enumerate(items)
    ]


def _take_host_resources(session: Session, items: Sequence[shares.AllocationItem]) -> dict[str, str]:
    """Lock the hosts and take CPUs and memory there. Returns host -> its state."""
    needed = shares.need_host_resources(items)
    names = sorted({item.host for item in items})
    hosts = {row.name: row.state for row in session.execute(_LOCK_HOSTS[needed], {"names": names})}
    if needed:
        shares.take_host_resources(session, items)
    return hosts


def _take_shares(session: Session, items: Sequence[shares.AllocationItem], namespace: str) -> None:
    """The rows of shared GPUs say what is taken of them."""
    for item in items:
        if item.grant is None or item.uuid is None:
            continue
        if not shares.take_share(session, item.uuid, first_use(item.grant, namespace)):
            raise ReservationConflict(f"a share of {item.uuid} was taken meanwhile", gpu_uuid=item.uuid)


def _check_place(session: Session, key: AttemptKey, placement: Placement) -> None:
    """It holds GPUs: these, unless a workflow that is older than the row was given others."""
    held = session.scalars(_HELD_WHERE, {"key_job": key.job_id, "key_attempt": key.attempt}).all()
    if sorted(held) != sorted(placement.gpu_uuids) and placement.gpu_uuids:
        raise ReservationConflict(f"attempt {key} holds other GPUs already: {', '.join(held)}")


def _check_host(item: shares.AllocationItem, state: str | None) -> None:
    """For a slice without GPUs."""
    if state != HostState.READY:
        problem = "is not registered" if state is None else f"is {state}"
        raise ReservationConflict(f"host {item.host} {problem}", host=item.host)


def _check_gpu(item: shares.AllocationItem, row: Any, host_state: str | None, namespace: str) -> None:
    problem = None
    if row is None:
        problem = "is not registered"
    elif row.host != item.host:
        problem = f"is on {row.host}, not on {item.host}"
    elif host_state != HostState.READY:
        problem = f"is on {item.host}, which is {host_state}"
    elif item.grant is not None:
        refused = shares.check_share(row, first_use(item.grant, namespace))
        problem = refused and f"on {item.host} {refused}"
    elif row.state != GpuState.AVAILABLE:
        problem = f"on {item.host} is {row.state}" + (f" ({row.reason})" if row.reason else "")
    elif row.exclusive_holders or row.sm_percent_used or row.mig_mask:
        problem = f"on {item.host} is partly taken"
    if problem is not None:
        raise ReservationConflict(f"GPU {item.uuid} {problem}", gpu_uuid=item.uuid, host=item.host)


def _illegal(key: AttemptKey, current: str, wanted: JobState) -> IllegalTransition:
    allowed = sorted(JOB_TRANSITIONS[JobState(current)])
    return IllegalTransition(subject=f"job {key.job_id}", current=current, wanted=wanted.value, allowed=allowed)


# ---- the statements, compiled once ----

_HELD_WHERE = select(allocation.c.gpu_uuid).where(
    OURS, allocation.c.released_at.is_(None), allocation.c.gpu_uuid.is_not(None)
)
_RESERVED = select(reservation.c.job_id).where(
    reservation.c.job_id.in_(bindparam("job_ids", expanding=True)), reservation.c.attempt == bindparam("attempt")
)
_LOCK_JOB = (
    select(job.c.state, job.c.attempt, job.c.held, job.c.asks_anew)
    .where(job.c.id == bindparam("key_job"))
    .with_for_update(key_share=True)
)
_TAKE_JOB = (
    update(job)
    .where(
        job.c.id == bindparam("key_job"),
        job.c.state == JobState.QUEUED.value,
        job.c.attempt <= bindparam("key_attempt"),
        job.c.held.is_(None),
        job.c.asks_anew.is_(None),
    )
    .values(
        state=next_state(job.c.state, {JobState.QUEUED: JobState.ALLOCATED}),
        attempt=bindparam("key_attempt"),
        placement=bindparam("placed"),
        state_at=bindparam("now"),
    )
)

_HOSTS = (
    select(host.c.name, host.c.state).where(host.c.name.in_(bindparam("names", expanding=True))).order_by(host.c.name)
)
_LOCK_HOSTS = {False: _HOSTS.with_for_update(read=True), True: _HOSTS.with_for_update(key_share=True)}
"""By whether CPUs or memory are taken: reservations that take only GPUs of a host do not wait for each other."""

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
