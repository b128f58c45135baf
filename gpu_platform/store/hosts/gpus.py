"""GPUs: what the inventory says, their state, faults and resets."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, or_, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import IllegalTransition, InvalidRequest, NotFound
from gpu_platform.domain.hosts.gpu import Gpu, GpuHolder, GpuInfo
from gpu_platform.domain.hosts.lease import HostReport
from gpu_platform.domain.hosts.remediation import BackOff, without_next_step
from gpu_platform.domain.jobs.attempt import AttemptKey, FaultReport
from gpu_platform.domain.states import GPU_TRANSITIONS, GpuState, HostState, check_transition
from gpu_platform.store.database import insert_new, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.hosts import flapping
from gpu_platform.store.jobs.queue import clear_exclusions
from gpu_platform.store.models import allocation, fault, gpu, host
from gpu_platform.store.reservations.shares import grant_of

_VANISHED = "its host no longer reports it"
_IN_SERVICE = (GpuState.AVAILABLE, GpuState.ALLOCATED, GpuState.IN_USE)
_DRAIN = (GpuState.DRAINING, GpuState.DRAINED)


@reading
def list_gpus(session: Session, *, host: str | None = None, states: Collection[GpuState] | None = None) -> list[Gpu]:
    """GPUs by host and index, with their holder and last telemetry."""
    query = _GPUS
    if host is not None:
        query = query.where(gpu.c.host == host)
    if states is not None:
        query = query.where(gpu.c.state.in_([GpuState(state).value for state in states]))
    return _gpus(session, query)


@reading
def gpus_of_job(session: Session, job_id: str) -> list[Gpu]:
    """Those that it holds now, or parts of."""
    held = select(allocation.c.gpu_uuid).where(allocation.c.job_id == job_id, allocation.c.released_at.is_(None))
    return _gpus(session, _GPUS.where(gpu.c.uuid.in_(held)))


@reading
def count_gpus(session: Session) -> dict[tuple[str, GpuState], int]:
    """(host, state) -> how many GPUs."""
    query = select(gpu.c.host, gpu.c.state, func.count().label("gpus")).group_by(gpu.c.host, gpu.c.state)
    return {
        (row.host, GpuState(row.state)): row.gpus for row in session.execute(query.order_by(gpu.c.host, gpu.c.state))
    }


@reading
def taken_gpus(session: Session) -> dict[str, tuple[float, int]]:
    """Host -> (GPUs that jobs hold, parts counted as parts; all of its GPUs)."""
    taken = func.sum(gpu.c.sm_percent_used) / 100.0
    query = select(gpu.c.host, taken.label("held"), func.count().label("there")).group_by(gpu.c.host)
    return {row.host: (float(row.held), row.there) for row in session.execute(query.order_by(gpu.c.host))}


@reading
def get_gpu(session: Session, reference: str) -> Gpu:
    """A GPU by uuid, by the beginning of one, or as ``host:index``.

    Raises :class:`NotFound`, and :class:`InvalidRequest` if several begin like that.
    """
    return _gpu(session, _resolve(session, reference))


@writing
def set_gpu_state(
    session: Session, reference: str, state: GpuState, *, reason: str | None, actor: str, now: datetime
) -> Gpu:
    """Take a GPU out of service or put it back, as an operator asks.

    Back in service while a gang still holds it, it is ALLOCATED or IN_USE, as that gang is. DRAINING and DRAINED are
    one wish: it is DRAINED at once when nobody holds it, else when the last gang is released; one that is faulty is
    healed first. One that its own host calls unfit (lost, too hot) is DEGRADED until the host does so no more.

    Raises :class:`NotFound`, :class:`IllegalTransition`, :class:`InvalidRequest` (only reservations allocate; a GPU
    that its host does not report cannot be put back).
    """
    row = lock_gpu(session, _resolve(session, reference))
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
        if row.state not in _IN_SERVICE:
            check_transition(f"GPU {row.uuid}", GpuState(row.state), state)
            session.execute(_UPDATE.values(cordoned=False, cordon_reason=None), {"of_uuid": row.uuid})
            unfit = _reported_unfit(session, row)
            if unfit is None:
                put_back(session, lock_gpu(session, row.uuid), actor, now, reason)
            else:
                take_out(session, row, GpuState.DEGRADED, "host", unfit, actor, now)
    elif state in _DRAIN:
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
    return _gpu(session, row.uuid)


@writing
def begin_reset(session: Session, uuid: str, reason: str, now: datetime) -> Gpu:
    """Hand the GPU to remediation: RESETTING. Whoever holds it still does; reset it only once nobody does.

    A GPU that an operator took OFFLINE stays so: it comes back when the operator says so.
    """
    row = lock_gpu(session, uuid)
    if row.state == GpuState.OFFLINE and row.state_source in ("operator", "service"):
        return _gpu(session, row.uuid)
    check_transition(f"GPU {row.uuid}", GpuState(row.state), GpuState.RESETTING)
    take_out(session, row, GpuState.RESETTING, "remediation", reason, "remediation", now)
    return _gpu(session, row.uuid)


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
    """Count the reset; back in service if it succeeded, else DEGRADED, and OFFLINE after ``max_failures`` in a row,
    with ``problem`` as the last one's.

    ``back_off``: the failure was the GPU's own doing; should it fail again and again, it stays OFFLINE for a while.

    A no-op unless the GPU is RESETTING, so that it may be repeated. Returns the state it has now.
    """
    row = lock_gpu(session, uuid)
    if row.state != GpuState.RESETTING:
        return GpuState(row.state)
    failures = 0 if ok else row.reset_failures + 1
    counts = {"reset_count": row.reset_count + 1, "reset_failures": failures}
    session.execute(_UPDATE.values(counts), {"of_uuid": uuid})
    if ok and row.present:
        session.execute(_UPDATE.values(healed_at=now), {"of_uuid": uuid})
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
        take_out(session, row, GpuState.OFFLINE, "inventory", _VANISHED, "remediation", now)
        return GpuState.OFFLINE
    state = GpuState.OFFLINE if failures >= max_failures else GpuState.DEGRADED
    last = "" if problem is None else f": {problem}"
    why = f"{failures} reset{'s' if failures > 1 else ''} in a row failed{last}; {row.reason or 'no reason given'}"
    take_out(session, row, state, "remediation", why, "remediation", now)
    return state


@writing
def release_quarantined(session: Session, now: datetime) -> list[str]:
    """Back into service whose time is over; see ``flapping``."""
    uuids = flapping.due(session, "gpu", now)
    for uuid in uuids:
        row = session.execute(_LOCK, {"of_uuid": uuid}).one_or_none()
        if row is not None and row.state == GpuState.OFFLINE and row.state_source == flapping.ACTOR and row.present:
            clear_exclusions(session, uuid, now)
            put_back(session, row, flapping.ACTOR, now)
    return uuids


@writing
def record_fault(session: Session, report: FaultReport, now: datetime) -> bool:
    """Write the fault to the log, once per ``fault_id``; False if it is known. The event names the job on the GPU.

    What an attempt did (it hangs, it idles) is an event of its job, and does not count against the GPU.
    """
    row = {"fault_id": report.fault_id, "gpu_uuid": report.gpu_uuid, "at": now}
    if not insert_new(session, fault, row):
        return False
    if report.attempt is not None:
        _record_of_job(session, report, report.attempt, now)
        return True
    session.execute(_UPDATE.values(fault_count=gpu.c.fault_count + 1), {"of_uuid": report.gpu_uuid})
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


# ---- what a host's report changes; called by hosts.py in its transaction ----


def follow_inventory(session: Session, report: HostReport, now: datetime) -> None:
    """Add new GPUs, update facts, take those that vanished OFFLINE and bring back those that returned."""
    reported = {info.uuid: info for info in report.inventory.gpus}
    uuids = sorted(reported)
    query = select(gpu).where(or_(gpu.c.host == report.name, gpu.c.uuid.in_(uuids))).order_by(gpu.c.uuid)
    known = {row.uuid: row for row in session.execute(query.with_for_update(key_share=True))}
    actor = f"node/{report.name}"
    for uuid in uuids:
        info, row = reported[uuid], known.get(uuid)
        if row is None:
            if not insert_new(session, gpu, _new(report.name, info)):
                raise InvalidRequest(f"{report.name} reports GPU {uuid}, which another host is just registering")
            continue
        _check_moved(session, row, report.name)
        facts = {"host": report.name, "index": info.index, "present": True, "facts": info.model_dump_json()}
        # What jobs have of it stays theirs, whatever a new driver says that there is.
        memory = {"memory_mib": max(info.memory_mib, 0 if row.exclusive_holders else row.memory_used_mib)}
        if row.exclusive_holders:
            memory["memory_used_mib"] = info.memory_mib
        session.execute(_UPDATE.values(facts | memory), {"of_uuid": uuid})
        if row.state == GpuState.OFFLINE and row.state_source == "inventory":
            put_back(session, row, actor, now)
    for uuid, row in known.items():
        if uuid in reported or not row.present:
            continue
        if row.state not in (GpuState.OFFLINE, GpuState.RESETTING):  # those stay with who took them out
            take_out(session, row, GpuState.OFFLINE, "inventory", _VANISHED, actor, now)
        session.execute(_UPDATE.values(present=False), {"of_uuid": uuid})


def follow_self_reports(
    session: Session, name: str, before: Mapping[str, str], after: Mapping[str, str], now: datetime
) -> None:
    """DEGRADED as long as the host itself says so (too hot, device lost); what others took out stays out."""
    if not before and not after:
        return
    query = select(gpu).where(gpu.c.host == name, gpu.c.uuid.in_(sorted({*before, *after}))).order_by(gpu.c.uuid)
    for row in session.execute(query.with_for_update(key_share=True)).all():
        if row.uuid in after and row.state in (*_IN_SERVICE, *_DRAIN):
            take_out(session, row, GpuState.DEGRADED, "host", after[row.uuid], f"node/{name}", now)
        elif row.uuid not in after and row.state == GpuState.DEGRADED and row.state_source == "host":
            put_back(session, row, f"node/{name}", now)


# ---- the steps ----


def _reported_unfit(session: Session, row: Row[Any]) -> str | None:
    """What its host says against it by its last report, with what was known before: that is what must be done."""
    degraded = session.scalar(select(host.c.degraded).where(host.c.name == row.host))
    told = json.loads(degraded or "{}").get(row.uuid)
    if told is None or not row.reason or row.reason in told:
        return told
    known = without_next_step(row.reason)
    return known if told in known else f"{told}; {known}"


def _new(name: str, info: GpuInfo) -> dict[str, Any]:
    return {
        "uuid": info.uuid,
        "host": name,
        "index": info.index,
        "state": GpuState.AVAILABLE.value,
        "memory_mib": info.memory_mib,
        "facts": info.model_dump_json(),
    }


def _check_moved(session: Session, row: Row[Any], to_host: str) -> None:
    if row.host == to_host:
        return
    state = session.scalar(select(host.c.state).where(host.c.name == row.host))
    if row.exclusive_holders or row.sm_percent_used or (row.present and state != HostState.LOST):
        raise InvalidRequest(
            f"{to_host} reports GPU {row.uuid}, which belongs to {row.host} ({state}); "
            "do two node workers run on one machine? Stop one of them",
            gpu_uuid=row.uuid,
        )


def take_out(
    session: Session, row: Row[Any], state: GpuState, source: str, reason: str | None, actor: str, now: datetime
) -> None:
    check_transition(f"GPU {row.uuid}", GpuState(row.state), state)
    session.execute(_UPDATE.values(state=state.value, state_source=source, reason=reason), {"of_uuid": row.uuid})
    if row.state != state or row.reason != reason:
        data = {"state": state.value, "reason": reason}
        append_event(session, "gpu.state", actor, now, host=row.host, gpu_uuid=row.uuid, data=data)


def _drain(session: Session, row: Row[Any], reason: str | None, actor: str, now: datetime) -> None:
    reason = reason or (row.cordon_reason if row.cordoned else None)  # asked again, without saying why again
    session.execute(_UPDATE.values(cordoned=True, cordon_reason=reason), {"of_uuid": row.uuid})
    if row.state in (*_IN_SERVICE, *_DRAIN):
        held = session.execute(_HOLDERS, {"of_uuid": row.uuid}).first() is not None
        take_out(session, row, GpuState.DRAINING if held else GpuState.DRAINED, "operator", reason, actor, now)
        return
    data = {"state": row.state, "reason": reason, "drained_later": True}
    append_event(session, "gpu.state", actor, now, host=row.host, gpu_uuid=row.uuid, data=data)


def put_back(session: Session, row: Row[Any], actor: str, now: datetime, why: str | None = None) -> GpuState:
    """AVAILABLE, unless a gang still holds it: then what that gang is. A cordoned GPU is drained instead."""
    held_by = session.execute(_HOLDERS, {"of_uuid": row.uuid}).all()
    if row.cordoned:
        state = GpuState.DRAINING if held_by else GpuState.DRAINED
        take_out(session, row, state, "operator", row.cordon_reason, actor, now)
        return state
    state = GpuState.AVAILABLE
    if held_by:
        state = GpuState.IN_USE if any(holder.running_at for holder in held_by) else GpuState.ALLOCATED
    check_transition(f"GPU {row.uuid}", GpuState(row.state), state)
    session.execute(_UPDATE.values(state=state.value, state_source=None, reason=None), {"of_uuid": row.uuid})
    data = {"state": state.value, **({"reason": why} if why else {})}
    append_event(session, "gpu.state", actor, now, host=row.host, gpu_uuid=row.uuid, data=data)
    return state


def lock_gpu(session: Session, uuid: str) -> Row[Any]:
    row = session.execute(_LOCK, {"of_uuid": uuid}).one_or_none()
    if row is None:
        raise _no_such_gpu(uuid)
    return row


def _resolve(session: Session, reference: str) -> str:
    """The uuid that ``reference`` means."""
    name, colon, index = reference.rpartition(":")
    condition = gpu.c.uuid.startswith(reference, autoescape=True)
    if colon and index.isdecimal():
        condition = (gpu.c.host == name) & (gpu.c.index == int(index))
    found = list(session.scalars(select(gpu.c.uuid).where(condition).order_by(gpu.c.uuid).limit(4)))
    if reference in found:
        return reference
    if not found or not reference:
        raise _no_such_gpu(reference)
    if len(found) > 1:
        raise InvalidRequest(f"{reference!r} is the beginning of several GPUs: {', '.join(found[:3])}…; write more")
    return found[0]


def _gpu(session: Session, uuid: str) -> Gpu:
    return _gpus(session, _GPUS.where(gpu.c.uuid == uuid))[0]


def _gpus(session: Session, query: Any) -> list[Gpu]:
    telemetry: dict[str, dict[str, dict[str, Any]]] = {}
    found: list[Gpu] = []
    rows = session.execute(query).all()
    holders: dict[str, list[GpuHolder]] = {}
    held = [row.uuid for row in rows if row.job_id is not None]
    for row in session.execute(_HOLDERS_OF, {"uuids": held}) if held else ():
        share = None if row.exclusive else grant_of(row)
        holders.setdefault(row.gpu_uuid, []).append(GpuHolder(job_id=row.job_id, attempt=row.attempt, share=share))
    for row in rows:
        if row.host not in telemetry:
            telemetry[row.host] = {item["uuid"]: item for item in json.loads(row.telemetry)}
        measured = {name: value for name, value in telemetry[row.host].get(row.uuid, {}).items() if name != "uuid"}
        found.append(
            Gpu(
                info=GpuInfo.model_validate_json(row.facts),
                host=row.host,
                host_state=HostState(row.host_state),
                state=GpuState(row.state),
                reason=row.reason,
                job_id=row.job_id,
                holders=holders.get(row.uuid, []),
                shared_by=row.tenant or None,
                percent_granted=row.sm_percent_used,
                memory_granted_mib=row.memory_used_mib,
                fault_count=row.fault_count,
                reset_count=row.reset_count,
                **measured,
            )
        )
    return found


def _no_such_gpu(reference: str) -> NotFound:
    return NotFound(f"there is no GPU {reference!r}; name it by uuid, the beginning of one, or host:index")


# ---- the statements, compiled once ----

_LOCK = select(gpu).where(gpu.c.uuid == bindparam("of_uuid")).with_for_update(key_share=True)
_UPDATE = update(gpu).where(gpu.c.uuid == bindparam("of_uuid"))
_HOLDERS = select(allocation.c.job_id, allocation.c.attempt, allocation.c.running_at).where(
    allocation.c.gpu_uuid == bindparam("of_uuid"), allocation.c.released_at.is_(None)
)
_HOLDERS_OF = (
    select(
        allocation.c.job_id,
        allocation.c.attempt,
        allocation.c.gpu_uuid,
        allocation.c.exclusive,
        allocation.c.sm_percent,
        allocation.c.memory_mib,
        allocation.c.mig_mask,
        allocation.c.share_mode,
        allocation.c.mig_profile,
    )
    .where(allocation.c.gpu_uuid.in_(bindparam("uuids", expanding=True)), allocation.c.released_at.is_(None))
    .order_by(allocation.c.job_id, allocation.c.attempt)
)
_HOLDER = (
    select(func.min(allocation.c.job_id))
    .where(allocation.c.gpu_uuid == gpu.c.uuid, allocation.c.released_at.is_(None))
    .correlate(gpu)
    .scalar_subquery()
)
_GPUS = (
    select(
        gpu.c.uuid,
        gpu.c.host,
        gpu.c.state,
        gpu.c.reason,
        gpu.c.fault_count,
        gpu.c.reset_count,
        gpu.c.facts,
        gpu.c.tenant,
        gpu.c.sm_percent_used,
        gpu.c.memory_used_mib,
        host.c.telemetry,
        host.c.state.label("host_state"),
        _HOLDER.label("job_id"),
    )
    .join(host, host.c.name == gpu.c.host)
    .order_by(gpu.c.host, gpu.c.index)
)
