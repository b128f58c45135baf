"""What users and operators asked jobs to do, written down before the job's workflow hears of it.

So the event log has it, and control signs a stop only if somebody really asked for it: a signal that only Temporal
knows stops nothing.
"""

from __future__ import annotations

import json
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.store.database import reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import event

INTERRUPT = "job.interrupt"
"""Kind of the event. Its data are ``verb`` (cancel, kill or preempt) and ``reason``."""
PREEMPTING = "job.preempting"
"""Kind of the event with which the scheduler preempts an attempt."""
_WHOLE_JOB = ("cancel", "kill")


@writing
def record_interrupt(session: Session, key: AttemptKey, verb: str, actor: str, reason: str, now: datetime) -> None:
    """Write down that ``actor`` asks to cancel, kill or preempt the job, which is at attempt ``key``."""
    data = {"verb": verb, "reason": reason}
    append_event(session, INTERRUPT, actor, now, job_id=key.job_id, attempt=key.attempt or None, data=data)


@reading
def is_cancelled(session: Session, job_id: str) -> bool:
    """True if somebody asked to cancel or kill the job."""
    texts = session.scalars(select(event.c.data).where(event.c.job_id == job_id, event.c.kind == INTERRUPT))
    return any(json.loads(text).get("verb") in _WHOLE_JOB for text in texts)


@reading
def is_preempted(session: Session, key: AttemptKey) -> bool:
    """True if the scheduler or an operator preempts this attempt."""
    asked = select(event.c.kind, event.c.data).where(
        event.c.job_id == key.job_id, event.c.attempt == key.attempt, event.c.kind.in_((INTERRUPT, PREEMPTING))
    )
    rows = session.execute(asked).all()
    return any(row.kind == PREEMPTING or json.loads(row.data).get("verb") == "preempt" for row in rows)
