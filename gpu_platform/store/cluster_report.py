"""The key figures of the cluster over a period, read from events, allocations, usage and hosts."""

from __future__ import annotations

import json
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from gpu_platform.domain.cluster_report import (
    ClusterReport,
    FailureFigures,
    GpuTime,
    HostFigures,
    JobFigures,
    ModelFigures,
    PeriodPart,
    Spread,
    UserFigures,
)
from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.store.database import Store, reading
from gpu_platform.store.models import allocation, event, gpu, host, job
from gpu_platform.store.report_parts import HOUR_S, PeriodParts, hours_between
from gpu_platform.store.report_usage import UsedInPeriod, UsedTime, used_in_period

_DISORDER = timedelta(minutes=1)
_floats = partial(array, "d")
_KINDS = (
    "job.submitted",
    "job.running",
    "job.retrying",
    "job.completed",
    "job.failed",
    "job.cancelled",
    "job.preempted",
    "gpu.fault",
    "host.lost",
)

_NOT_OF_HARDWARE = (FaultAction.NONE, FaultAction.WATCH, FaultAction.FAIL_JOB)


_SLICE = 50_000
"""So many events are read in one transaction: a long one keeps the database from removing what is old (PostgreSQL), and
the write-ahead log from being emptied (SQLite)."""


def cluster_report(store: Store, since: datetime, until: datetime) -> ClusterReport:
    """The figures of ``since`` to before ``until``. Of a host or GPU that was removed only its jobs are known.

    A year may have tens of millions of events: they are counted while they are read."""
    parts = PeriodParts(since, until)
    happened = _happened(store, parts)
    hosts = _hosts(store, since, until)
    held = _held(store, parts, {uuid for one in hosts for uuid in one.gone})
    used = used_in_period(store, since, until)
    gpu_hours = sum(_gpu_hours(one, held) for one in hosts)
    allocated = sum(held.by_host.values())
    return ClusterReport(
        since=since,
        until=until,
        gpu_time=GpuTime(
            gpus=sum(len(one.models) for one in hosts),
            gpu_hours=gpu_hours,
            allocated_gpu_hours=allocated,
            allocation_ratio=_over(allocated, gpu_hours),
            busy_gpu_hours=used.all.busy_gpu_hours,
            utilization_of_allocated_percent=used.all.utilization_percent,
            utilization_of_all_percent=_over(100 * used.all.busy_gpu_hours, gpu_hours),
            energy_kwh=used.all.energy_kwh,
        ),
        jobs=_job_figures(happened, since, until),
        failures=FailureFigures(
            gpu_faults=sum(happened.faults.values()),
            hosts_lost=sum(happened.losses.values()),
        ),
        hosts=[_host_figures(one, held, happened) for one in hosts],
        gpu_models=_model_figures(hosts, held, happened),
        users=_user_figures(happened, used),
        parts=_part_figures(parts, hosts, held, happened),
    )


# -- what happened: events ---------------------------------------------------------------------


@dataclass
class _Happened:
    """The events of the period, counted."""

    counts: Counter[str] = field(default_factory=Counter)
    waits: array[float] = field(default_factory=_floats)
    completions: array[float] = field(default_factory=_floats)
    failures: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    """By GPU."""
    faults_of_host: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    """By host."""
    users: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    waits_of_user: dict[tuple[str, str], array[float]] = field(default_factory=lambda: defaultdict(_floats))
    by_part: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))
    """How many jobs were submitted, completed and failed in each part of the period, by the kind of the event."""


def _happened(store: Store, parts: PeriodParts) -> _Happened:
    found = _Happened()
    with store.read() as session:
        # Times of events come from several machines: they are not quite in the order of their numbers.
        begin = _first_seq(session, parts.since - _DISORDER)
        end = _first_seq(session, parts.until + _DISORDER)
    for first in range(begin, end + 1, _SLICE):
        query = _events_of(parts).where(event.c.seq >= first, event.c.seq < min(first + _SLICE, end + 1))
        with store.read() as session:
            for row in session.execute(query.execution_options(yield_per=2000)):
                _count(found, row, parts)
    return found


def _events_of(parts: PeriodParts) -> Select[*tuple[Any, ...]]:
    return (
        select(
            event.c.kind,
            event.c.at,
            event.c.host,
            event.c.gpu_uuid,
            event.c.data,
            job.c.namespace,
            job.c.user,
            job.c.created_at,
            job.c.failure,
        )
        .select_from(event.outerjoin(job, job.c.id == event.c.job_id))
        .where(event.c.kind.in_(_KINDS), event.c.at >= parts.since, event.c.at < parts.until)
    )


def _count(found: _Happened, row: Any, parts: PeriodParts) -> None:
    kind = row.kind
    found.counts[kind] += 1
    if kind == "gpu.fault":
        if _is_of_hardware(json.loads(row.data)):
            found.faults[row.gpu_uuid] += 1
            found.faults_of_host[row.host] += 1
        return
    if kind == "host.lost":
        found.losses[row.host] += 1
        return
    owner = (row.namespace, row.user)
    if row.namespace is not None:
        found.users[owner][kind] += 1
    if kind in ("job.submitted", "job.completed", "job.failed"):
        found.by_part[kind][parts.place(row.at)] += 1
    if kind == "job.running" and (waited := json.loads(row.data).get("waited_s")) is not None:
        found.waits.append(waited)
        found.waits_of_user[owner].append(waited)
    elif kind == "job.completed" and row.created_at is not None:
        found.completions.append((row.at - row.created_at).total_seconds())
    elif kind == "job.failed":
        found.failures[json.loads(row.failure)["kind"] if row.failure else "unknown"] += 1


def _is_of_hardware(fault: dict[str, Any]) -> bool:
    """False for a fault that a program caused, and for what is only watched."""
    return not fault.get("blameless") and fault["action"] not in _NOT_OF_HARDWARE


def _first_seq(session: Session, aim: datetime) -> int:
    """About the number of the first event at ``aim`` or later; that of the last event if there is none.

    There is no index of the times: they grow with the numbers, so a binary search finds the place.
    """
    low, high = session.execute(select(func.min(event.c.seq), func.max(event.c.seq))).one()
    if low is None:
        return 0
    while low < high:
        middle = (low + high) // 2
        at = session.scalar(select(event.c.at).where(event.c.seq >= middle).order_by(event.c.seq).limit(1))
        if at is None or at >= aim:
            high = middle
        else:
            low = middle + 1
    return low


def _job_figures(found: _Happened, since: datetime, until: datetime) -> JobFigures:
    counts = found.counts
    completed, failed = counts["job.completed"], counts["job.failed"]
    return JobFigures(
        submitted=counts["job.submitted"],
        completed=completed,
        failed=failed,
        cancelled=counts["job.cancelled"],
        completed_per_hour=completed / hours_between(since, until),
        success_ratio=_over(completed, completed + failed),
        retries=counts["job.retrying"],
        preemptions=counts["job.preempted"],
        wait_s=Spread.of(found.waits),
        completion_s=Spread.of(found.completions),
        failures=dict(sorted(found.failures.items())),
    )


# -- what there was: hosts ---------------------------------------------------------------------


@dataclass
class _HostInPeriod:
    name: str
    begin: datetime
    """When its time in the period begins."""
    hours: float
    models: dict[str, str] = field(default_factory=dict)
    """The model of each of its GPUs, by uuid."""
    gone: dict[str, str] = field(default_factory=dict)
    """The model of each GPU that it had, and does not report any more."""


@reading
def _hosts(session: Session, since: datetime, until: datetime) -> list[_HostInPeriod]:
    found: dict[str, _HostInPeriod] = {}
    rows = session.execute(select(host.c.name, host.c.registered_at).order_by(host.c.name))
    for name, registered_at in rows:
        begin = max(since, registered_at)
        found[name] = _HostInPeriod(name, begin, max(0.0, (until - begin).total_seconds() / HOUR_S))
    for uuid, name, facts, present in session.execute(select(gpu.c.uuid, gpu.c.host, gpu.c.facts, gpu.c.present)):
        (found[name].models if present else found[name].gone)[uuid] = json.loads(facts)["model"]
    return list(found.values())


def _gpu_hours(one: _HostInPeriod, held: _Held) -> float:
    """Nobody knows how long a GPU was there that has gone: it counts while it was held."""
    return one.hours * len(one.models) + sum(held.of_gone.get(uuid, 0.0) for uuid in one.gone)


def _host_figures(one: _HostInPeriod, held: _Held, happened: _Happened) -> HostFigures:
    faults, losses = happened.faults_of_host[one.name], happened.losses[one.name]
    allocated = held.by_host.get(one.name, 0.0)
    return HostFigures(
        host=one.name,
        gpus=len(one.models),
        host_hours=one.hours,
        allocated_gpu_hours=allocated,
        allocation_ratio=_over(allocated, _gpu_hours(one, held)),
        gpu_faults=faults,
        losses=losses,
        mtbf_h=_over(one.hours, faults + losses),
    )


def _model_figures(hosts: Iterable[_HostInPeriod], held: _Held, happened: _Happened) -> list[ModelFigures]:
    gpus: Counter[str] = Counter()
    hours: dict[str, float] = defaultdict(float)
    faults: Counter[str] = Counter()
    for one in hosts:
        for uuid, model in one.models.items():
            gpus[model] += 1
            hours[model] += one.hours
            faults[model] += happened.faults[uuid]
        for uuid, model in one.gone.items():
            hours[model] += held.of_gone.get(uuid, 0.0)
            faults[model] += happened.faults[uuid]
    return [
        ModelFigures(
            model=model,
            gpus=gpus[model],
            gpu_hours=hours[model],
            gpu_faults=faults[model],
            mtbf_h=_over(hours[model], faults[model]),
        )
        for model in sorted(hours)
    ]


# -- what was held: allocations ----------------------------------------------------------------


@dataclass
class _Held:
    by_host: dict[str, float]
    """GPU hours."""
    by_part: list[float]
    """GPU hours."""
    of_gone: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """GPU hours of each GPU that has gone, by uuid."""
    of_gone_by_part: dict[int, float] = field(default_factory=lambda: defaultdict(float))


@reading
def _held(session: Session, parts: PeriodParts, gone: Set[str]) -> _Held:
    since, until = parts.since, parts.until
    columns = (
        allocation.c.host,
        allocation.c.gpu_uuid,
        allocation.c.reserved_at,
        allocation.c.released_at,
        allocation.c.sm_percent,
    )
    ended_later = (allocation.c.released_at.is_(None)) | (allocation.c.released_at > since)
    query = select(*columns).where(allocation.c.gpu_uuid.is_not(None), allocation.c.reserved_at < until, ended_later)
    found = _Held(defaultdict(float), [0.0] * len(parts))
    for row in session.execute(query.execution_options(yield_per=2000)):
        begin, end = max(row.reserved_at, since), min(row.released_at or until, until)
        share = row.sm_percent / 100
        found.by_host[row.host] += share * hours_between(begin, end)
        for place, hours in parts.divided(begin, end):
            found.by_part[place] += share * hours
            if row.gpu_uuid in gone:
                found.of_gone[row.gpu_uuid] += share * hours
                found.of_gone_by_part[place] += share * hours
    return found


# -- who used it --------------------------------------------------------------------------------


def _user_figures(happened: _Happened, used: UsedInPeriod) -> list[UserFigures]:
    found = []
    for owner in sorted({*happened.users, *used.users}):
        counts, time = happened.users.get(owner, Counter()), used.users.get(owner, UsedTime())
        found.append(
            UserFigures(
                namespace=owner[0],
                user=owner[1],
                gpu_hours=time.gpu_seconds / HOUR_S,
                energy_kwh=time.energy_kwh,
                utilization_percent=time.utilization_percent,
                completed=counts["job.completed"],
                failed=counts["job.failed"],
                cancelled=counts["job.cancelled"],
                wait_p50_s=Spread.of(happened.waits_of_user.get(owner, [])).p50,
            )
        )
    return found


# -- hour by hour, or day by day ---------------------------------------------------------------


def _part_figures(
    parts: PeriodParts, hosts: Sequence[_HostInPeriod], held: _Held, happened: _Happened
) -> list[PeriodPart]:
    return [
        PeriodPart(
            begin=begin,
            hours=hours_between(begin, end),
            gpu_hours=sum(len(one.models) * max(0.0, hours_between(max(begin, one.begin), end)) for one in hosts)
            + held.of_gone_by_part.get(place, 0.0),
            allocated_gpu_hours=held.by_part[place],
            submitted=happened.by_part["job.submitted"][place],
            completed=happened.by_part["job.completed"][place],
            failed=happened.by_part["job.failed"][place],
        )
        for place, (begin, end) in enumerate(parts)
    ]


def _over(value: float, by: float) -> float | None:
    return value / by if by else None
