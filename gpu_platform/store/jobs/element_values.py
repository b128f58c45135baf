"""What elements of arrays have instead of what was submitted: read from their rows and from their array's.

An array's row keeps what was submitted, and beside it what was changed for elements to come. An element's row has its
own values. See ``element_changes.py`` for who writes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.deadline import latest_start
from gpu_platform.domain.jobs.element_changes import ElementChanges, ElementValues
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import reading
from gpu_platform.store.jobs.owners import no_such_array
from gpu_platform.store.models import job, job_array

_AT_ONCE = 500


def changes_of(changed: str | None) -> ElementChanges:
    """What was changed of an array's elements since its submission: ``changed`` of the array's row."""
    return ElementChanges() if changed is None else ElementChanges.model_validate_json(changed)


def asked_instead(values: ElementValues) -> dict[str, Any]:
    """Columns of the entry in the queue that differ from those of the submission."""
    own: dict[str, Any] = {} if values.priority is None else {"priority": values.priority}
    return own if values.limit is None else {**own, "time_limit_s": values.limit.time_limit_s}


@reading
def were_changed(session: Session, array_id: str) -> bool:
    """True if elements of the array may have other values than its submission says."""
    return session.scalar(_CHANGED, {"array_": array_id}) is not None


@reading
def limits_of(session: Session, job_ids: Sequence[str]) -> dict[str, LimitChange]:
    """Job -> the time limit that it got since its submission. Those that have their first one are left out."""
    found: dict[str, LimitChange] = {}
    for begin in range(0, len(job_ids), _AT_ONCE):
        rows = session.execute(_LIMITS, {"names": job_ids[begin : begin + _AT_ONCE]})
        found |= {row.id: LimitChange.model_validate_json(row.changed_limit) for row in rows}
    return found


@dataclass(frozen=True)
class LateElements:
    """Which elements of an array with a deadline have become too late to start."""

    late: dict[str, LimitChange | None]
    """Job -> the time limit that it got since its submission."""
    no_more: bool
    """Elements that have not entered the queue are too late, too."""
    look_at: datetime | None
    """When the next ones become too late. None: all are."""


@reading
def late_elements(session: Session, array_id: str, spec: JobSpec, now: datetime) -> LateElements:
    """Which elements that have not ended could not end by the deadline if they started now. ``spec``: what the
    elements shared when the array was submitted. Raises :class:`NotFound`."""
    row = session.execute(_CHANGED, {"array_": array_id}).one_or_none()
    if row is None:
        raise no_such_array(array_id)
    start = latest_start(changes_of(row.changed).whole.applied_to(spec))
    ends = [] if start is None else [start]
    late: dict[str, LimitChange | None] = {}
    for one in session.execute(_OPEN_LIMITS, {"array_": array_id}):
        limit = None if one.changed_limit is None else LimitChange.model_validate_json(one.changed_limit)
        until = latest_start(ElementValues(limit=limit).applied_to(spec))
        if until is not None and until <= now:
            late[one.id] = limit
        elif until is not None:
            ends.append(until)
    return LateElements(late, start is not None and start <= now, min((at for at in ends if at > now), default=None))


# ---- the statements, compiled once ----

_CHANGED = select(job_array.c.changed).where(job_array.c.id == bindparam("array_"))
_LIMITS = select(job.c.id, job.c.changed_limit).where(
    job.c.id.in_(bindparam("names", expanding=True)), job.c.changed_limit.is_not(None)
)
_OPEN_LIMITS = select(job.c.id, job.c.changed_limit).where(
    job.c.array_id == bindparam("array_"),
    job.c.state.in_([state.value for state in JobState if not state.is_terminal]),
)
