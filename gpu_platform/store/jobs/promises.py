"""Promised starts: written by the leader, read by the next leader and by everybody who shows them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Row, delete, select
from sqlalchemy.orm import Session
from sqlmodel import col

from gpu_platform.domain.jobs.placement import PromisedHost, Reason
from gpu_platform.domain.placing.promise import PromiseChange, PromisedPlace, PromisedStart, PromiseOutcome
from gpu_platform.store.database import reading, upsert, writing_unsynced
from gpu_platform.store.events import append_event
from gpu_platform.store.leadership.leader import check_epoch, current_round
from gpu_platform.store.models import promise
from gpu_platform.store.models.hosts import GpuRecord

SILENT_S = 15.0
"""A leader looks at the leases each second. After this time without a look nobody decides."""
_PLACES = TypeAdapter(tuple[PromisedPlace, ...])
_EVENTS = {
    PromiseOutcome.WITHDRAWN: "job.promise_withdrawn",
    PromiseOutcome.BROKEN: "job.promise_broken",
}


@writing_unsynced
def write_promises(
    session: Session,
    epoch: int,
    changed: Sequence[PromisedStart],
    gone: Collection[str],
    changes: Sequence[PromiseChange],
    now: datetime,
) -> None:
    """The leader of ``epoch`` writes promises that are new or changed, and forgets those of the jobs ``gone``.

    Each of ``changes`` that takes a promise back becomes an event of its job. Raises :class:`StaleEpoch`.
    """
    check_epoch(session, epoch)
    for one in changed:
        upsert(session, promise, _row(one))
    if gone:
        session.execute(delete(promise).where(promise.c.job_id.in_(sorted(gone))))
    for change in changes:
        kind = _EVENTS.get(change.outcome)
        if kind is None:
            continue
        session.info["synced"] = True
        append_event(
            session,
            kind,
            "scheduler",
            now,
            job_id=change.job_id,
            attempt=change.attempt,
            data={
                "promised": change.start,
                "given_at": change.given_at,
                "code": change.code,
                "reason": change.reason,
                "later": change.later,
            },
        )


@reading
def read_promises(session: Session, job_ids: Collection[str] | None = None) -> list[PromisedStart]:
    """The promises, of all jobs or of ``job_ids``, by job."""
    query = select(promise).order_by(promise.c.job_id)
    if job_ids is not None:
        query = query.where(promise.c.job_id.in_(sorted(job_ids)))
    return [_promised_start(row) for row in session.execute(query)]


@reading
def as_told(session: Session, reasons: dict[str, Reason], now: datetime | None = None) -> dict[str, Reason]:
    """The reasons of jobs as they may be shown: with the leader's promise to each job, and no date that has passed."""
    if not reasons:
        return {}
    at = (now or datetime.now(UTC)).timestamp()
    told = {one.job_id: one for one in read_promises(session, reasons.keys()) if one.is_told}
    decided_at = current_round(session)
    silent_since = decided_at if 0 < decided_at < at - SILENT_S else None
    found: dict[str, Reason] = {}
    for job_id, reason in reasons.items():
        promised = told.get(job_id)
        found[job_id] = reason.as_told(promised and promised.start, at, silent_since)
    kept = {job_id: told[job_id] for job_id, reason in found.items() if reason.starts_by is not None}
    hosts = _promised_hosts(session, kept)
    return {
        job_id: reason.model_copy(update={"promised_hosts": hosts.get(job_id, [])}) for job_id, reason in found.items()
    }


def _promised_hosts(session: Session, promised: dict[str, PromisedStart]) -> dict[str, list[PromisedHost]]:
    """Job -> the GPUs that are set aside for it, by host."""
    names = sorted({place.host for one in promised.values() for place in one.places})
    if not names:
        return {}
    asked = select(col(GpuRecord.uuid), col(GpuRecord.index)).where(col(GpuRecord.host).in_(names))
    indices = {uuid: index for uuid, index in session.execute(asked)}  # noqa: C416  a row is no pair for dict()
    return {
        job_id: [
            PromisedHost(host=place.host, gpu_indices=sorted(indices[gpu] for gpu in place.gpu_uuids if gpu in indices))
            for place in one.places
        ]
        for job_id, one in promised.items()
    }


def _row(one: PromisedStart) -> dict[str, Any]:
    return {
        "job_id": one.job_id,
        "attempt": one.attempt,
        "start": one.start,
        "given_at": one.given_at,
        "class_key": one.class_key,
        "time_limit_s": one.time_limit_s,
        "places": _PLACES.dump_json(one.places).decode(),
        "waits_for": one.waits_for,
    }


def _promised_start(row: Row[Any]) -> PromisedStart:
    return PromisedStart(
        job_id=row.job_id,
        attempt=row.attempt,
        start=row.start,
        given_at=row.given_at,
        class_key=row.class_key,
        time_limit_s=row.time_limit_s,
        places=_PLACES.validate_json(row.places),
        waits_for=row.waits_for,
    )
