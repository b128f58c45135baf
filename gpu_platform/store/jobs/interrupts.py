"""What users and operators asked jobs to do, written down before the job's workflow hears of it.

So the event log has it, and control signs a stop only if somebody really asked for it: a signal that only Temporal
knows stops nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.array_ids import array_of, index_of
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.store.database import reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import event

INTERRUPT = "job.interrupt"
"""Kind of the event. Its data are ``verb`` (cancel, kill or preempt) and ``reason``."""
PREEMPTING = "job.preempting"
"""Kind of the event with which the scheduler preempts an attempt."""
_WHOLE_JOB = ("cancel", "kill")


@writing
def record_interrupt(
    session: Session,
    key: AttemptKey,
    verb: str,
    actor: str,
    reason: str,
    now: datetime,
    *,
    elements: str | None = None,
) -> None:
    """Write down that ``actor`` asks to cancel, kill or preempt the job, which is at attempt ``key``.

    The job may be an array. ``elements``: only these of its elements are meant; see :class:`IndexSet`.
    """
    data = {"verb": verb, "reason": reason}
    if elements is not None:
        data["elements"] = elements
    append_event(session, INTERRUPT, actor, now, job_id=key.job_id, attempt=key.attempt or None, data=data)


@reading
def is_cancelled(session: Session, job_id: str) -> bool:
    """True if somebody asked to cancel or kill the job, or, for an element, its array or a range of it."""
    array_id = array_of(job_id)
    subjects = [job_id] if array_id is None else [job_id, array_id]
    asked = select(event.c.data).where(event.c.job_id.in_(subjects), event.c.kind == INTERRUPT)
    return any(_stops(json.loads(text), job_id) for text in session.scalars(asked))


@reading
def is_preempted(session: Session, key: AttemptKey) -> bool:
    """True if the scheduler or an operator preempts this attempt."""
    asked = select(event.c.kind, event.c.data).where(
        event.c.job_id == key.job_id, event.c.attempt == key.attempt, event.c.kind.in_((INTERRUPT, PREEMPTING))
    )
    rows = session.execute(asked).all()
    return any(row.kind == PREEMPTING or json.loads(row.data).get("verb") == "preempt" for row in rows)


def _stops(asked: Mapping[str, str], job_id: str) -> bool:
    """True if what was asked of a job, or of its array, ends the job: alone or with others."""
    if asked.get("verb") not in _WHOLE_JOB:
        return False
    elements = asked.get("elements")
    return elements is None or (array_of(job_id) is not None and index_of(job_id) in IndexSet.parse(elements))
