"""Repairs of whole hosts: one at a time in each failure domain, the host out of service meanwhile."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.hosts.remediation import RepairBegun, RepairStep, RepairView
from gpu_platform.domain.states import GpuState, HostState, check_transition
from gpu_platform.store.database import read_record, read_records, upsert, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.hosts.gpu_states import lock_gpu, take_out
from gpu_platform.store.jobs.admission import parse_inventory
from gpu_platform.store.models import HostRecord, RepairRecord, allocation, host, repair
from gpu_platform.store.reservations.releasing import settle_drain

ACTOR = "remediation"
_SILENT = timedelta(minutes=30)
"""Whoever repairs a host looks more often than that; one that does not was terminated."""
_DAY_S = 86_400.0
_OUT = (GpuState.DEGRADED, GpuState.RESETTING, GpuState.OFFLINE)


@writing
def hold_gpu(session: Session, uuid: str, reason: str, now: datetime, *, first: bool) -> bool:
    """Take a GPU OFFLINE while its host is repaired, or waits for a repair. False: an operator has decided otherwise.

    ``first``: a fault has only just hit the GPU, which is still in service. Later, a GPU in service means that an
    operator put it online.
    """
    row = lock_gpu(session, uuid)
    if row.state == GpuState.OFFLINE and row.state_source == "operator":
        return False
    if not first and row.state not in _OUT:
        return False
    take_out(session, row, GpuState.OFFLINE, ACTOR, reason, ACTOR, now)
    return True


@writing
def begin_repair(
    session: Session,
    name: str,
    gpu_uuid: str,
    step: RepairStep,
    *,
    since: datetime,
    reboots_per_day: int,
    now: datetime,
) -> RepairBegun:
    """Take the host out of service for ``step``, unless a host of its failure domain is being repaired.

    Repeating it is a no-op. ``since``: when the GPU failed. Raises :class:`NotFound`.
    """
    rows = {row.name: row for row in read_records(session, HostRecord, _HOSTS)}
    if name not in rows:
        raise _no_such_host(name)
    ours = rows[name]
    repairs = {row.host: row for row in read_records(session, RepairRecord, select(repair))}
    last = repairs.get(name)
    if last is not None and last.ended_at is None and last.gpu_uuid == gpu_uuid and last.step == step:
        return RepairBegun(began=True, boot_id=last.boot_id)
    if last is not None and _done_since(last, step, since):
        return RepairBegun(began=False, done_before=True, boot_id=ours.boot_id)
    for other in repairs.values():
        shared = _shared_domain(ours, rows.get(other.host))
        if other.ended_at is None and now - other.renewed_at < _SILENT and shared is not None:
            where = "it" if other.host == name else f"host {other.host}, of the same {shared},"
            return RepairBegun(began=False, refusal=f"{where} is being repaired ({other.step}): one at a time")
    reboots = _reboots(last, now)
    if step is RepairStep.REBOOT and len(reboots) >= reboots_per_day:
        why = f"{name} was rebooted {len(reboots)} times within 24 h (limit {reboots_per_day})"
        return RepairBegun(began=False, is_final=True, refusal=why)
    taken_over = last is not None and last.ended_at is None
    entry = {
        "host": name,
        "gpu_uuid": gpu_uuid,
        "step": step.value,
        "began_at": now,
        "renewed_at": now,
        "ended_at": None,
        "cordoned": last.cordoned if taken_over and last is not None else ours.cordoned,
        "boot_id": ours.boot_id,
        "reboots": json.dumps(reboots),
    }
    upsert(session, repair, entry)
    _cordon(session, ours, f"{step.description} of the host, for GPU {gpu_uuid}", now)
    data = {"step": step.value, "boot_id": ours.boot_id}
    append_event(session, "host.repair", ACTOR, now, host=name, gpu_uuid=gpu_uuid, data=data)
    return RepairBegun(began=True, boot_id=ours.boot_id)


@writing
def look_at_repair(session: Session, name: str, gpu_uuid: str, now: datetime) -> RepairView:
    """Read how far the repair is. It also notes that whoever repairs is alive. Raises :class:`NotFound`."""
    row = _lock(session, name)
    session.execute(update(repair).where(repair.c.host == name, repair.c.gpu_uuid == gpu_uuid).values(renewed_at=now))
    held = session.execute(_HELD.where(allocation.c.host == name)).all()
    keys = [AttemptKey(job_id=row.job_id, attempt=row.attempt) for row in held]
    return RepairView(host_state=HostState(row.state), boot_id=row.boot_id, held_by=keys, overruled=not row.cordoned)


@writing
def note_reboot(session: Session, name: str, gpu_uuid: str, how: str, now: datetime) -> None:
    """Count a reboot that is asked for now, whatever comes of it; once per repair. Raises :class:`NotFound`."""
    row = read_record(session, RepairRecord, select(repair).where(repair.c.host == name).with_for_update())
    if row is None:
        raise _no_such_host(name)
    reboots = _reboots(row, now)
    began = row.began_at.timestamp()
    if not any(at >= began for at in reboots):
        values = {"reboots": json.dumps([*reboots, now.timestamp()])}
        session.execute(update(repair).where(repair.c.host == name).values(values))
    append_event(session, "host.reboot", ACTOR, now, host=name, gpu_uuid=gpu_uuid, data={"how": how})


@writing
def end_repair(session: Session, name: str, gpu_uuid: str, problem: str | None, now: datetime) -> None:
    """Put the host back into service, unless an operator had cordoned it before.

    A no-op for a repair that has ended. Raises :class:`NotFound`.
    """
    row = _lock(session, name)
    which = (repair.c.host == name) & (repair.c.gpu_uuid == gpu_uuid) & repair.c.ended_at.is_(None)
    last = read_record(session, RepairRecord, select(repair).where(which))
    if last is None:
        return
    session.execute(update(repair).where(repair.c.host == name).values(ended_at=now))
    data: dict[str, Any] = {"step": last.step, "ok": problem is None, "problem": problem}
    append_event(session, "host.repaired", ACTOR, now, host=name, gpu_uuid=gpu_uuid, data=data)
    if last.cordoned or not row.cordoned:
        return
    values: dict[str, Any] = {"cordoned": False, "reason": None}
    if row.state in (HostState.DRAINING, HostState.DRAINED):
        check_transition(f"host {name}", HostState(row.state), HostState.READY)
        values["state"] = HostState.READY.value
        append_event(session, "host.state", ACTOR, now, host=name, data={"state": values["state"]})
    session.execute(update(host).where(host.c.name == name).values(values))


@writing
def open_service_case(session: Session, uuid: str, reason: str, tried: list[str], now: datetime) -> bool:
    """Take the GPU OFFLINE until an operator brings it back. The event says what was ``tried``.

    False: an operator took it OFFLINE before, or it has a case already.
    """
    row = lock_gpu(session, uuid)
    if row.state == GpuState.OFFLINE and row.state_source in ("operator", "service"):
        return False
    take_out(session, row, GpuState.OFFLINE, "service", reason, ACTOR, now)
    data = {"reason": reason, "tried": tried}
    append_event(session, "gpu.service_case", ACTOR, now, host=row.host, gpu_uuid=uuid, data=data)
    return True


def _cordon(session: Session, row: HostRecord, reason: str, now: datetime) -> None:
    if row.cordoned:
        return
    values: dict[str, Any] = {"cordoned": True, "reason": reason}
    if row.state == HostState.READY:
        check_transition(f"host {row.name}", HostState(row.state), HostState.DRAINING)
        values["state"] = HostState.DRAINING.value
        data = {"state": values["state"], "reason": reason}
        append_event(session, "host.state", ACTOR, now, host=row.name, data=data)
    session.execute(update(host).where(host.c.name == row.name).values(values))
    if "state" in values:
        settle_drain(session, row.name, now)


def _done_since(last: RepairRecord, step: RepairStep, since: datetime) -> bool:
    order = list(RepairStep)
    return (
        last.ended_at is not None and last.ended_at > since and order.index(RepairStep(last.step)) >= order.index(step)
    )


def _shared_domain(ours: HostRecord, other: HostRecord | None) -> str | None:
    """The failure domain that both hosts are in, for a message."""
    if other is None:
        return None
    if other.name == ours.name:
        return "host"
    mine, theirs = _domains(ours), _domains(other)
    return next((f"{level} {mine[level]}" for level in mine if mine[level] and mine[level] == theirs[level]), None)


def _domains(row: HostRecord) -> dict[str, str | None]:
    return {
        "NVLink domain": parse_inventory(row.inventory).nvlink_domain,
        "leaf": row.leaf,
        "spine": row.spine,
    }


def _reboots(row: RepairRecord | None, now: datetime) -> list[float]:
    """The times of its reboots within the last day."""
    times: list[float] = json.loads(row.reboots) if row is not None else []
    return [at for at in times if at > now.timestamp() - _DAY_S]


def _lock(session: Session, name: str) -> HostRecord:
    row = read_record(session, HostRecord, select(host).where(host.c.name == name).with_for_update(key_share=True))
    if row is None:
        raise _no_such_host(name)
    return row


def _no_such_host(name: str) -> NotFound:
    return NotFound(f"there is no host {name!r}", host=name)


_HOSTS = select(host).order_by(host.c.name).with_for_update(key_share=True)
"""All of them, locked: two hosts of one domain can never begin at once."""
_HELD = (
    select(allocation.c.job_id, allocation.c.attempt)
    .where(allocation.c.released_at.is_(None))
    .distinct()
    .order_by(allocation.c.job_id, allocation.c.attempt)
)
