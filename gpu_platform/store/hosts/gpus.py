"""GPUs: looking them up, with who holds them and what they do."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InvalidRequest, NotFound
from gpu_platform.domain.hosts.gpu import Gpu, GpuCount, GpuHolder, GpuInfo
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.store.database import reading
from gpu_platform.store.models import allocation, gpu, host
from gpu_platform.store.reservations.shares import grant_of


@reading
def list_gpus(
    session: Session,
    *,
    host: str | None = None,
    states: Collection[GpuState] | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> list[Gpu]:
    """GPUs by host and index, with their holder and last telemetry: ``limit`` of them (None: all) from ``offset``."""
    query = _GPUS.offset(offset or None).limit(limit)
    if host is not None:
        query = query.where(gpu.c.host == host)
    if states is not None:
        query = query.where(gpu.c.state.in_([GpuState(state).value for state in states]))
    return _gpus(session, query)


@reading
def gpus_of_job(session: Session, job_id: str) -> list[Gpu]:
    """The GPUs of which the job holds all or a share now."""
    held = select(allocation.c.gpu_uuid).where(allocation.c.job_id == job_id, allocation.c.released_at.is_(None))
    return _gpus(session, _GPUS.where(gpu.c.uuid.in_(held)))


@reading
def count_gpus(session: Session) -> dict[tuple[str, GpuState], int]:
    """(host, state) -> how many GPUs; pairs without any are left out."""
    query = select(gpu.c.host, gpu.c.state, func.count().label("gpus")).group_by(gpu.c.host, gpu.c.state)
    return {
        (row.host, GpuState(row.state)): row.gpus for row in session.execute(query.order_by(gpu.c.host, gpu.c.state))
    }


@reading
def count_shown(session: Session) -> list[GpuCount]:
    """How many GPUs are in each state on hosts of each state."""
    query = (
        select(host.c.state.label("host_state"), gpu.c.state, func.count().label("gpus"))
        .join(host, host.c.name == gpu.c.host)
        .group_by(host.c.state, gpu.c.state)
        .order_by(host.c.state, gpu.c.state)
    )
    return [
        GpuCount(state=GpuState(row.state), host_state=HostState(row.host_state), count=row.gpus)
        for row in session.execute(query)
    ]


@reading
def taken_gpus(session: Session) -> dict[str, tuple[float, int]]:
    """Host -> (GPUs that jobs hold, a share of 30 % as 0.3; all of its GPUs)."""
    taken = func.sum(gpu.c.sm_percent_used) / 100.0
    query = select(gpu.c.host, taken.label("held"), func.count().label("there")).group_by(gpu.c.host)
    return {row.host: (float(row.held), row.there) for row in session.execute(query.order_by(gpu.c.host))}


@reading
def get_gpu(session: Session, reference: str) -> Gpu:
    """A GPU by uuid, by the beginning of one, or as ``host:index``.

    Raises :class:`NotFound`, and :class:`InvalidRequest` if several begin like that.
    """
    return read_gpu(session, find_uuid(session, reference))


# ---- the steps; gpu_states.py uses them too ----


def read_gpu(session: Session, uuid: str) -> Gpu:
    """Inside a transaction: the GPU, which exists."""
    return _gpus(session, _GPUS.where(gpu.c.uuid == uuid))[0]


def _gpus(session: Session, query: Any) -> list[Gpu]:
    telemetry: dict[str, dict[str, dict[str, Any]]] = {}
    found: list[Gpu] = []
    rows = session.execute(query).all()
    holders: dict[str, list[GpuHolder]] = {}
    names = sorted({row.host for row in rows})
    for row in session.execute(_HOLDERS_ON, {"hosts": names}) if names else ():
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
                job_id=min((holder.job_id for holder in holders.get(row.uuid, ())), default=None),
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


def find_uuid(session: Session, reference: str) -> str:
    """The uuid that ``reference`` means. Raises as :func:`get_gpu` does."""
    name, colon, index = reference.rpartition(":")
    condition = gpu.c.uuid.startswith(reference, autoescape=True)
    if colon and index.isdecimal():
        condition = (gpu.c.host == name) & (gpu.c.index == int(index))
    found = list(session.scalars(select(gpu.c.uuid).where(condition).order_by(gpu.c.uuid).limit(4)))
    if reference in found:
        return reference
    if not found or not reference:
        raise no_such_gpu(reference)
    if len(found) > 1:
        raise InvalidRequest(f"{reference!r} is the beginning of several GPUs: {', '.join(found[:3])}…; write more")
    return found[0]


def no_such_gpu(reference: str) -> NotFound:
    """The error that says how to name a GPU."""
    return NotFound(f"there is no GPU {reference!r}; name it by uuid, the beginning of one, or host:index")


# ---- the statements, compiled once ----

_HOLDERS_ON = (
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
    .where(
        allocation.c.host.in_(bindparam("hosts", expanding=True)),
        allocation.c.released_at.is_(None),
        allocation.c.gpu_uuid.is_not(None),
    )
    .order_by(allocation.c.job_id, allocation.c.attempt)
)
"""By host, because what is held has an index by host."""
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
    )
    .join(host, host.c.name == gpu.c.host)
    .order_by(gpu.c.host, gpu.c.index)
)
