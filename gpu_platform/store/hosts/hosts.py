"""Hosts: looking them up, their rows for the scheduler, and what operators ask for: drain, declare lost, remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, case, delete, func, literal, or_, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InUse, NotFound
from gpu_platform.domain.hosts.gpu import Host, HostCount
from gpu_platform.domain.jobs.environment import containers_of
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, HostUse
from gpu_platform.domain.states import GpuState, HostState, check_transition
from gpu_platform.store.database import read_record, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.hosts import flapping
from gpu_platform.store.hosts.reported_gpus import ask_refused_again
from gpu_platform.store.jobs.admission import parse_inventory
from gpu_platform.store.leadership import membership
from gpu_platform.store.leadership.domain_losses import LOST_WITH
from gpu_platform.store.leadership.leases import ATTEMPTS_AT_HOST, lose
from gpu_platform.store.models import HostRecord, allocation, gpu, host, machine_identity, repair
from gpu_platform.store.reservations.releasing import settle_drain
from gpu_platform.store.reservations.shares import use_of


@reading
def list_hosts(session: Session, now: datetime, *, offset: int = 0, limit: int | None = None) -> list[Host]:
    """Hosts by name: ``limit`` of them (None: all) from ``offset``."""
    return [_host(row, now) for row in session.execute(_HOSTS.offset(offset or None).limit(limit))]


@reading
def count_hosts(session: Session) -> list[HostCount]:
    """How many hosts are in each state; LOST ones also by what they were lost with."""
    is_told = (host.c.state == HostState.LOST.value) & host.c.reason.startswith(LOST_WITH, autoescape=True)
    reason = case((is_told, host.c.reason), else_=None).label("lost_with")
    query = select(host.c.state, reason, func.count().label("hosts")).group_by(host.c.state, reason)
    return [
        HostCount(state=HostState(row.state), lost_with=row.lost_with, count=row.hosts)
        for row in session.execute(query.order_by(host.c.state, reason))
    ]


@reading
def count_free_gpus(session: Session) -> dict[str, int]:
    """Host -> how many whole GPUs a job could get there now, as ``Host.gpus_free``."""
    query = (
        select(host.c.name, host.c.state, _GPU_COUNTS.c.gpus_free)
        .outerjoin(_GPU_COUNTS, _GPU_COUNTS.c.host == host.c.name)
        .order_by(host.c.name)
    )
    return {row.name: (row.gpus_free or 0) if row.state == HostState.READY else 0 for row in session.execute(query)}


@reading
def get_host(session: Session, name: str, now: datetime) -> Host:
    """One host. Raises :class:`NotFound`."""
    return _get_host(session, name, now)


@dataclass(frozen=True, slots=True)
class HostAddresses:
    """Where a host is reached."""

    address: str
    """By ranks of other hosts."""
    url: str
    """Its node worker, which serves logs."""


@reading
def addresses(session: Session, name: str) -> HostAddresses:
    """Where the host is reached. Raises :class:`NotFound`."""
    row = session.execute(select(host.c.address, host.c.url).where(host.c.name == name)).one_or_none()
    if row is None:
        raise _no_such_host(name)
    return HostAddresses(row.address, row.url)


@reading
def host_at(session: Session, address: str, *, other_than: str) -> str | None:
    """Another host that has this address, for its ranks or its node worker. None: there is none."""
    url = [host.c.url.contains(f"{before}{address}:", autoescape=True) for before in ("//", "@")]
    return session.scalar(select(host.c.name).where(host.c.name != other_than, or_(host.c.address == address, *url)))


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
    """What an operator asks for: READY (online), DRAINING or DRAINED (drain), LOST (declare it lost now).

    A drained host is DRAINED at once when nothing is held there, else when the last gang is released. A LOST host stays
    LOST until it reports again; then it is as the operator asked. Raises :class:`NotFound`, :class:`IllegalTransition`.
    """
    row = read_record(session, HostRecord, LOCK_HOST, {"host_name": name})
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
        session.execute(UPDATE_HOST.values(cordoned=True, cordoned_for=None, declared_lost=True), {"host_name": name})
        return _get_host(session, name, now)
    cordoned = wanted is HostState.DRAINING
    flapping.forget(session, "host", name)
    kept = row.reason if settled and row.cordoned_for is None else None
    # What an operator asks for stays when a maintenance window ends that cordoned the host before.
    values: dict[str, Any] = {
        "cordoned": cordoned,
        "cordoned_for": None,
        "reason": (reason or kept) if cordoned else None,
    }
    if wanted is HostState.READY:
        values["online_at"] = now
    if current is not HostState.LOST and not settled:
        values["state"] = wanted.value
        append_event(session, "host.state", actor, now, host=name, data={"state": wanted.value, "reason": reason})
    elif reason and reason != row.reason:  # nothing changes now, but who wanted what stays known
        data = {"state": current.value, "wanted": wanted.value, "reason": reason}
        append_event(session, "host.state", actor, now, host=name, data=data)
    session.execute(UPDATE_HOST.values(values), {"host_name": name})
    if values.get("state") == HostState.DRAINING:
        settle_drain(session, name, now)
    return _get_host(session, name, now)


@writing
def remove_host(session: Session, name: str, *, reason: str | None, actor: str, now: datetime) -> None:
    """Remove a host that is LOST or DRAINED, holds nothing and does not report, with its GPUs and old allocations.

    Usage and events stay. If its node worker reports again, it is a new host. Raises :class:`NotFound` and
    :class:`InUse`.
    """
    row = read_record(session, HostRecord, LOCK_HOST, {"host_name": name})
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
    ask_refused_again(session)
    session.execute(delete(repair).where(repair.c.host == name))
    session.execute(delete(host).where(host.c.name == name))
    membership.refresh(session)
    append_event(session, "host.removed", actor, now, host=name, data={"reason": reason})


def _get_host(session: Session, name: str, now: datetime) -> Host:
    row = session.execute(_HOSTS.where(host.c.name == name)).one_or_none()
    if row is None:
        raise _no_such_host(name)
    return _host(row, now).model_copy(update={"nvlinks": parse_inventory(row.inventory).nvlinks})


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
        nvlink_domain=inventory.nvlink_domain,
        labels=inventory.labels,
        containers=containers_of(inventory.labels) if inventory.isolates else [],
        outputs_root=inventory.outputs_root,
        refused_gpus=inventory.refused_gpus,
        lease_remaining_s=max(0.0, (row.lease_until - now).total_seconds()),
        gpus_total=row.gpus_total or 0,
        gpus_free=(row.gpus_free or 0) if row.state == HostState.READY else 0,
        reason=row.reason,
        certificate_ends_at=row.certificate_ends_at,
    )


def _no_such_host(name: str) -> NotFound:
    return NotFound(f"there is no host {name!r}", host=name)


# ---- the statements, compiled once ----

LOCK_HOST = select(host).where(host.c.name == bindparam("host_name")).with_for_update(key_share=True)
UPDATE_HOST = update(host).where(host.c.name == bindparam("host_name"))
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
    select(
        host,
        _GPU_COUNTS.c.gpus_total,
        _GPU_COUNTS.c.gpus_free,
        machine_identity.c.expires_at.label("certificate_ends_at"),
    )
    .outerjoin(_GPU_COUNTS, _GPU_COUNTS.c.host == host.c.name)
    .outerjoin(machine_identity, machine_identity.c.path == literal("node/") + host.c.name)
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
