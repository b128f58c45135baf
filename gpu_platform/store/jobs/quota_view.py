"""Quotas as people see them: what each namespace may hold, and what it holds now."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gpu_platform.domain.placing.quota import Namespace, QuotaUse
from gpu_platform.store.database import reading
from gpu_platform.store.leadership.leader import current_quotas
from gpu_platform.store.models import allocation, job, queue_entry

_HELD = (
    select(job.c.namespace, job.c.user, (func.sum(allocation.c.sm_percent) / 100.0).label("gpus"))
    .join(job, job.c.id == allocation.c.job_id)
    .where(allocation.c.released_at.is_(None), allocation.c.gpu_uuid.is_not(None))
    .group_by(job.c.namespace, job.c.user)
)
_WAITING = (
    select(job.c.namespace, func.count().label("jobs"))
    .join(queue_entry, queue_entry.c.job_id == job.c.id)
    .group_by(job.c.namespace)
)


@reading
def list_quotas(session: Session, visible: Collection[str] | None) -> list[QuotaUse]:
    """By name: namespaces that have a quota, hold GPUs or have waiting jobs. ``visible``: only these; None: all."""
    quotas = {node.name: node for node in current_quotas(session).namespaces}
    held: dict[str, dict[str, float]] = {}
    for row in session.execute(_HELD):
        held.setdefault(row.namespace, {})[row.user] = float(row.gpus)
    waiting = {row.namespace: row.jobs for row in session.execute(_WAITING)}
    names = sorted({*quotas, *held, *waiting})
    return [
        _use(quotas.get(name, Namespace(name=name)), held.get(name, {}), waiting.get(name, 0))
        for name in names
        if visible is None or name in visible
    ]


def _use(node: Namespace, held: dict[str, float], waiting: int) -> QuotaUse:
    said = node.model_dump(exclude={"name", "order"})
    return QuotaUse(namespace=node.name, **said, held_gpus=sum(held.values()), held_by_user=held, waiting_jobs=waiting)
