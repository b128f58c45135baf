"""A gang goes on where it is: what one attempt held becomes the next one's, without anybody getting in between.

One transaction closes the old reservation for good, opens the new one, moves what is kept, gives back the rest and
writes the job's new attempt. So at every moment one attempt holds each GPU, whatever dies. A handed-over
reservation may be **parked**: nothing runs on it, so that a faulty GPU of it can be reset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, insert, literal, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import ReservationConflict
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.domain.states import GpuState, HostState, JobState, Parked
from gpu_platform.store.database import change, insert_new, reading, writing
from gpu_platform.store.jobs.job_states import JobUpdate, change_job, lock_job
from gpu_platform.store.jobs.usage import record_usage
from gpu_platform.store.leadership.leases import host_terms
from gpu_platform.store.models import allocation, gpu, host, reservation
from gpu_platform.store.reservations.allocations import OURS, is_held, lock_held
from gpu_platform.store.reservations.releasing import Return, close_reservation, degrade_gpu, give_back
from gpu_platform.store.reservations.reserving import announce, take_jobs

_HELD_STATES = frozenset({GpuState.ALLOCATED, GpuState.IN_USE})


@writing
def hand_over(
    session: Session,
    key: AttemptKey,
    placement: Placement,
    *,
    parked: bool,
    now: datetime,
    faulty_gpus: Mapping[str, str],
    failure: Failure | None,
    hardware_retries: int,
    usage: Sequence[RankUsage] = (),
) -> Reserved:
    """End attempt ``key`` and begin the next one on ``placement``, whose GPUs it holds already.

    ``parked``: one of the GPUs must be healed first. ``faulty_gpus``: uuid -> why it becomes DEGRADED. Repeating it is
    a no-op. Raises :class:`ReservationConflict`, with nothing changed, if the attempt does not hold all of them, or if
    one of them, or its host, cannot be used.
    """
    following = AttemptKey(job_id=key.job_id, attempt=key.attempt + 1)
    if not close_reservation(session, key, now):
        if lock_held(session, following):
            terms = host_terms(session, following, placement.hosts)
            return Reserved(placement=placement, terms=terms, repeated=True)
        raise ReservationConflict(f"attempt {key} holds nothing that could be handed over")
    row = {"job_id": key.job_id, "attempt": following.attempt, "reserved_at": now, "parked": parked}
    if not insert_new(session, reservation, row):
        raise ReservationConflict(f"attempt {following} was released before it began")
    row = lock_job(session, key.job_id)
    session.execute(_LOCK_HOSTS, {"key_job": key.job_id, "key_attempt": key.attempt})
    _check(session, key, placement, faulty_gpus, parked)
    update = JobUpdate(failure=failure, hardware_retries=hardware_retries)
    change_job(session, row, JobState.QUEUED, now, "workflow", update.columns(), update.event_data())
    _move(session, key, following, placement, now)
    used = record_usage(session, {key: usage}, now)[key]
    give_back(session, {key: Return(faulty_gpus, used)}, now)
    for uuid, reason in sorted(faulty_gpus.items()):
        if uuid in placement.gpu_uuids:
            degrade_gpu(session, uuid, reason, now)
    take_jobs(session, {following: placement}, now)
    announce(session, following, placement, now)
    return Reserved(placement=placement, terms=host_terms(session, following, placement.hosts))


@reading
def parked_state(session: Session, key: AttemptKey) -> Parked:
    """What the attempt's parked reservation is worth now."""
    if not is_held(session, key):
        return Parked.HOPELESS
    ours = {"key_job": key.job_id, "key_attempt": key.attempt}
    rows = session.execute(_OURS_WITH_STATES, ours).all()
    ready = all(state == HostState.READY for state in _states_without_gpus(session, ours).values())
    if not ready or not all(row.host_state == HostState.READY and _may_go_on(row, parked=True) for row in rows):
        return Parked.HOPELESS
    return Parked.READY if all(_may_go_on(row, parked=False) for row in rows) else Parked.WAITING


@writing
def unpark(session: Session, key: AttemptKey) -> None:
    """From now on processes may run on what the attempt holds.

    Raises :class:`ReservationConflict` unless every GPU of it works.
    """
    ours = {"key_job": key.job_id, "key_attempt": key.attempt}
    # The lock first: remediation cannot begin to reset a GPU in between.
    rows = session.execute(_OURS_WITH_STATES_LOCKED, ours).all()
    if not rows or not all(_may_go_on(row, parked=False) for row in rows):
        raise ReservationConflict(f"attempt {key} holds GPUs that do not work")
    session.execute(_UNPARK, ours)


def _check(
    session: Session, key: AttemptKey, placement: Placement, faulty_gpus: Mapping[str, str], parked: bool
) -> None:
    ours = {"key_job": key.job_id, "key_attempt": key.attempt}
    held = {row.gpu_uuid: row for row in session.execute(_OURS_WITH_STATES_LOCKED, ours)}
    states = _states_without_gpus(session, ours)
    for host_slice in placement.slices:
        if not host_slice.gpu_uuids and states.get(host_slice.host) != HostState.READY:
            raise ReservationConflict(
                f"{host_slice.host} is {states.get(host_slice.host, 'not held')}", host=host_slice.host
            )
    for uuid in placement.gpu_uuids:
        row = held.get(uuid)
        problem = None
        if row is None:
            problem = "is not held"
        elif row.host_state != HostState.READY:
            problem = f"is on {row.host}, which is {row.host_state}"
        elif not _may_go_on(row, parked) or (uuid in faulty_gpus and not parked):
            problem = f"on {row.host} is {faulty_gpus.get(uuid, row.state)}"
        if problem is not None:
            raise ReservationConflict(f"GPU {uuid} {problem}", gpu_uuid=uuid)


def _states_without_gpus(session: Session, ours: dict[str, Any]) -> dict[str, str]:
    """States of the hosts on which the attempt holds only CPUs and memory."""
    return {row.name: row.state for row in session.execute(_HOSTS_WITHOUT_GPUS, ours)}


def _may_go_on(row: Any, parked: bool) -> bool:
    """Does the GPU work, or, if ``parked``, may it work again? One that is held in shares may be AVAILABLE."""
    works = _HELD_STATES if row.exclusive else _HELD_STATES | {GpuState.AVAILABLE}
    return row.state in works or (parked and row.state in (GpuState.DEGRADED, GpuState.RESETTING))


def _move(session: Session, key: AttemptKey, following: AttemptKey, placement: Placement, now: datetime) -> None:
    """End the allocations of what is kept, then copy them: two allocations of one GPU may not overlap."""
    without_gpus = [host_slice.host for host_slice in placement.slices if not host_slice.gpu_uuids]
    kept = {"key_job": key.job_id, "key_attempt": key.attempt, "uuids": placement.gpu_uuids, "hosts": without_gpus}
    if change(session, _END_KEPT, {**kept, "now": now}) != len(placement.gpu_uuids) + len(without_gpus):
        raise ReservationConflict(f"attempt {key} does not hold all of what it would hand over")
    session.execute(_COPY_KEPT, {**kept, "following": following.attempt, "now": now})


_KEPT = OURS & (
    allocation.c.gpu_uuid.in_(bindparam("uuids", expanding=True))
    | (allocation.c.gpu_uuid.is_(None) & allocation.c.host.in_(bindparam("hosts", expanding=True)))
)
_OURS_WITH_STATES = (
    select(allocation.c.gpu_uuid, allocation.c.exclusive, gpu.c.host, gpu.c.state, host.c.state.label("host_state"))
    .join(gpu, gpu.c.uuid == allocation.c.gpu_uuid)
    .join(host, host.c.name == gpu.c.host)
    .where(OURS, allocation.c.released_at.is_(None))
    .order_by(allocation.c.gpu_uuid)
)
_HOSTS_WITHOUT_GPUS = select(host.c.name, host.c.state).where(
    host.c.name.in_(
        select(allocation.c.host).where(OURS, allocation.c.released_at.is_(None), allocation.c.gpu_uuid.is_(None))
    )
)
_LOCK_HOSTS = (
    select(host.c.name)
    .where(host.c.name.in_(select(allocation.c.host).where(OURS, allocation.c.released_at.is_(None))))
    .order_by(host.c.name)
    .with_for_update(key_share=True)
)
_OURS_WITH_STATES_LOCKED = _OURS_WITH_STATES.with_for_update(key_share=True, of=gpu)
_END_KEPT = update(allocation).where(_KEPT, allocation.c.released_at.is_(None)).values(released_at=bindparam("now"))
# A parameter of a SELECT gets no type from the column that its value goes to.
_NOW = bindparam("now", type_=allocation.c.reserved_at.type)
_CHANGED = {"attempt": bindparam("following"), "reserved_at": _NOW, "released_at": literal(None)}
_CHANGED["running_at"] = literal(None)
_COLUMNS = [column.name for column in allocation.c]
_COPY_KEPT = insert(allocation).from_select(
    _COLUMNS, select(*[_CHANGED.get(name, allocation.c[name]) for name in _COLUMNS]).where(_KEPT)
)
_UNPARK = (
    update(reservation)
    .where(reservation.c.job_id == bindparam("key_job"), reservation.c.attempt == bindparam("key_attempt"))
    .values(parked=False)
)
