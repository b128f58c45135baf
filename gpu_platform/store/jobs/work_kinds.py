"""Kinds of work: which one earlier jobs named, and how many jobs of each kind there are."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import bindparam, func, select
from sqlalchemy.orm import Session

from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.work_kind import WorkKind
from gpu_platform.domain.states import JobState
from gpu_platform.domain.texts import name_pattern
from gpu_platform.store.database import reading
from gpu_platform.store.models import job

LOOK_BACK = 100
"""A kind is inferred from so many jobs of the user, the newest ones that named a kind."""
UNKNOWN = "unknown"
"""The kind in metrics of a job that named none, and of which none was inferred."""


def inferred_kind(session: Session, spec: JobSpec) -> WorkKind | None:
    """Inside a transaction: the kind that the newest job of this user in this namespace named whose name differs in
    numbers only. None: there is no such job, or this one names a kind itself.
    """
    if spec.kind is not None:
        return None
    pattern = name_pattern(spec.name)
    earlier = session.execute(_EARLIER, {"namespace": spec.namespace, "user": spec.user})
    return next((WorkKind(row.kind) for row in earlier if name_pattern(row.name) == pattern), None)


@reading
def count_unfinished(session: Session) -> dict[tuple[str, JobState], int]:
    """(kind or ``unknown``, state) -> how many jobs that have not ended."""
    return {(row.kind, JobState(row.state)): row.jobs for row in session.execute(_UNFINISHED)}


def kind_data(kind: str | None) -> dict[str, object]:
    """What the event of a submission says of the kind."""
    return {} if kind is None else {"kind": kind}


def start_data(
    kind: str | None, queued_at: datetime | None, ran_at: datetime | None, now: datetime
) -> dict[str, object]:
    """What the event ``job.running`` says. ``ran_at``: the start of the attempt before.

    The wait counts from the time when the job came into the queue. A retry keeps its place there, so it has none.
    """
    data = kind_data(kind)
    if queued_at is not None and (ran_at is None or queued_at >= ran_at):
        data["waited_s"] = _seconds(queued_at, now)
    return data


def end_data(
    kind: str | None, started_at: datetime | None, now: datetime, submitted_at: datetime | None = None
) -> dict[str, object]:
    """What the event of a job's end says. ``started_at``: None if it did not run until now. ``submitted_at``: None if
    it did not complete."""
    data = kind_data(kind)
    if started_at is not None:
        data["ran_s"] = _seconds(started_at, now)
    if submitted_at is not None:
        data["took_s"] = _seconds(submitted_at, now)
    return data


def _seconds(start: datetime, end: datetime) -> float:
    return round(max(0.0, (end - start).total_seconds()), 3)


_EARLIER = (
    select(job.c.name, job.c.kind)
    .where(
        job.c.namespace == bindparam("namespace"),
        job.c.user == bindparam("user"),
        job.c.kind.is_not(None),
    )
    .order_by(job.c.created_at.desc())
    .limit(LOOK_BACK)
)
_KIND = func.coalesce(job.c.kind, job.c.inferred_kind, UNKNOWN).label("kind")
_UNFINISHED = (
    select(_KIND, job.c.state, func.count().label("jobs"))
    .where(job.c.state.in_([state.value for state in JobState if not state.is_terminal]))
    .group_by(_KIND, job.c.state)
)
