"""Reading all that the scheduler decides by, in one look: for a new leader, a dry run and a snapshot alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter
from sqlalchemy import ColumnElement, Integer, case, func, select, true, tuple_
from sqlalchemy import cast as sql_cast
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.lease import GpuTelemetry
from gpu_platform.domain.jobs.environment import JobEnvironment
from gpu_platform.domain.jobs.rank_group import RankGroup
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.cluster_state import ClusterState, PastUseRow
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import HostUse, RunningRow
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.store import events
from gpu_platform.store.database import Store, epoch_s, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.hosts import hosts
from gpu_platform.store.jobs import promises, queue
from gpu_platform.store.jobs.checkpoints import saved_at
from gpu_platform.store.jobs.interrupts import PREEMPTING
from gpu_platform.store.models import allocation, event, host, job
from gpu_platform.store.reservations.shares import grant_of
from gpu_platform.store.window_rows import read_rows

_HOUR_S, _DAY_S = 3600.0, 86_400.0
_BY_HOUR = timedelta(days=2)
"""Older use is summed by day: by the hour, two months of 10,000 jobs a day are as many rows as there were jobs."""
_MOVES_COUNT = timedelta(hours=1)
"""``MoveBudget.per_job_hour`` counts the moves of this time."""
_TELEMETRY = TypeAdapter(list[GpuTelemetry])


def read_state(
    store: Store, now: datetime, use_since: timedelta | None = None, *, with_moves: bool = False
) -> ClusterState:
    """One state of the database. ``use_since``: also read what was used in that time, for fair share. ``with_moves``:
    also read which jobs were moved within the last hour.
    """
    with store.read_consistently() as session:
        # The position first: should a row be newer, its change is only read once more, never missed.
        seq = events.last_seq(session)
        return ClusterState(
            at=now.timestamp(),
            seq=seq,
            hosts=hosts.read_hosts(session),
            gpus=hosts.read_gpus(session),
            host_use=hosts.read_host_use(session),
            running=read_running(session),
            queue=queue.read_queue(session),
            promises=promises.read_promises(session),
            windows=read_rows(session),
            moved=read_moves(session, now - _MOVES_COUNT) if with_moves else {},
            used=[] if use_since is None else read_use(session, now - use_since, by_hour_since=now - _BY_HOUR),
            telemetry=read_telemetry(session),
        )


@reading
def read_running(session: Session, keys: Sequence[AttemptKey] | None = None) -> list[RunningRow]:
    """The attempts that hold GPUs, shares, or CPUs and memory of hosts; with ``keys`` only those of them."""
    ours = true() if keys is None else _is_one_of(keys)
    preempting = {(row.job_id, row.attempt) for row in session.execute(_PREEMPTED_HOLDERS.where(ours))}
    found: dict[tuple[str, int], list[Any]] = {}
    for row in session.execute(_RUNNING.where(ours)):
        found.setdefault((row.job_id, row.attempt), []).append(row)
    saved = saved_at(session, None if keys is None else {row.host for rows in found.values() for row in rows})
    return [
        _running_row(key, rows, saved.get(AttemptKey(job_id=key[0], attempt=key[1])), key in preempting)
        for key, rows in found.items()
    ]


@reading
def read_telemetry(session: Session) -> dict[str, list[GpuTelemetry]]:
    """Host -> telemetry of its GPUs, as last reported; LOST hosts are left out."""
    return {name: parse_telemetry(text) for name, (text, _) in read_raw_telemetry(session).items()}


@reading
def read_raw_telemetry(session: Session) -> dict[str, tuple[str, str]]:
    """Telemetry and checkpoints of each host as the stored text, which is cheap to compare."""
    query = select(host.c.name, host.c.telemetry, host.c.checkpoints).where(host.c.state != HostState.LOST.value)
    return {row.name: (row.telemetry, row.checkpoints) for row in session.execute(query)}


def parse_telemetry(text: str) -> list[GpuTelemetry]:
    """The telemetry in the JSON text of ``HostRecord.telemetry``."""
    return _TELEMETRY.validate_json(text)


@reading
def read_use(session: Session, since: datetime, by_hour_since: datetime | None = None) -> list[PastUseRow]:
    """GPUs that were held and then released after ``since``. Uses that begin and end in the same hours are one row; of
    those that were released before ``by_hour_since``, those that begin and end on the same days (UTC)."""
    unit_s = (
        _HOUR_S if by_hour_since is None else case((allocation.c.released_at < by_hour_since, _DAY_S), else_=_HOUR_S)
    )
    begin, end = epoch_s(session, allocation.c.reserved_at), epoch_s(session, allocation.c.released_at)
    query = (
        select(
            job.c.namespace,
            job.c.user,
            func.sum((end - begin) * allocation.c.sm_percent / 100.0).label("gpu_seconds"),
            func.min(begin).label("begin"),
            func.max(end).label("end"),
        )
        .join(job, job.c.id == allocation.c.job_id)
        .where(allocation.c.released_at > since)
        .group_by(job.c.namespace, job.c.user, _number(begin, unit_s), _number(end, unit_s))
    )
    rows = [(row, float(row.begin), float(row.end)) for row in session.execute(query)]
    return [
        PastUseRow(row.namespace, row.user, float(row.gpu_seconds) / (end - begin), begin, end)
        for row, begin, end in rows
        if end > begin
    ]


@writing
def record_preempting(
    session: Session, victim: AttemptKey, by: str, reason: str, now: datetime, *, is_move: bool = False
) -> None:
    """Write down that the scheduler preempts the attempt ``victim`` for the job ``by``. ``is_move``: the victim has a
    place elsewhere.
    """
    append_event(
        session,
        PREEMPTING,
        "scheduler",
        now,
        job_id=victim.job_id,
        attempt=victim.attempt,
        data={"for": by, "reason": reason, "move": is_move},
    )


@reading
def read_moves(session: Session, since: datetime) -> dict[str, list[float]]:
    """Job -> when the scheduler moved it, after ``since``, in Unix seconds. Only jobs that have not ended."""
    query = _PREEMPTED_JOBS.where(event.c.at > since)
    moved: dict[str, list[float]] = {}
    for row in session.execute(query):
        if json.loads(row.data).get("move"):
            moved.setdefault(row.job_id, []).append(row.at.timestamp())
    return moved


@reading
def read_preempting(session: Session) -> dict[AttemptKey, str]:
    """Attempts that are being preempted and still hold GPUs -> why."""
    return {
        AttemptKey(job_id=row.job_id, attempt=row.attempt): json.loads(row.data).get("reason", "")
        for row in session.execute(_PREEMPTED_HOLDERS)
    }


class _SpecOfRunning(BaseModel):
    """The few fields of a specification that matter while the job runs."""

    model_config = ConfigDict(extra="ignore")

    namespace: str = ""
    user: str = ""
    priority: int = 0
    time_limit_s: float | None = None
    preemptible: bool = True
    checkpoints: bool = False
    gpus: ResourceRequest = ResourceRequest()
    groups: tuple[RankGroup, ...] = ()
    spare_hosts: int = 0
    require_isolation: bool = False
    environment: JobEnvironment | None = None
    reservation: str | None = None
    grace_s: float = 10.0


def _running_row(
    key: tuple[str, int], rows: Sequence[Any], checkpoint_at: float | None, preempting: bool
) -> RunningRow:
    first = rows[0]
    of_gpus = [row for row in rows if row.gpu_uuid is not None]
    asked = _SpecOfRunning.model_validate_json(first.spec)
    started_at = (first.running_at or first.reserved_at).timestamp()
    request = replace(
        PlacementRequest.from_spec(asked, *key, started_at),
        priority=first.priority,
        namespace=first.namespace,
        user=first.user,
    )
    shares = any(not row.exclusive for row in of_gpus)
    row = RunningRow.of(
        request,
        gpu_uuids=tuple(row.gpu_uuid for row in of_gpus),
        started_at=started_at,
        shares=tuple(None if row.exclusive else grant_of(row) for row in of_gpus) if shares else (),
        host_use=tuple(HostUse(row.host, row.cpus, row.ram_mib) for row in rows if row.cpus or row.ram_mib),
    )
    return replace(row, checkpoint_at=checkpoint_at, preempting=preempting)


def _is_one_of(keys: Sequence[AttemptKey]) -> ColumnElement[bool]:
    return tuple_(allocation.c.job_id, allocation.c.attempt).in_([(key.job_id, key.attempt) for key in keys])


def _number(epoch: ColumnElement[float], unit_s: ColumnElement[float] | float) -> ColumnElement[int]:
    return sql_cast(epoch / unit_s, Integer)


_HELD = allocation.c.released_at.is_(None)
_RUNNING = (
    select(
        allocation.c.job_id,
        allocation.c.attempt,
        allocation.c.gpu_uuid,
        allocation.c.host,
        allocation.c.exclusive,
        allocation.c.sm_percent,
        allocation.c.memory_mib,
        allocation.c.mig_mask,
        allocation.c.share_mode,
        allocation.c.mig_profile,
        allocation.c.cpus,
        allocation.c.ram_mib,
        allocation.c.reserved_at,
        allocation.c.running_at,
        job.c.namespace,
        job.c.user,
        job.c.priority,
        job.c.spec,
    )
    .join(job, job.c.id == allocation.c.job_id)
    .where(_HELD)
    .order_by(allocation.c.job_id, allocation.c.attempt, allocation.c.gpu_uuid)
)
_PREEMPTED_JOBS = (
    select(event.c.job_id, event.c.at, event.c.data)
    .join(job, job.c.id == event.c.job_id)
    .where(job.c.state.in_([state.value for state in JobState if not state.is_terminal]), event.c.kind == PREEMPTING)
    .order_by(event.c.seq)
)
_PREEMPTED_HOLDERS = (
    select(event.c.job_id, event.c.attempt, event.c.data)
    .join(allocation, (allocation.c.job_id == event.c.job_id) & (allocation.c.attempt == event.c.attempt))
    .where(_HELD, event.c.kind == PREEMPTING)
    .order_by(event.c.seq)
)
