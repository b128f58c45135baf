"""GPUs as their hosts report them: new ones, ones that vanish or return, ones that their host calls unfit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.hosts.gpu import GpuInfo
from gpu_platform.domain.hosts.lease import HostReport
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.store.database import insert_new, read_records
from gpu_platform.store.hosts.gpu_states import DRAIN, IN_SERVICE, UPDATE_GPU, VANISHED, put_back, take_out
from gpu_platform.store.models import GpuRecord, gpu, host


def follow_inventory(session: Session, report: HostReport, now: datetime) -> None:
    """Add new GPUs, update facts, take those that vanished OFFLINE and bring back those that returned."""
    reported = {info.uuid: info for info in report.inventory.gpus}
    uuids = sorted(reported)
    query = select(gpu).where(or_(gpu.c.host == report.name, gpu.c.uuid.in_(uuids))).order_by(gpu.c.uuid)
    known = {row.uuid: row for row in read_records(session, GpuRecord, query.with_for_update(key_share=True))}
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
        session.execute(UPDATE_GPU.values(facts | memory), {"of_uuid": uuid})
        if row.state == GpuState.OFFLINE and row.state_source == "inventory":
            put_back(session, row, actor, now)
    for uuid, row in known.items():
        if uuid in reported or not row.present:
            continue
        if row.state not in (GpuState.OFFLINE, GpuState.RESETTING):  # those stay with who took them out
            take_out(session, row, GpuState.OFFLINE, "inventory", VANISHED, actor, now)
        session.execute(UPDATE_GPU.values(present=False), {"of_uuid": uuid})


def follow_self_reports(
    session: Session, name: str, before: Mapping[str, str], after: Mapping[str, str], now: datetime
) -> None:
    """Make GPUs DEGRADED that their host calls unfit (too hot, lost), and put them back when it does so no more.

    ``before``, ``after``: uuid -> reason, of the last report and of this one. Only what this made DEGRADED is put back.
    """
    if not before and not after:
        return
    query = select(gpu).where(gpu.c.host == name, gpu.c.uuid.in_(sorted({*before, *after}))).order_by(gpu.c.uuid)
    for row in read_records(session, GpuRecord, query.with_for_update(key_share=True)):
        if row.uuid in after and row.state in (*IN_SERVICE, *DRAIN):
            take_out(session, row, GpuState.DEGRADED, "host", after[row.uuid], f"node/{name}", now)
        elif row.uuid not in after and row.state == GpuState.DEGRADED and row.state_source == "host":
            put_back(session, row, f"node/{name}", now)


def _new(name: str, info: GpuInfo) -> dict[str, Any]:
    return {
        "uuid": info.uuid,
        "host": name,
        "index": info.index,
        "state": GpuState.AVAILABLE.value,
        "memory_mib": info.memory_mib,
        "facts": info.model_dump_json(),
    }


def _check_moved(session: Session, row: GpuRecord, to_host: str) -> None:
    if row.host == to_host:
        return
    state = session.scalar(select(host.c.state).where(host.c.name == row.host))
    if row.exclusive_holders or row.sm_percent_used or (row.present and state != HostState.LOST):
        raise InvalidRequest(
            f"{to_host} reports GPU {row.uuid}, which belongs to {row.host} ({state}); "
            "do two node workers run on one machine? Stop one of them",
            gpu_uuid=row.uuid,
        )
