"""A host's report: it registers the host or renews its lease, and is answered with what the host must do.

A heartbeat does the same for a host whose facts are known. Those that change nothing are written many at a time: see
``heartbeats.py``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import FullReportNeeded, StaleReport
from gpu_platform.domain.hosts.lease import GpuTelemetry, Heartbeat, HostReport, LeaseAnswer, rhythm
from gpu_platform.domain.hosts.lease_protocol import LeaseTimes, renews
from gpu_platform.domain.hosts.protocol import PROTOCOL
from gpu_platform.domain.states import HostState, check_transition
from gpu_platform.store.database import insert_new, read_record, writing_unsynced
from gpu_platform.store.events import append_event
from gpu_platform.store.hosts.hosts import LOCK_HOST, UPDATE_HOST
from gpu_platform.store.hosts.reported_gpus import follow_inventory, follow_self_reports, with_own_gpus
from gpu_platform.store.jobs.checkpoints import remember_checkpoints
from gpu_platform.store.leadership import membership
from gpu_platform.store.leadership.leases import first_term
from gpu_platform.store.models import HostRecord, allocation, host, leader
from gpu_platform.store.reservations.releasing import settle_drain
from gpu_platform.store.restoring.restoring import judge

_LATEST_US = 15 * 60 * 1_000_000
"""A report that is late by more than this is believed: else one wrong number would refuse all reports of a boot."""
_UNKNOWN_JOBS = "it runs attempts that the database, maybe an older one, gives no GPUs: they are restored or stopped"


@writing_unsynced
def report_host(
    session: Session, report: HostReport, *, ttl_s: float, now: datetime, by_temporal: bool = False
) -> LeaseAnswer:
    """Register the host or renew its lease for ``ttl_s`` seconds. The answer names the attempts that it must kill.

    An attempt is stale if it holds nothing at this host, or held something when the host was declared LOST: its job
    runs elsewhere by now. A LOST host is back in service only once it reports no stale attempt. While this database
    may be an older one, a host with stale attempts is LOST, and those that may be restored are not killed yet (see
    ``restoring``). A report that changes nothing writes one row and no event.
    ``by_temporal``: it came through Temporal.

    GPUs of another host are refused: see :func:`with_own_gpus`. Raises :class:`InvalidRequest` when another host
    registers the same GPU at this moment, and :class:`StaleReport` for a report that arrives after a newer one.
    """
    report = with_own_gpus(session, report)
    row = read_record(session, HostRecord, LOCK_HOST, {"host_name": report.name})
    if row is None and _register(session, report, ttl_s, now):
        row = _lock_known(session, report.name)
        judged = judge(session, report.round, report.attempts, now, of=[report.name])
        return _answer(session, report, row, ttl_s, judged.kill, renewed=True)
    row = row or _lock_known(session, report.name)
    _check_newer(row.report_seq, report, same_boot=report.boot_id == row.boot_id)
    values = _came_by(session, row, now, temporal=by_temporal)
    return _renew(session, row, report, lambda: values | _changed_columns(session, row, report, now), ttl_s, now)


@writing_unsynced
def renew_lease(session: Session, beat: Heartbeat, *, ttl_s: float, now: datetime) -> LeaseAnswer:
    """As :func:`report_host`, for a host whose facts do not change.

    Raises :class:`FullReportNeeded` if these are not the facts that the host reported last, and :class:`StaleReport`.
    """
    row = read_record(session, HostRecord, LOCK_HOST, {"host_name": beat.name})
    if row is None or not beat.facts or row.facts_hash != beat.facts:
        raise FullReportNeeded(f"host {beat.name} must send a full report: its facts are not known here")
    _check_newer(row.report_seq, beat, same_boot=True)  # the boot is one of the facts
    return _renew(session, row, beat, lambda: _came_by(session, row, now, temporal=False), ttl_s, now)


def _came_by(session: Session, row: HostRecord, now: datetime, *, temporal: bool) -> dict[str, bool]:
    """The column that says which way the host's reports come, and an event, if the last one came the other way."""
    if row.by_temporal == temporal:
        return {}
    kind = "host.reports_through_temporal" if temporal else "host.reports_to_a_service"
    append_event(session, kind, f"node/{row.name}", now, host=row.name)
    return {"by_temporal": temporal}


def _check_newer(known_seq: int, beat: Heartbeat, *, same_boot: bool) -> None:
    # Microseconds since the boot. No report is so late; then the number that is known was a wrong one.
    is_late = known_seq - _LATEST_US < beat.seq <= known_seq
    if beat.seq and is_late and same_boot:
        raise StaleReport(f"host {beat.name} has sent report {known_seq} since {beat.seq}")


def _renew(
    session: Session,
    row: HostRecord,
    report: Heartbeat,
    change_facts: Callable[[], dict[str, Any]],
    ttl_s: float,
    now: datetime,
) -> LeaseAnswer:
    """``row`` is locked. ``change_facts`` returns the columns of facts that have changed."""
    report = _with_own_checkpoints(session, report)
    stale = _stale(session, report)
    judged = judge(session, report.round, stale, now, of=[report.name])
    values = _lease(report, ttl_s, now)
    current = session.scalar(_ROUND) or 0
    # A report without a number brings back no round.
    renewed = report.seq == 0 or renews(LeaseTimes.of(ttl_s), report.round, current)
    is_back = row.state == HostState.LOST and not stale
    # A host that is back has a whole lease to bring the round: else the leader declares it LOST again at once.
    if not renewed and not is_back:
        del values["lease_until"], values["lease_s"]
    values.update(change_facts())
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
    session.execute(UPDATE_HOST.values(values), {"host_name": report.name})
    if values["checkpoints"] != row.checkpoints:
        root = values.get("checkpoint_root", row.checkpoint_root)
        remember_checkpoints(session, report, root, row.checkpoints)
    if values.get("state") == HostState.LOST or "agent_url" in values:
        membership.refresh(session)
    elif is_back:
        membership.joined(session)
    if values.get("state") == HostState.DRAINING:
        settle_drain(session, report.name, now)
    return _answer(session, report, row, ttl_s, judged.kill, renewed=renewed)


def _lock_known(session: Session, name: str) -> HostRecord:
    row = read_record(session, HostRecord, LOCK_HOST, {"host_name": name})
    assert row is not None
    return row


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
        "facts_hash": report.facts,
        "checkpoint_root": report.checkpoint_root,
        "term": first_term(now),
        **_identity(report),
        "telemetry": "[]",
        **_lease(report, ttl_s, now),
    }
    if report.attempts:
        row["state"] = HostState.LOST.value  # nobody knows these attempts; they must die first
    if not insert_new(session, host, row):
        return False
    membership.joined(session)
    follow_inventory(session, report, now)
    follow_self_reports(session, report.name, {}, report.degraded, now)
    _announce(session, report, ["new"], now)
    return True


def _changed_columns(session: Session, row: HostRecord, report: HostReport, now: datetime) -> dict[str, Any]:
    """The columns that differ from the last report, announced in one event."""
    inventory = report.inventory.model_dump_json()
    identity = _identity(report)
    fresh = {"leaf": report.leaf, "spine": report.spine, "inventory": inventory, **identity}
    changed = {name: value for name, value in fresh.items() if getattr(row, name) != value}
    values = changed | {"facts_hash": report.facts, "checkpoint_root": report.checkpoint_root}
    if not changed:
        return values
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
    if report.inventory.refused_gpus and not {"new", "inventory"}.isdisjoint(changed):
        refused = {"gpus": report.inventory.refused_gpus}
        append_event(session, "host.gpus_refused", "control", now, host=report.name, data=refused)


def _identity(report: HostReport) -> dict[str, Any]:
    return {
        "session": report.session,
        "boot_id": report.boot_id,
        "address": report.address,
        "agent_url": report.agent_url,
    }


def _lease(report: Heartbeat, ttl_s: float, now: datetime) -> dict[str, Any]:
    return {
        "lease_until": now + timedelta(seconds=report.lease_s or ttl_s),
        "lease_s": report.lease_s,
        "report_seq": report.seq,
        "round": report.round,
        "voted": report.voted,
        "members_known": report.members_version,
        "degraded": json.dumps(report.degraded, sort_keys=True),
        "checkpoints": checkpoints_text(report),
        **({} if report.telemetry is None else {"telemetry": telemetry_text(report.telemetry)}),
    }


def telemetry_text(telemetry: Sequence[GpuTelemetry]) -> str:
    """The JSON of ``HostRecord.telemetry``."""
    return json.dumps([item.model_dump(exclude_none=True) for item in telemetry])


def checkpoints_text(report: Heartbeat) -> str:
    """The JSON of ``HostRecord.checkpoints``."""
    return json.dumps([item.model_dump() for item in report.checkpoints])


def _answer(
    session: Session, report: Heartbeat, row: HostRecord, ttl_s: float, kill: Sequence[AttemptKey], *, renewed: bool
) -> LeaseAnswer:
    """Whatever list of members the host gets is written down first: it may act on it as soon as it has it."""
    version = membership.current_version(session)
    if version != row.members_sent:
        session.execute(UPDATE_HOST.values(members_sent=version), {"host_name": report.name})
    return LeaseAnswer(
        protocol=PROTOCOL,
        ttl_s=ttl_s,
        kill=list(kill),
        online_ms=None if row.online_at is None else int(row.online_at.timestamp() * 1000),
        draining=row.cordoned,
        renewed=renewed,
        round=session.scalar(_ROUND) or 0,
        term=row.term,
        members_version=version,
        **rhythm(ttl_s, membership.count(session)),
        **membership.news(session, report.members_version, version),
    )


def _node(report: Heartbeat) -> str:
    return f"node/{report.name}"


def _with_own_checkpoints(session: Session, report: Heartbeat) -> Heartbeat:
    """The report with checkpoints of those attempts alone that have or had a place on the host."""
    if not report.checkpoints:
        return report
    jobs = sorted({one.key.job_id for one in report.checkpoints})
    rows = session.execute(_EVER_AT_HOST, {"host_name": report.name, "key_jobs": jobs})
    known = {(row.job_id, row.attempt) for row in rows}
    own = [one for one in report.checkpoints if (one.key.job_id, one.key.attempt) in known]
    return report.model_copy(update={"checkpoints": own})


def _stale(session: Session, report: Heartbeat) -> list[AttemptKey]:
    if not report.attempts:
        return []
    held = {(row.job_id, row.attempt) for row in session.execute(_HELD_AT_HOST, {"host_name": report.name})}
    return [key for key in report.attempts if (key.job_id, key.attempt) not in held]


def _state_in_service(cordoned: bool) -> HostState:
    return HostState.DRAINING if cordoned else HostState.READY


# ---- the statements, compiled once ----

_ROUND = select(leader.c.round)
_AT_HOST = (allocation.c.host == bindparam("host_name")) & allocation.c.released_at.is_(None)
_EVER_AT_HOST = (
    select(allocation.c.job_id, allocation.c.attempt)
    .where(allocation.c.host == bindparam("host_name"))
    .where(allocation.c.job_id.in_(bindparam("key_jobs", expanding=True)))
    .distinct()
)
"""Allocations stay for a while after the attempt's end."""
_HELD_AT_HOST = (
    select(allocation.c.job_id, allocation.c.attempt).where(_AT_HOST, allocation.c.lost_at.is_(None)).distinct()
)
