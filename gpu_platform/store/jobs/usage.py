"""Usage of attempts: one row for each, written in the transaction that ends it, and sums over the rows."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Select, bindparam, func, select
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.usage import (
    AttemptUsage,
    JobUsage,
    RankUsage,
    Totals,
    UsageReport,
    UserUsage,
    mean_utilization,
)
from gpu_platform.store.database import insert_all_new, read_records, reading
from gpu_platform.store.jobs.jobs import get_job
from gpu_platform.store.models import UsageRecord, allocation, job, usage

_RANKS = TypeAdapter(list[RankUsage])
_HELD = select(
    allocation.c.job_id,
    allocation.c.attempt,
    allocation.c.host,
    allocation.c.gpu_uuid,
    allocation.c.reserved_at,
    allocation.c.released_at,
    allocation.c.sm_percent,
).where(allocation.c.job_id.in_(bindparam("job_ids", expanding=True)))
_OWNERS = select(job.c.id, job.c.namespace, job.c.user, job.c.kind, job.c.inferred_kind).where(
    job.c.id.in_(bindparam("job_ids", expanding=True))
)
_SUMS = (
    func.count().label("attempts"),
    func.sum(usage.c.gpu_seconds).label("gpu_seconds"),
    func.sum(usage.c.energy_j).label("energy_j"),
    func.sum(usage.c.cpu_s).label("cpu_s"),
    func.sum(usage.c.ecc_errors).label("ecc_errors"),
    func.sum(usage.c.throttled_s).label("throttled_s"),
)


def record_usage(
    session: Session, measured: Mapping[AttemptKey, Sequence[RankUsage]], now: datetime
) -> dict[AttemptKey, dict[str, object]]:
    """Inside the transaction that releases the GPUs of these attempts. ``measured``: what hosts measured of each.

    GPU-seconds are what was held, from the reservation to the release, whether a host measured anything or not.
    Returns them, and the kind of work, as the event of each release says them.
    """
    if not measured:
        return {}
    jobs = {"job_ids": [key.job_id for key in measured]}
    owners = {row.id: row for row in session.execute(_OWNERS, jobs)}
    held: dict[AttemptKey, list[Any]] = {key: [] for key in measured}
    for row in session.execute(_HELD, jobs):
        key = AttemptKey(job_id=row.job_id, attempt=row.attempt)
        if key in held:
            held[key].append(row)
    rows = [_usage(key, owners[key.job_id], held[key], ranks, now) for key, ranks in measured.items()]
    insert_all_new(session, usage, rows)
    said: dict[AttemptKey, dict[str, object]] = {}
    for key, row in zip(measured, rows, strict=True):
        kind = owners[key.job_id].kind or owners[key.job_id].inferred_kind
        said[key] = {**({} if kind is None else {"kind": kind}), "gpu_s": round(row["gpu_seconds"], 3)}
    return said


def _usage(key: AttemptKey, owner: Any, held: Sequence[Any], ranks: Sequence[RankUsage], now: datetime) -> Any:
    """The row of ``usage`` for one attempt. ``held``: its rows of ``allocation``."""
    measured = {rank.host for rank in ranks}
    return {
        "job_id": key.job_id,
        "attempt": key.attempt,
        "namespace": owner.namespace,
        "user": owner.user,
        "ended_at": now,
        "gpus": sum(row.gpu_uuid is not None for row in held),
        "gpu_seconds": sum(_held_s(row, now) for row in held),
        "mean_utilization_percent": mean_utilization(list(ranks)),
        "peak_gpu_memory_mib": max(
            (rank.peak_gpu_memory_mib for rank in ranks if rank.peak_gpu_memory_mib is not None), default=None
        ),
        "energy_j": sum(rank.energy_j for rank in ranks),
        "cpu_s": sum(rank.cpu_s for rank in ranks),
        "peak_memory_mib": max((rank.peak_memory_mib for rank in ranks), default=0),
        "ecc_errors": sum(rank.ecc_errors for rank in ranks),
        "throttled_s": sum(rank.throttled_s for rank in ranks),
        "unmeasured_hosts": json.dumps(sorted({row.host for row in held} - measured)),
        "ranks": _RANKS.dump_json(sorted(ranks, key=lambda rank: rank.rank)).decode(),
    }


@reading
def usage_of_job(session: Session, job_id: str) -> JobUsage:
    """The usage of all attempts of the job that have ended, oldest first. Raises :class:`NotFound`."""
    get_job(session, job_id)
    rows = read_records(session, UsageRecord, select(usage).where(usage.c.job_id == job_id).order_by(usage.c.attempt))
    return JobUsage(
        total=_totals(session, select(*_SUMS).where(usage.c.job_id == job_id)),
        attempts=[_attempt(row) for row in rows],
    )


@reading
def usage_report(
    session: Session,
    *,
    namespace: str | None = None,
    user: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    visible: Collection[str] | None = None,
) -> UsageReport:
    """Sums over the attempts that ended from ``since`` to before ``until``, in all and per namespace and user.
    ``visible``: only of these namespaces; None: of all."""
    wanted = [usage.c.namespace == namespace] if namespace is not None else []
    wanted += [usage.c.namespace.in_(sorted(visible))] if visible is not None else []
    wanted += [usage.c.user == user] if user is not None else []
    wanted += [usage.c.ended_at >= since] if since is not None else []
    wanted += [usage.c.ended_at < until] if until is not None else []
    group = (usage.c.namespace, usage.c.user)
    rows = session.execute(select(*group, *_SUMS).where(*wanted).group_by(*group).order_by(*group)).all()
    return UsageReport(
        total=_totals(session, select(*_SUMS).where(*wanted)),
        users=[UserUsage.model_validate(dict(row._mapping)) for row in rows],
    )


def _held_s(row: Any, now: datetime) -> float:
    return ((row.released_at or now) - row.reserved_at).total_seconds() * row.sm_percent / 100


def _totals(session: Session, query: Select[int, Any, Any, Any, Any, Any]) -> Totals:
    sums = session.execute(query).one()._mapping
    return Totals.model_validate({name: value or 0 for name, value in sums.items()})


def _attempt(row: UsageRecord) -> AttemptUsage:
    columns = row.model_dump()
    columns["unmeasured_hosts"] = json.loads(columns["unmeasured_hosts"])
    columns["ranks"] = _RANKS.validate_json(columns["ranks"])
    return AttemptUsage.model_validate(columns)
