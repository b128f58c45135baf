"""Places in the line, by the order of the policy in force. Read for people; the scheduler keeps its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, func, literal, or_, select, tuple_
from sqlalchemy.orm import Session

from gpu_platform.domain.job import JobSpec, QueueEntry
from gpu_platform.domain.placement import Reason
from gpu_platform.store.database import epoch_s, reading
from gpu_platform.store.leadership.leader import current_policy
from gpu_platform.store.models import UtcDateTime, job, queue_entry, waiting_reason

_AGEING = TypeAdapter(float)
COUNTED = 3
"""For so many places it is cheaper to count who is ahead than to rank everybody."""


@dataclass(frozen=True)
class _Line:
    urgency: ColumnElement[Any]
    """More goes first; of those that are equal, who came first."""
    partition_by: list[ColumnElement[Any]]
    """With fair shares nobody can say who of two namespaces is next: places are those among one's own."""

    @property
    def order_by(self) -> list[ColumnElement[Any]]:
        return [self.urgency.desc(), queue_entry.c.enqueued_at, queue_entry.c.job_id]


@reading
def positions(session: Session, job_ids: Collection[str]) -> dict[str, int]:
    """Place in the line, 1 is next, of those of ``job_ids`` that wait. With ``fair_share``: among its user's jobs."""
    if not job_ids:
        return {}
    line = _line(session)
    if len(job_ids) <= COUNTED:
        places = {job_id: _count_ahead(session, line, job_id) for job_id in job_ids}
        return {job_id: ahead + 1 for job_id, ahead in places.items() if ahead is not None}
    place = func.row_number().over(partition_by=line.partition_by or None, order_by=line.order_by)
    ranked = select(queue_entry.c.job_id, place.label("place")).subquery()
    query = select(ranked.c.job_id, ranked.c.place).where(ranked.c.job_id.in_(job_ids))
    return {row.job_id: row.place for row in session.execute(query)}


@reading
def list_queue(session: Session, offset: int, limit: int, namespace: str | None = None) -> list[QueueEntry]:
    """Part of the line, next first, with why each job waits. ``namespace``: only its jobs; places count all."""
    line = _line(session)
    place = func.row_number().over(partition_by=line.partition_by or None, order_by=line.order_by).label("place")
    ranked = select(queue_entry.c.job_id, place)
    # Only as far as the page needs: the database can stop there.
    if not line.partition_by and namespace is None:
        ranked = ranked.order_by(*line.order_by).limit(offset + limit)
    ranked = ranked.subquery()
    query = (
        select(
            ranked.c.place,
            queue_entry.c.job_id,
            queue_entry.c.attempt,
            queue_entry.c.enqueued_at,
            job.c.spec,
            waiting_reason.c.reason,
        )
        .join(queue_entry, queue_entry.c.job_id == ranked.c.job_id)
        .join(job, job.c.id == ranked.c.job_id)
        .outerjoin(waiting_reason, waiting_reason.c.class_key == queue_entry.c.class_key)
        .order_by(ranked.c.place, queue_entry.c.job_id)
        .offset(offset)
        .limit(limit)
    )
    if namespace is not None:
        query = query.where(queue_entry.c.namespace == namespace)
    return [_waiting_job(row) for row in session.execute(query)]


def _count_ahead(session: Session, line: _Line, job_id: str) -> int | None:
    """How many go before it; None if it does not wait. Far cheaper than to rank them all."""
    mine = [line.urgency, queue_entry.c.enqueued_at, queue_entry.c.job_id, *line.partition_by]
    row = session.execute(select(*mine).where(queue_entry.c.job_id == job_id)).one_or_none()
    if row is None:
        return None
    urgency, at, _, *group = row
    came_before = tuple_(queue_entry.c.enqueued_at, queue_entry.c.job_id) < tuple_(
        literal(at, UtcDateTime), literal(job_id)
    )
    ahead = or_(line.urgency > urgency, (line.urgency == urgency) & came_before)
    alike = [column == value for column, value in zip(line.partition_by, group, strict=True)]
    return session.scalar(select(func.count()).select_from(queue_entry).where(ahead, *alike)) or 0


def _line(session: Session) -> _Line:
    policy = current_policy(session)
    order, ageing = policy.get("order", "priority"), _AGEING.validate_python(policy.get("ageing_per_hour", 0.0))
    urgency: ColumnElement[Any] = literal(0) if order == "fcfs" else queue_entry.c.priority
    if ageing and order != "fcfs":
        urgency = urgency - ageing / 3600.0 * epoch_s(session, queue_entry.c.enqueued_at)
    return _Line(
        urgency,
        [queue_entry.c.namespace, queue_entry.c.user] if order == "fair_share" else [],
    )


def _waiting_job(row: Any) -> QueueEntry:
    reason = None if row.reason is None else Reason.model_validate_json(row.reason)
    return QueueEntry(
        position=row.place,
        job_id=row.job_id,
        attempt=row.attempt,
        waiting_since=row.enqueued_at,
        spec=JobSpec.model_validate_json(row.spec),
        reason=reason and reason.for_job(row.job_id, row.place),
    )
