"""Positions in the queue, in the order of the policy in force. For people; the scheduler has its own copy.

Priority and arrival are in the database. What goes beyond them, the head starts, only the leader knows: it writes the
sort keys of waiting jobs (``queue.write_sort_keys``). A job that it has not seen yet counts without its head start.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, func, literal, or_, select, tuple_
from sqlalchemy.orm import Session

from gpu_platform.domain.jobs.job import QueueEntry
from gpu_platform.domain.jobs.placement import Reason
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.queue_orders import ORDERS
from gpu_platform.store.database import epoch_s, reading
from gpu_platform.store.jobs.promises import as_told
from gpu_platform.store.leadership.leader import current_policy
from gpu_platform.store.models import job, queue_entry, waiting_reason

_AGEING, _WEIGHTS = TypeAdapter(float), TypeAdapter(dict[str, float])
COUNTED = 3
"""For at most so many jobs it is cheaper to count the jobs ahead than to rank the whole queue."""


@dataclass(frozen=True)
class _QueueOrder:
    """The SQL of the queue's order."""

    urgency: ColumnElement[Any]
    """The higher value goes first."""
    came: ColumnElement[Any]
    """Among jobs of the same urgency, the lower value goes first."""
    partition_by: Sequence[ColumnElement[Any]]
    """Where shares matter, there is no lasting order between users: then positions count only the user's own jobs."""

    @property
    def order_by(self) -> list[ColumnElement[Any]]:
        return [self.urgency.desc(), self.came, queue_entry.c.job_id]


@reading
def positions(session: Session, job_ids: Collection[str]) -> dict[str, int]:
    """Job -> position in the queue, 1 is next. Jobs of ``job_ids`` that do not wait are left out.

    In an order that uses fair shares a position counts only the jobs of the same user.
    """
    if not job_ids:
        return {}
    order = _queue_order(session)
    if len(job_ids) <= COUNTED:
        places = {job_id: _count_ahead(session, order, job_id) for job_id in job_ids}
        return {job_id: ahead + 1 for job_id, ahead in places.items() if ahead is not None}
    place = func.row_number().over(partition_by=order.partition_by or None, order_by=order.order_by)
    ranked = select(queue_entry.c.job_id, place.label("place")).subquery()
    query = select(ranked.c.job_id, ranked.c.place).where(ranked.c.job_id.in_(job_ids))
    return {row.job_id: row.place for row in session.execute(query)}


@reading
def list_queue(
    session: Session,
    offset: int,
    limit: int,
    namespace: str | None = None,
    visible: Collection[str] | None = None,
) -> list[QueueEntry]:
    """One page of the queue, next job first, each with the reason why it waits.

    ``namespace``: only jobs of it, ``visible``: only jobs of these namespaces (None: all). Their positions still count
    all jobs.
    """
    order = _queue_order(session)
    place = func.row_number().over(partition_by=order.partition_by or None, order_by=order.order_by).label("place")
    ranked = select(queue_entry.c.job_id, place)
    # Rank only as many rows as the page needs: then the database can stop early.
    if not order.partition_by and namespace is None and visible is None:
        ranked = ranked.order_by(*order.order_by).limit(offset + limit)
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
    if visible is not None:
        query = query.where(queue_entry.c.namespace.in_(sorted(visible)))
    found = [_waiting_job(row) for row in session.execute(query)]
    told = as_told(session, {one.job_id: one.reason for one in found if one.reason is not None})
    return [one.model_copy(update={"reason": told.get(one.job_id)}) for one in found]


def _count_ahead(session: Session, order: _QueueOrder, job_id: str) -> int | None:
    """How many jobs are ahead of it; None if it does not wait. Far cheaper than ranking the whole queue."""
    mine = [order.urgency, order.came, queue_entry.c.job_id, *order.partition_by]
    row = session.execute(select(*mine).where(queue_entry.c.job_id == job_id)).one_or_none()
    if row is None:
        return None
    urgency, at, _, *group = row
    came_before = tuple_(order.came, queue_entry.c.job_id) < tuple_(literal(at, order.came.type), literal(job_id))
    ahead = or_(order.urgency > urgency, (order.urgency == urgency) & came_before)
    alike = [column == value for column, value in zip(order.partition_by, group, strict=True)]
    return session.scalar(select(func.count()).select_from(queue_entry).where(ahead, *alike)) or 0


def _queue_order(session: Session) -> _QueueOrder:
    policy = current_policy(session)
    # During an upgrade a newer leader may go by an order that this release does not know.
    rule = ORDERS.get(policy.get("order", "priority"), ORDERS["priority"])
    ageing = _AGEING.validate_python(policy.get("ageing_per_hour", 0.0))
    weights = _WEIGHTS.validate_python(policy.get("order_weights", {}))
    came: ColumnElement[Any] = queue_entry.c.enqueued_at
    urgency: ColumnElement[Any] = queue_entry.c.priority if rule.by_priority else literal(0)
    if ageing and rule.by_priority:
        urgency = urgency - ageing / 3600.0 * epoch_s(session, queue_entry.c.enqueued_at)
    if rule.has_head_starts(weights):
        urgency = func.coalesce(-queue_entry.c.urgency, urgency)
        came = func.coalesce(queue_entry.c.place, epoch_s(session, queue_entry.c.enqueued_at))
    by_user = [queue_entry.c.namespace, queue_entry.c.user] if rule.uses_shares(weights) else []
    return _QueueOrder(urgency, came, by_user)


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
