"""GPUs as their hosts report them: new ones, ones that vanish or return, ones that their host calls unfit."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import or_, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.hosts.gpu import GpuInfo, HostInventory
from gpu_platform.domain.hosts.lease import HostReport
from gpu_platform.domain.states import GpuState
from gpu_platform.store.database import insert_new, read_records
from gpu_platform.store.hosts.gpu_states import DRAIN, IN_SERVICE, UPDATE_GPU, VANISHED, put_back, take_out
from gpu_platform.store.models import GpuRecord, gpu, host


def with_own_gpus(session: Session, report: HostReport) -> HostReport:
    """Inside a transaction: the report with those GPUs alone that are not another host's.

    The others are in ``HostInventory.refused_gpus``. A GPU stays its host's, be that host LOST, until an operator says
    otherwise: he removes the host, or drains a GPU that its host no longer reports.
    """
    gpus = report.inventory.gpus
    theirs = (gpu.c.uuid.in_(sorted(one.uuid for one in gpus)), gpu.c.host != report.name)
    rows = read_records(session, GpuRecord, select(gpu).where(*theirs))
    refused = {row.uuid: row.host for row in rows if not _may_move(row)}
    return report.model_copy(update={"inventory": _without(report.inventory, refused)})


def ask_refused_again(session: Session) -> None:
    """Inside a transaction in which GPUs lost their host: hosts to which GPUs were refused send a full report."""
    session.execute(update(host).where(host.c.inventory.contains('"refused_gpus":')).values(facts_hash=""))


def follow_inventory(session: Session, report: HostReport, now: datetime) -> None:
    """Add new GPUs, update facts, take those that vanished OFFLINE and bring back those that returned.

    ``report``: as :func:`with_own_gpus` returned it.
    """
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
        ask_refused_again(session)


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


def _may_move(row: GpuRecord) -> bool:
    """True if another host may have the GPU from now on."""
    held = row.exclusive_holders or row.sm_percent_used or row.mig_mask
    return not row.present and not held and (row.cordoned or row.state_source == "operator")


def _without(inventory: HostInventory, refused: Mapping[str, str]) -> HostInventory:
    """The inventory without these GPUs (uuid -> whose it is), and without links to them."""
    gpus = [one for one in inventory.gpus if one.uuid not in refused]
    gone = {one.index for one in inventory.gpus if one.uuid in refused}
    links = [one for one in inventory.nvlinks if not gone & {one.a, one.b}]
    nics = [
        one.model_copy(update={"gpus": [index for index in one.gpus if index not in gone]}) for one in inventory.nics
    ]
    changes = {"gpus": gpus, "nvlinks": links, "nics": nics} if refused else {}
    return inventory.model_copy(update={**changes, "refused_gpus": dict(sorted(refused.items()))})
