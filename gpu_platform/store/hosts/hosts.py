"""Hosts: registration, lease, drain, loss."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InUse, NotFound, StaleReport
from gpu_platform.domain.hosts.gpu import Host
from gpu_platform.domain.hosts.lease import HostReport, LeaseAnswer
from gpu_platform.domain.hosts.lease_protocol import LeaseTimes, renews
from gpu_platform.domain.jobs.attempt import AttemptKey
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, HostUse
from gpu_platform.domain.states import GpuState, HostState, check_transition
from gpu_platform.store.database import insert_new, reading, writing, writing_unsynced
from gpu_platform.store.events import append_event
from gpu_platform.store.hosts import flapping
from gpu_platform.store.hosts.gpus import follow_inventory, follow_self_reports
from gpu_platform.store.jobs.admission import parse_inventory
from gpu_platform.store.jobs.checkpoints import remember_checkpoints
from gpu_platform.store.leadership import membership
from gpu_platform.store.leadership.leases import ATTEMPTS_AT_HOST, first_term, lose
from gpu_platform.store.models import allocation, gpu, host, leader, repair
from gpu_platform.store.reservations.releasing import settle_drain
from gpu_platform.store.reservations.shares import use_of
from gpu_platform.store.restoring.restoring import judge


@writing_unsynced
def report_host(session: Session, report: HostReport, *, ttl_s: float, now: datetime) -> LeaseAnswer:
    """Register the host or renew its lease for ``ttl_s``; the answer names the attempts it must kill.

    Stale is an attempt that holds nothing at this host, or held something when the host was declared LOST: its job
    was told to run elsewhere. A LOST host is back in service only once it reports no stale attempt. While this database
    may be an older one, a host with stale attempts is LOST, and those that may be restored are not killed yet (see
    ``restoring``). Without news a report writes one row and no event. Raises :class:`InvalidRequest` when another
    living host has the same GPU, and :class:`StaleReport` for one that arrives after a newer one.
    """
    row = session.execute(_LOCK_HOST, {"host_name": report.name}).one_or_none()
    if row is None and _register(session, report, ttl_s, now):
        row = session.execute(_LOCK_HOST, {"host_name": report.name}).one()
        judged = judge(session, report.round, report.attempts, now)
        return _answer(session, report, row, ttl_s, judged.kill, renewed=True)
    row = row or session.execute(_LOCK_HOST, {"host_name": report.name}).one()
    if report.seq and report.seq <= row.report_seq and report.boot_id == row.boot_id:
        raise StaleReport(f"host {report.name} has sent report {row.report_seq} since {report.seq}")
    stale = _stale(session, report)
    judged = judge(session, report.round, stale, now)
    values = _lease(report, ttl_s, now)
    current = session.scalar(_ROUND) or 0
    # A node worker of an older release brings back no rounds.
    renewed = report.seq == 0 or renews(LeaseTimes.of(ttl_s), report.round, current)
    is_back = row.state == HostState.LOST and not stale
    # A host that is back has a whole lease to bring the round: else the leader declares it LOST again at once.
    if not renewed and not is_back:
        del values["lease_until"], values["lease_s"]
    values.update(_changed_columns(session, row, report, now))
    follow_self_reports(session, report.name, json.loads(row.degraded), report.degraded, now)
    if judged.keep_out and row.state != HostState.LOST:
        check_transition(f"host {report.name}", HostState(row.state), HostState.LOST)
        values.update(state=HostState.LOST.value, reason=_UNKNOWN_JOBS)
        append_event(session, "host.state", _node(report), now, host=report.name, data={"state": values["state"]})
    if is_back:
        check_transition(f"host {report.name}", HostState.LOST, _state_in_service(row.cordoned))
        values.update(state=_state_in_service(row.cordoned).value, reason=row.reason if row.cordoned else None)
        values.update(declared_lost=False)
        append_event(session, "host.state", _node(report), now, host=report.name, data={"state": values["state"]})
    session.execute(_UPDATE_HOST.values(values), {"host_name": report.name})
    if values["checkpoints"] != row.checkpoints:
        remember_checkpoints(session, report, row.checkpoints)
    if "state" in values or "agent_url" in values:
        membership.refresh(session)
    if values.get("state") == HostState.DRAINING:
        settle_drain(session, report.name, now)
    return _answer(session, report, row, ttl_s, judged.kill, renewed=renewed)


@reading
def list_hosts(session: Session, now: datetime) -> list[Host]:
    """All hosts, by name."""
    return [_host(row, now) for row in session.execute(_HOSTS)]


@reading
def get_host(session: Session, name: str, now: datetime) -> Host:
    return _get_host(session, name, now)


@reading
def agent_url(session: Session, name: str) -> str:
    """The URL of the host's node worker, which serves logs. Raises :class:`NotFound`."""
    url = session.scalar(select(host.c.agent_url).where(host.c.name == name))
    if url is None:
        raise _no_such_host(name)
    return url


@reading
def read_hosts(session: Session, names: Sequence[str] | None = None) -> list[HostRow]:
    """The scheduler's rows of all hosts, or of ``names``."""
    query = select(host.c.name, host.c.state, host.c.leaf, host.c.spine, host.c.inventory).order_by(host.c.name)
    if names is not None:
        query = query.where(host.c.name.in_(names))
    return [
        HostRow(
            name=row.name,
            state=HostState(row.state),
            inventory=parse_inventory(row.inventory),
            leaf=row.leaf,
            spine=row.spine,
        )
        for row in session.execute(query)
    ]


@reading
def read_gpus(session: Session, hosts: Sequence[str] | None = None) -> list[GpuRow]:
    """The scheduler's rows of all GPUs, or of those on ``hosts``."""
    query = _GPU_ROWS if hosts is None else _GPU_ROWS.where(gpu.c.host.in_(hosts))
    return [
        GpuRow(
            uuid=row.uuid,
            host=row.host,
            index=row.gpu_index,
            state=GpuState(row.state),
            free=row.state == GpuState.AVAILABLE and not (row.exclusive_holders or row.sm_percent_used or row.mig_mask),
            use=use_of(row),
        )
        for row in session.execute(query)
    ]


@reading
def read_host_use(session: Session, hosts: Sequence[str] | None = None) -> list[HostUse]:
    """CPUs and memory that jobs hold, on all hosts or on ``hosts``."""
    query = _ROOM if hosts is None else _ROOM.where(host.c.name.in_(hosts))
    return [HostUse(row.name, row.cpus_used, row.ram_mib_used) for row in session.execute(query)]


@writing
def set_host_state(
    session: Session, name: str, state: HostState, *, reason: str | None, actor: str, now: datetime
) -> Host:
    """What an operator asks for: READY (online), DRAINING or DRAINED (drain), LOST (declare it dead now).

    A drain is DRAINED at once when nothing is held, else when the last gang is released. A host that is LOST stays
    so until it reports again; what was asked is remembered. Raises :class:`NotFound`, :class:`IllegalTransition`.
    """
    row = session.execute(_LOCK_HOST, {"host_name": name}).one_or_none()
    if row is None:
        raise _no_such_host(name)
    current = HostState(row.state)
    wanted = HostState.DRAINING if state is HostState.DRAINED else state
    settled = wanted is current or (wanted is HostState.DRAINING and current is HostState.DRAINED)
    if not settled:
        check_transition(f"host {name}", current, wanted)
    if wanted is HostState.LOST:
        if current is not HostState.LOST:
            lose(session, name, reason or "declared lost", actor, now, declared=True)
            membership.refresh(session)
        session.execute(_UPDATE_HOST.values(cordoned=True, declared_lost=True), {"host_name": name})
        return _get_host(session, name, now)
    cordoned = wanted is HostState.DRAINING
    flapping.forget(session, "host", name)
    kept = row.reason if settled else None
    values: dict[str, Any] = {"cordoned": cordoned, "reason": (reason or kept) if cordoned else None}
    if wanted is HostState.READY:
        values["online_at"] = now
    if current is not HostState.LOST and not settled:
        values["state"] = wanted.value
        append_event(session, "host.state", actor, now, host=name, data={"state": wanted.value, "reason": reason})
    elif reason and reason != row.reason:  # nothing changes now, but who wanted what stays known
        data = {"state": current.value, "wanted": wanted.value, "reason": reason}
        append_event(session, "host.state", actor, now, host=name, data=data)
    session.execute(_UPDATE_HOST.values(values), {"host_name": name})
    if values.get("state") == HostState.DRAINING:
        settle_drain(session, name, now)
    return _get_host(session, name, now)


@writing
def remove_host(session: Session, name: str, *, reason: str | None, actor: str, now: datetime) -> None:
    """Forget a host that is LOST or DRAINED, holds nothing and does not report, with its GPUs and who had them when.

    Usage and the audit log stay. Should its node worker report again, it is a new host. Raises :class:`NotFound` and
    :class:`InUse`.
    """
    row = session.execute(_LOCK_HOST, {"host_name": name}).one_or_none()
    if row is None:
        raise _no_such_host(name)
    held = session.execute(ATTEMPTS_AT_HOST, {"host_name": name}).all()
    if held or row.state not in (HostState.LOST, HostState.DRAINED):
        ids = sorted({one.job_id for one in held})
        jobs = f"; {', '.join(ids)} still {'holds' if len(ids) == 1 else 'hold'} GPUs there" if ids else ""
        todo = "" if row.state == HostState.DRAINING else "drain it first, and "
        raise InUse(f"host {name} is {row.state}{jobs}: {todo}wait until it is DRAINED", host=name)
    if row.lease_until > now:
        left_s = (row.lease_until - now).total_seconds()
        raise InUse(
            f"host {name} still reports, and would be back as a new host without its drain: stop its node worker "
            f"(systemctl stop gpu-platform-node) and remove it {left_s:.0f} s later",
            host=name,
        )
    uuids = select(gpu.c.uuid).where(gpu.c.host == name)
    without_gpu = (allocation.c.host == name) & allocation.c.gpu_uuid.is_(None)
    session.execute(delete(allocation).where(allocation.c.gpu_uuid.in_(uuids) | without_gpu))
    session.execute(delete(gpu).where(gpu.c.host == name))
    session.execute(delete(repair).where(repair.c.host == name))
    session.execute(delete(host).where(host.c.name == name))
    membership.refresh(session)
    append_event(session, "host.removed", actor, now, host=name, data={"reason": reason})


# ---- the steps ----


def _register(session: Session, report: HostReport, ttl_s: float, now: datetime) -> bool:
    """Insert the host and its GPUs; False if another report of it was faster."""
    row = {
        "name": report.name,
        "state": HostState.READY.value,
        "registered_at": now,
        "leaf": report.leaf,
        "spine": report.spine,
        "inventory": report.inventory.model_dump_json(),
        "cpus": report.inventory.cpus or 0,
        "ram_mib": report.inventory.ram_mib or 0,
        "term": first_term(now),
        **_identity(report),
        **_lease(report, ttl_s, now),
    }
    if report.attempts:
        row["state"] = HostState.LOST.value  # nobody knows these attempts; they must die first
    if not insert_new(session, host, row):
        return False
    membership.refresh(session)
    follow_inventory(session, report, now)
    follow_self_reports(session, report.name, {}, report.degraded, now)
    _announce(session, report, ["new"], now)
    return True


def _changed_columns(session: Session, row: Row[Any], report: HostReport, now: datetime) -> dict[str, Any]:
    """The columns that differ from the last report, announced in one event."""
    inventory = report.inventory.model_dump_json()
    identity = _identity(report)
    fresh = {"leaf": report.leaf, "spine": report.spine, "inventory": inventory, **identity}
    changed = {name: value for name, value in fresh.items() if row._mapping[name] != value}
    if not changed:
        return {}
    values: dict[str, Any] = dict(changed)
    if "inventory" in changed:
        values["inventory_version"] = row.inventory_version + 1
        values["cpus"] = max(report.inventory.cpus or 0, row.cpus_used)
        values["ram_mib"] = max(report.inventory.ram_mib or 0, row.ram_mib_used)
        follow_inventory(session, report, now)
    _announce(session, report, sorted(changed), now)
    return values


def _announce(session: Session, report: HostReport, changed: list[str], now: datetime) -> None:
    data = {"changed": changed, "machine": report.inventory.machine, "gpus": len(report.inventory.gpus)}
    append_event(session, "host.registered", _node(report), now, host=report.name, data=data)


def _identity(report: HostReport) -> dict[str, Any]:
    return {
        "session": report.session,
        "boot_id": report.boot_id,
        "address": report.address,
        "agent_url": report.agent_url,
    }


def _lease(report: HostReport, ttl_s: float, now: datetime) -> dict[str, Any]:
    return {
        "lease_until": now + timedelta(seconds=report.lease_s or ttl_s),
        "lease_s": report.lease_s,
        "report_seq": report.seq,
        "round": report.round,
        "voted": report.voted,
        "members_known": report.members_version,
        "degraded": json.dumps(report.degraded, sort_keys=True),
        "telemetry": json.dumps([item.model_dump(exclude_none=True) for item in report.telemetry]),
        "checkpoints": json.dumps([item.model_dump() for item in report.checkpoints]),
        "checkpoint_root": report.checkpoint_root,
    }


def _answer(
    session: Session, report: HostReport, row: Row[Any], ttl_s: float, kill: Sequence[AttemptKey], *, renewed: bool
) -> LeaseAnswer:
    """Whatever list of members the host gets is written down first: it may act on it as soon as it has it."""
    version = membership.current_version(session)
    if version != row.members_sent:
        session.execute(_UPDATE_HOST.values(members_sent=version), {"host_name": report.name})
    return LeaseAnswer(
        ttl_s=ttl_s,
        kill=list(kill),
        online_ms=None if row.online_at is None else int(row.online_at.timestamp() * 1000),
        draining=row.cordoned,
        renewed=renewed,
        round=session.scalar(_ROUND) or 0,
        term=row.term,
        members_version=version,
        members=None if report.members_version == version else membership.read_members(session, version),
    )


def _node(report: HostReport) -> str:
    return f"node/{report.name}"


_UNKNOWN_JOBS = "it runs attempts that the database, maybe an older one, gives no GPUs: they are restored or stopped"


def _stale(session: Session, report: HostReport) -> list[AttemptKey]:
    if not report.attempts:
        return []
    held = {(row.job_id, row.attempt) for row in session.execute(_HELD_AT_HOST, {"host_name": report.name})}
    return [key for key in report.attempts if (key.job_id, key.attempt) not in held]


def _state_in_service(cordoned: bool) -> HostState:
    return HostState.DRAINING if cordoned else HostState.READY


def _get_host(session: Session, name: str, now: datetime) -> Host:
    row = session.execute(_HOSTS.where(host.c.name == name)).one_or_none()
    if row is None:
        raise _no_such_host(name)
    return _host(row, now)


def _host(row: Row[Any], now: datetime) -> Host:
    inventory = parse_inventory(row.inventory)
    return Host(
        name=row.name,
        state=HostState(row.state),
        machine=inventory.machine,
        leaf=row.leaf,
        spine=row.spine,
        address=row.address,
        simulated=inventory.simulated,
        isolation=inventory.isolation,
        missing_guarantees=inventory.missing_guarantees,
        driver_version=inventory.driver_version,
        cuda_version=inventory.cuda_version,
        cuda_installations=inventory.cuda_installations,
        unusable_cuda=inventory.unusable_cuda,
        nvswitches=inventory.nvswitches,
        nics=inventory.nics,
        lease_remaining_s=max(0.0, (row.lease_until - now).total_seconds()),
        gpus_total=row.gpus_total or 0,
        gpus_free=(row.gpus_free or 0) if row.state == HostState.READY else 0,
        reason=row.reason,
    )


def _no_such_host(name: str) -> NotFound:
    return NotFound(f"there is no host {name!r}", host=name)


# ---- the statements, compiled once ----

_ROUND = select(leader.c.round)
_LOCK_HOST = select(host).where(host.c.name == bindparam("host_name")).with_for_update(key_share=True)
_UPDATE_HOST = update(host).where(host.c.name == bindparam("host_name"))
_AT_HOST = (allocation.c.host == bindparam("host_name")) & allocation.c.released_at.is_(None)
_HELD_AT_HOST = (
    select(allocation.c.job_id, allocation.c.attempt).where(_AT_HOST, allocation.c.lost_at.is_(None)).distinct()
)
_GPU_COUNTS = (
    select(
        gpu.c.host,
        func.count().label("gpus_total"),
        func.count().filter(gpu.c.state == GpuState.AVAILABLE.value).label("gpus_free"),
    )
    .group_by(gpu.c.host)
    .subquery()
)
_HOSTS = (
    select(host, _GPU_COUNTS.c.gpus_total, _GPU_COUNTS.c.gpus_free)
    .outerjoin(_GPU_COUNTS, _GPU_COUNTS.c.host == host.c.name)
    .order_by(host.c.name)
)
_ROOM = select(host.c.name, host.c.cpus_used, host.c.ram_mib_used).order_by(host.c.name)
_GPU_ROWS = select(
    gpu.c.uuid,
    gpu.c.host,
    gpu.c.index.label("gpu_index"),  # Row.index is a method
    gpu.c.state,
    gpu.c.exclusive_holders,
    gpu.c.sm_percent_used,
    gpu.c.mig_mask,
    gpu.c.memory_used_mib,
    gpu.c.mig_compute_slices,
    gpu.c.mig_media,
    gpu.c.share_mode,
    gpu.c.tenant,
).order_by(gpu.c.host, gpu.c.index)
