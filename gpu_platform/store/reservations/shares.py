"""Shares of GPUs, and CPUs and memory of hosts: taken by ``reserving`` and given back by ``releasing``.

Nothing is given twice. Two things hold that: a conditional update, whose row count is checked, and the CHECK
constraints of the tables ``gpu`` and ``host``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, bindparam, case, func, literal, null, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import ReservationConflict
from gpu_platform.domain.hosts.share import GpuUse, ShareGrant, ShareMode, first_use
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.states import GpuState
from gpu_platform.store.database import change
from gpu_platform.store.models import allocation, gpu, host, job
from gpu_platform.store.reservations.allocations import THEIRS_HELD
from gpu_platform.store.transitions import next_state

_TAKEN = [GpuState.ALLOCATED.value, GpuState.IN_USE.value]


@dataclass(frozen=True)
class AllocationItem:
    """What an attempt takes of one GPU and of that GPU's host, or of a host alone. One row of ``allocation``.

    A placement lists GPUs by host; GPUs are locked, and constrained by the database, one by one.
    """

    uuid: str | None
    """None: no GPU, only CPUs and memory of the host."""
    host: str
    grant: ShareGrant | None
    """None: all of the GPU."""
    cpus: int = 0
    ram_mib: int = 0


def allocation_items(placement: Placement) -> list[AllocationItem]:
    """The items of a placement, sorted by the GPU's uuid: the order in which GPUs are locked.

    A host slice without GPUs comes last. The first GPU of a slice carries the slice's CPUs and memory.
    """
    items = []
    for host_slice in placement.slices:
        for place, uuid in enumerate(host_slice.gpu_uuids):
            grant = host_slice.shares[place] if host_slice.shares else None
            with_host = (host_slice.cpus, host_slice.ram_mib) if place == 0 else (0, 0)
            items.append(AllocationItem(uuid, host_slice.host, grant, *with_host))
        if not host_slice.gpu_uuids:
            items.append(AllocationItem(None, host_slice.host, None, host_slice.cpus, host_slice.ram_mib))
    return sorted(items, key=lambda item: (item.uuid is None, item.uuid or item.host))


def take_host_resources(session: Session, items: Iterable[AllocationItem]) -> None:
    """Take CPUs and memory, inside a transaction that has locked the hosts. Raises :class:`ReservationConflict`."""
    for name, (cpus, ram_mib) in sorted(_by_host((c.host, c.cpus, c.ram_mib) for c in items).items()):
        asked = {"of_host": name, "cpus_": cpus, "ram_": ram_mib}
        if change(session, _TAKE_HOST_RESOURCES, asked) != 1:
            row = session.execute(_HOST_RESOURCES, {"of_host": name}).one()
            raise ReservationConflict(
                f"{cpus} CPUs and {ram_mib} MiB of {name} were asked for; "
                f"{row.cpus - row.cpus_used} and {row.ram_mib - row.ram_mib_used} are left",
                host=name,
            )


def release_host_resources(session: Session, theirs: Mapping[str, Any]) -> None:
    """Give back all CPUs and memory of the attempts (see ``THEIRS_HELD``), inside a transaction that has locked the
    hosts."""
    rows = session.execute(_HELD_HOST_RESOURCES, theirs)
    for name, (cpus, ram_mib) in sorted(_by_host((row.host, row.cpus, row.ram_mib) for row in rows).items()):
        session.execute(_RELEASE_HOST_RESOURCES, {"of_host": name, "cpus_": cpus, "ram_": ram_mib})


def need_host_resources(items: Iterable[AllocationItem]) -> bool:
    """Whether the items take CPUs or memory, so that the hosts' rows must be locked."""
    return any(item.cpus or item.ram_mib for item in items)


def check_share(row: Row[Any], use: GpuUse) -> str | None:
    """Why the GPU cannot give ``use`` as one more share; None if it can. ``row`` was read with a lock."""
    if row.exclusive_holders or (row.state != GpuState.AVAILABLE and row.state not in _TAKEN):
        return f"is {row.state}"
    if row.sm_percent_used and (row.share_mode, row.tenant) != (use.mode.value, use.tenant):
        return f"is shared by {row.tenant or 'others'} ({row.share_mode})"
    if row.mig_mask & use.mig_mask or row.mig_media + use.mig_media > 1:
        return f"has no place for the MIG instance at slices {use.mig_mask:08b}: {row.mig_mask:08b} are taken"
    if row.sm_percent_used + use.percent > 100 or row.memory_used_mib + use.memory_mib > row.memory_mib:
        left = f"{100 - row.sm_percent_used} % and {row.memory_mib - row.memory_used_mib} MiB are left"
        return f"has too little left: {use.percent} % and {use.memory_mib} MiB were asked for, {left}"
    return None


def take_share(session: Session, uuid: str, use: GpuUse) -> bool:
    """Take one share, inside a transaction that has locked the GPU. False: it has too little left."""
    return change(session, _TAKE_SHARE, _values(uuid, use)) == 1


def release_shares(session: Session, theirs: Mapping[str, Any]) -> None:
    """Release all shares of the attempts (see ``THEIRS_HELD``), inside a transaction that has locked their GPUs."""
    for row in session.execute(_HELD_SHARES, theirs).all():
        values = _values(row.gpu_uuid, first_use(grant_of(row), ""))
        session.execute(_RELEASE_SHARE, {name: values[name] for name in values if name not in ("mode_", "tenant_")})


def namespace_of(session: Session, job_id: str) -> str:
    """The job's namespace; empty if there is no such job."""
    return session.scalar(_NAMESPACE, {"of_job": job_id}) or ""


def allocation_values(item: AllocationItem, memory_mib: int) -> dict[str, Any]:
    """The columns of ``allocation`` that say what was taken. ``memory_mib``: the whole memory of the GPU."""
    grant = item.grant
    whole = item.uuid is not None and grant is None
    return {
        "exclusive": whole,
        "sm_percent": 100 * whole if grant is None else grant.percent,
        "memory_mib": memory_mib if grant is None else grant.memory_mib,
        "mig_mask": 0 if grant is None else grant.mig_mask,
        "share_mode": None if grant is None else grant.mode.value,
        "mig_profile": None if grant is None else grant.mig_profile,
        "cpus": item.cpus,
        "ram_mib": item.ram_mib,
    }


def grant_of(row: Any) -> ShareGrant:
    """The share that a row of ``allocation`` holds; the row must not be exclusive."""
    mask = int(row.mig_mask)
    return ShareGrant(
        mode=ShareMode(row.share_mode),
        percent=row.sm_percent,
        memory_mib=row.memory_mib,
        mig_profile=row.mig_profile,
        mig_start=(mask & -mask).bit_length() - 1 if mask else None,
        mig_size=mask.bit_count() if mask else None,
    )


def use_of(row: Any) -> GpuUse | None:
    """The sum of the shares that are taken of the GPU of this row; None if nobody has a share of it."""
    if row.share_mode is None:
        return None
    return GpuUse(
        mode=ShareMode(row.share_mode),
        tenant=row.tenant,
        percent=row.sm_percent_used,
        memory_mib=row.memory_used_mib,
        mig_mask=row.mig_mask,
        mig_compute_slices=row.mig_compute_slices,
        mig_media=row.mig_media,
    )


def _by_host(uses: Iterable[tuple[str, int, int]]) -> dict[str, tuple[int, int]]:
    cpus, ram_mib = Counter[str](), Counter[str]()
    for name, more_cpus, more_ram_mib in uses:
        cpus[name] += more_cpus
        ram_mib[name] += more_ram_mib
    return {name: (cpus[name], ram_mib[name]) for name in cpus if cpus[name] or ram_mib[name]}


def _values(uuid: str, use: GpuUse) -> dict[str, Any]:
    return {
        "of_uuid": uuid,
        "mode_": use.mode.value,
        "tenant_": use.tenant,
        "percent_": use.percent,
        "memory_": use.memory_mib,
        "mask_": use.mig_mask,
        "compute_": use.mig_compute_slices,
        "media_": use.mig_media,
    }


# ---- the statements, compiled once ----

_NAMESPACE = select(job.c.namespace).where(job.c.id == bindparam("of_job"))
_HOST_RESOURCES = select(host.c.cpus, host.c.ram_mib, host.c.cpus_used, host.c.ram_mib_used).where(
    host.c.name == bindparam("of_host")
)
_TAKE_HOST_RESOURCES = (
    update(host)
    .where(
        host.c.name == bindparam("of_host"),
        host.c.cpus_used + bindparam("cpus_") <= host.c.cpus,
        host.c.ram_mib_used + bindparam("ram_") <= host.c.ram_mib,
    )
    .values(cpus_used=host.c.cpus_used + bindparam("cpus_"), ram_mib_used=host.c.ram_mib_used + bindparam("ram_"))
)
_RELEASE_HOST_RESOURCES = (
    update(host)
    .where(host.c.name == bindparam("of_host"))
    .values(cpus_used=host.c.cpus_used - bindparam("cpus_"), ram_mib_used=host.c.ram_mib_used - bindparam("ram_"))
)
_HELD_HOST_RESOURCES = (
    select(
        allocation.c.host,
        func.sum(allocation.c.cpus).label("cpus"),
        func.sum(allocation.c.ram_mib).label("ram_mib"),
    )
    .where(THEIRS_HELD, (allocation.c.cpus > 0) | (allocation.c.ram_mib > 0))
    .group_by(allocation.c.host)
    .order_by(allocation.c.host)
)
_HELD_SHARES = (
    select(
        allocation.c.gpu_uuid,
        allocation.c.sm_percent,
        allocation.c.memory_mib,
        allocation.c.mig_mask,
        allocation.c.share_mode,
        allocation.c.mig_profile,
    )
    .where(THEIRS_HELD, ~allocation.c.exclusive, allocation.c.gpu_uuid.is_not(None))
    .order_by(allocation.c.gpu_uuid)
)
_TAKE_SHARE = (
    update(gpu)
    .where(
        gpu.c.uuid == bindparam("of_uuid"),
        gpu.c.exclusive_holders == 0,
        ((gpu.c.state == GpuState.AVAILABLE.value) & (gpu.c.sm_percent_used == 0))
        | (gpu.c.state.in_(_TAKEN) & (gpu.c.share_mode == bindparam("mode_")) & (gpu.c.tenant == bindparam("tenant_"))),
        gpu.c.sm_percent_used + bindparam("percent_") <= 100,
        gpu.c.memory_used_mib + bindparam("memory_") <= gpu.c.memory_mib,
        gpu.c.mig_mask.op("&")(bindparam("mask_")) == 0,
        gpu.c.mig_compute_slices + bindparam("compute_") <= 7,
        gpu.c.mig_media + bindparam("media_") <= 1,
    )
    .values(
        state=next_state(gpu.c.state, {GpuState.AVAILABLE: GpuState.ALLOCATED}),
        share_mode=bindparam("mode_"),
        tenant=bindparam("tenant_"),
        sm_percent_used=gpu.c.sm_percent_used + bindparam("percent_"),
        memory_used_mib=gpu.c.memory_used_mib + bindparam("memory_"),
        mig_mask=gpu.c.mig_mask + bindparam("mask_"),
        mig_compute_slices=gpu.c.mig_compute_slices + bindparam("compute_"),
        mig_media=gpu.c.mig_media + bindparam("media_"),
    )
)
_WAS_LAST = gpu.c.sm_percent_used == bindparam("percent_")
_RELEASE_SHARE = (
    update(gpu)
    .where(gpu.c.uuid == bindparam("of_uuid"))
    .values(
        state=next_state(
            gpu.c.state,
            {
                GpuState.ALLOCATED: GpuState.AVAILABLE,
                GpuState.IN_USE: GpuState.AVAILABLE,
                GpuState.DRAINING: GpuState.DRAINED,
            },
            when=_WAS_LAST,
        ),
        share_mode=case((_WAS_LAST, null()), else_=gpu.c.share_mode),
        tenant=case((_WAS_LAST, literal("")), else_=gpu.c.tenant),
        sm_percent_used=gpu.c.sm_percent_used - bindparam("percent_"),
        memory_used_mib=gpu.c.memory_used_mib - bindparam("memory_"),
        mig_mask=gpu.c.mig_mask - bindparam("mask_"),
        mig_compute_slices=gpu.c.mig_compute_slices - bindparam("compute_"),
        mig_media=gpu.c.mig_media - bindparam("media_"),
    )
)
