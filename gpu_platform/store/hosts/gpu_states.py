"""The states of GPUs: what operators ask for, faults, resets, and quarantines that end."""

from __future__ import annotations

import json
from datetime import datetime

from sqlalchemy import bindparam, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest
from gpu_platform.domain.hosts.gpu import Gpu
from gpu_platform.domain.hosts.remediation import BackOff, without_next_step
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.domain.states import GPU_TRANSITIONS, GpuState, check_transition
from gpu_platform.store.database import insert_new, read_record, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.hosts import flapping
from gpu_platform.store.hosts.gpus import find_uuid, no_such_gpu, read_gpu
from gpu_platform.store.jobs.queue import clear_exclusions
from gpu_platform.store.models import GpuRecord, allocation, fault, gpu, host

VANISHED = "its host no longer reports it"
"""Why a GPU is OFFLINE that its host does not report."""
IN_SERVICE = (GpuState.AVAILABLE, GpuState.ALLOCATED, GpuState.IN_USE)
DRAIN = (GpuState.DRAINING, GpuState.DRAINED)


@writing
def set_gpu_state(
    session: Session, reference: str, state: GpuState, *, reason: str | None, actor: str, now: datetime
) -> Gpu:
    """Take a GPU out of service or put it back, as an operator asks.

    A GPU that is put back while a gang still holds it becomes ALLOCATED or IN_USE, as that gang is. To ask for DRAINING
    or DRAINED means the same: the GPU is DRAINED at once when nobody holds it, else when the last gang is released. A
    faulty GPU is healed first. A GPU that its own host calls unfit (lost, too hot) is DEGRADED as long as it does so.

    Raises :class:`NotFound`, :class:`IllegalTransition`, :class:`InvalidRequest` (only reservations allocate; a GPU
    that its host does not report cannot be put back).
    """
    row = lock_gpu(session, find_uuid(session, reference))
    flapping.forget(session, "gpu", row.uuid)
    if state in (GpuState.ALLOCATED, GpuState.IN_USE):
        raise InvalidRequest(f"GPU {row.uuid} cannot be set to {state.value}: only the reservation of a job does that")
    if state is GpuState.AVAILABLE:
        if not row.present:
            raise IllegalTransition(
                subject=f"GPU {row.uuid}, which {row.host} no longer reports,",
                current=row.state,
                wanted=state.value,
                allowed=[],
            )
        if row.state not in IN_SERVICE:
            check_transition(f"GPU {row.uuid}", GpuState(row.state), state)
            session.execute(UPDATE_GPU.values(cordoned=False, cordon_reason=None), {"of_uuid": row.uuid})
            unfit = _reported_unfit(session, row)
            if unfit is None:
                put_back(session, lock_gpu(session, row.uuid), actor, now, reason)
            else:
                take_out(session, row, GpuState.DEGRADED, "host", unfit, actor, now)
    elif state in DRAIN:
        _drain(session, row, reason, actor, now)
    else:
        if state is GpuState.DEGRADED and row.state == GpuState.OFFLINE:
            raise IllegalTransition(
                subject=f"GPU {row.uuid}",
                current=row.state,
                wanted=state.value,
                allowed=sorted(GPU_TRANSITIONS[GpuState.OFFLINE] - {state}),  # only its own host leads it there
            )
        take_out(session, row, state, "operator", reason, actor, now)
    return read_gpu(session, row.uuid)


@writing
def begin_reset(session: Session, uuid: str, reason: str, now: datetime) -> Gpu:
    """Hand the GPU to remediation: it is RESETTING. Attempts that hold it go on holding it: reset it after them.

    A GPU that an operator took OFFLINE stays OFFLINE until the operator brings it back. Raises :class:`NotFound` and
    :class:`IllegalTransition`.
    """
    row = lock_gpu(session, uuid)
    if row.state == GpuState.OFFLINE and row.state_source in ("operator", "service"):
        return read_gpu(session, row.uuid)
    check_transition(f"GPU {row.uuid}", GpuState(row.state), GpuState.RESETTING)
    take_out(session, row, GpuState.RESETTING, "remediation", reason, "remediation", now)
    return read_gpu(session, row.uuid)


@writing
def finish_reset(
    session: Session,
    uuid: str,
    ok: bool,
    now: datetime,
    max_failures: int,
    problem: str | None = None,
    back_off: BackOff | None = None,
) -> GpuState:
    """Count a reset, and write the state that it led to.

    The GPU is back in service if the reset succeeded, else DEGRADED. After ``max_failures`` failures in a row it is
    OFFLINE, with ``problem`` as the reason. ``back_off`` is given if the fault was the GPU's own: then a GPU that fails
    again and again stays OFFLINE for a while.

    A no-op unless the GPU is RESETTING, so that it may be repeated. Returns the state it has now.
    """
    row = lock_gpu(session, uuid)
    if row.state != GpuState.RESETTING:
        return GpuState(row.state)
    failures = 0 if ok else row.reset_failures + 1
    counts = {"reset_count": row.reset_count + 1, "reset_failures": failures}
    session.execute(UPDATE_GPU.values(counts), {"of_uuid": uuid})
    if ok and row.present:
        session.execute(UPDATE_GPU.values(healed_at=now), {"of_uuid": uuid})
        if back_off is not None:
            times, until = flapping.note_failure(session, "gpu", uuid, back_off, now)
            if until is not None:
                why = flapping.why_out(times, back_off, until, f"{row.host}:{row.index}")
                last = f"{why}; last: {row.reason}" if row.reason else why
                take_out(session, row, GpuState.OFFLINE, flapping.ACTOR, last, "remediation", now)
                return GpuState.OFFLINE
        clear_exclusions(session, uuid, now)
        return put_back(session, row, "remediation", now)
    if ok:
        take_out(session, row, GpuState.OFFLINE, "inventory", VANISHED, "remediation", now)
        return GpuState.OFFLINE
    state = GpuState.OFFLINE if failures >= max_failures else GpuState.DEGRADED
    last = "" if problem is None else f": {problem}"
    why = f"{failures} reset{'s' if failures > 1 else ''} in a row failed{last}; {row.reason or 'no reason given'}"
    take_out(session, row, state, "remediation", why, "remediation", now)
    return state


@writing
def release_quarantined(session: Session, now: datetime) -> list[str]:
    """Put GPUs back into service whose quarantine is over. Returns their uuids; see ``flapping``."""
    uuids = flapping.due(session, "gpu", now)
    for uuid in uuids:
        row = read_record(session, GpuRecord, _LOCK, {"of_uuid": uuid})
        if row is not None and row.state == GpuState.OFFLINE and row.state_source == flapping.ACTOR and row.present:
            clear_exclusions(session, uuid, now)
            put_back(session, row, flapping.ACTOR, now)
    return uuids


@writing
def record_fault(session: Session, report: FaultReport, now: datetime) -> bool:
    """Write a fault to the log, once per host and ``fault_id``. False: it is there already, or it is not the host's.

    A fault is believed of the host's own GPUs, and of attempts that had one of them.
    The event names the job on the GPU. A fault of an attempt (it hangs, it idles) is an event of its job and does not
    count against the GPU.
    """
    if not _is_of_host(session, report):
        return False
    # Hosts number their faults as they like, so the number of one says nothing of another's.
    row = {"fault_id": f"{report.host}/{report.fault_id}", "gpu_uuid": report.gpu_uuid, "at": now}
    if not insert_new(session, fault, row):
        return False
    if report.attempt is not None:
        _record_of_job(session, report, report.attempt, now)
        return True
    session.execute(UPDATE_GPU.values(fault_count=gpu.c.fault_count + 1), {"of_uuid": report.gpu_uuid})
    held_by = session.execute(_HOLDERS, {"of_uuid": report.gpu_uuid}).all()
    append_event(
        session,
        "gpu.fault",
        f"node/{report.host}",
        now,
        job_id=held_by[0].job_id if len(held_by) == 1 else None,
        attempt=held_by[0].attempt if len(held_by) == 1 else None,
        host=report.host,
        gpu_uuid=report.gpu_uuid,
        data=report.model_dump(mode="json", exclude={"host", "gpu_uuid"}),
    )
    return True


def _is_of_host(session: Session, report: FaultReport) -> bool:
    owner = session.scalar(select(gpu.c.host).where(gpu.c.uuid == report.gpu_uuid))
    if owner not in (None, report.host):
        return False
    if report.attempt is None:
        return True
    theirs = {"of_uuid": report.gpu_uuid, "at_host": report.host, **report.attempt.model_dump()}
    return session.execute(_HELD_BY, theirs).first() is not None


def _record_of_job(session: Session, report: FaultReport, key: AttemptKey, now: datetime) -> None:
    append_event(
        session,
        "job.fault" if report.action.stops_job else "job.warning",
        f"node/{report.host}",
        now,
        job_id=key.job_id,
        attempt=key.attempt,
        host=report.host,
        gpu_uuid=report.gpu_uuid,
        data=report.model_dump(mode="json", include={"action", "message", "at_ms", "gpu_index"}),
    )


# ---- the steps, inside a transaction; reported_gpus.py and repairs.py use them too ----


def lock_gpu(session: Session, uuid: str) -> GpuRecord:
    """The row of the GPU; nobody else changes it until the commit. Raises :class:`NotFound`."""
    row = read_record(session, GpuRecord, _LOCK, {"of_uuid": uuid})
    if row is None:
        raise no_such_gpu(uuid)
    return row


def take_out(
    session: Session, row: GpuRecord, state: GpuState, source: str, reason: str | None, actor: str, now: datetime
) -> None:
    """Write a state in which nobody new gets the GPU, and its event unless nothing is new.

    ``source``: who takes it out, and so who may put it back (``GpuRecord.state_source``).
    """
    check_transition(f"GPU {row.uuid}", GpuState(row.state), state)
    session.execute(UPDATE_GPU.values(state=state.value, state_source=source, reason=reason), {"of_uuid": row.uuid})
    if row.state != state or row.reason != reason:
        data = {"state": state.value, "reason": reason}
        append_event(session, "gpu.state", actor, now, host=row.host, gpu_uuid=row.uuid, data=data)


def put_back(session: Session, row: GpuRecord, actor: str, now: datetime, why: str | None = None) -> GpuState:
    """Put the GPU back into service: AVAILABLE, or ALLOCATED or IN_USE if a gang still holds it.

    A cordoned GPU is drained instead. Returns the state that was written.
    """
    held_by = session.execute(_HOLDERS, {"of_uuid": row.uuid}).all()
    if row.cordoned:
        state = GpuState.DRAINING if held_by else GpuState.DRAINED
        take_out(session, row, state, "operator", row.cordon_reason, actor, now)
        return state
    state = GpuState.AVAILABLE
    if held_by:
        state = GpuState.IN_USE if any(holder.running_at for holder in held_by) else GpuState.ALLOCATED
    check_transition(f"GPU {row.uuid}", GpuState(row.state), state)
    session.execute(UPDATE_GPU.values(state=state.value, state_source=None, reason=None), {"of_uuid": row.uuid})
    data = {"state": state.value, **({"reason": why} if why else {})}
    append_event(session, "gpu.state", actor, now, host=row.host, gpu_uuid=row.uuid, data=data)
    return state


def _drain(session: Session, row: GpuRecord, reason: str | None, actor: str, now: datetime) -> None:
    reason = reason or (row.cordon_reason if row.cordoned else None)  # asked again, without saying why again
    session.execute(UPDATE_GPU.values(cordoned=True, cordon_reason=reason), {"of_uuid": row.uuid})
    if row.state in (*IN_SERVICE, *DRAIN):
        held = session.execute(_HOLDERS, {"of_uuid": row.uuid}).first() is not None
        take_out(session, row, GpuState.DRAINING if held else GpuState.DRAINED, "operator", reason, actor, now)
        return
    data = {"state": row.state, "reason": reason, "drained_later": True}
    append_event(session, "gpu.state", actor, now, host=row.host, gpu_uuid=row.uuid, data=data)


def _reported_unfit(session: Session, row: GpuRecord) -> str | None:
    """Why its host calls the GPU unfit in the last report, with the reason that was known before. None: it does not."""
    degraded = session.scalar(select(host.c.degraded).where(host.c.name == row.host))
    unfit = json.loads(degraded or "{}").get(row.uuid)
    if unfit is None or not row.reason or row.reason in unfit:
        return unfit
    known = without_next_step(row.reason)
    return known if unfit in known else f"{unfit}; {known}"


# ---- the statements, compiled once ----

_LOCK = select(gpu).where(gpu.c.uuid == bindparam("of_uuid")).with_for_update(key_share=True)
UPDATE_GPU = update(gpu).where(gpu.c.uuid == bindparam("of_uuid"))
_HELD_BY = select(allocation.c.job_id).where(
    allocation.c.gpu_uuid == bindparam("of_uuid"),
    allocation.c.host == bindparam("at_host"),
    allocation.c.job_id == bindparam("job_id"),
    allocation.c.attempt == bindparam("attempt"),
)
"""Allocations stay for a while after the attempt's end."""
_HOLDERS = select(allocation.c.job_id, allocation.c.attempt, allocation.c.running_at).where(
    allocation.c.gpu_uuid == bindparam("of_uuid"), allocation.c.released_at.is_(None)
)
