"""What happened to jobs of which somebody wants to be told, and how far people were told."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, func, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.notify import RULES, NotifyOn
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.notices import Happened, RunningAttempt, Undelivered
from gpu_platform.domain.notifications import OpenTargets
from gpu_platform.domain.states import JobState
from gpu_platform.store.database import insert_new, reading, writing
from gpu_platform.store.events import append_event, event_of
from gpu_platform.store.jobs.arrays import get_array
from gpu_platform.store.jobs.jobs import job_of
from gpu_platform.store.models import event, job, job_array, notice_feed

OF_JOBS: dict[str, frozenset[NotifyOn]] = {
    "job.running": frozenset({NotifyOn.START, NotifyOn.LIMIT}),
    "job.retrying": frozenset({NotifyOn.REQUEUE}),
    "job.preempted": frozenset({NotifyOn.REQUEUE}),
    "job.completed": frozenset({NotifyOn.END}),
    "job.failed": frozenset({NotifyOn.END, NotifyOn.FAIL}),
    "job.cancelled": frozenset({NotifyOn.END}),
    "job.promise_withdrawn": frozenset({NotifyOn.PROMISE}),
    "job.promise_broken": frozenset({NotifyOn.PROMISE}),
}
"""Kind of an event of a job -> which rules it concerns."""
OF_ARRAYS: dict[str, frozenset[NotifyOn]] = {
    "array.running": frozenset({NotifyOn.START}),
    "array.completed": frozenset({NotifyOn.END}),
    "array.failed": frozenset({NotifyOn.END, NotifyOn.FAIL}),
    "array.cancelled": frozenset({NotifyOn.END}),
}
MOST_AT_ONCE = 200
"""Events in one look. If the follower dies after it, people may be told of so many twice."""
_WINDOW = 20_000
"""A look reads no more numbers of events than that, so that it is short also after days without a follower."""
NOT_DELIVERED = "job.notification_failed"


@dataclass(frozen=True)
class Look:
    """What was found after a position in the feed."""

    happened: list[Happened]
    seq: int
    """Up to this event everything was read."""
    last: int
    """The newest event there was."""


@reading
def position(session: Session) -> int | None:
    """Up to which event people were told. None: nobody has followed yet."""
    return session.scalar(_POSITION)


@writing
def begin(session: Session, targets: OpenTargets) -> int:
    """Write down what users may name, and return the position. The first follower begins with what comes."""
    newest = session.scalar(_NEWEST) or 0
    insert_new(session, notice_feed, {"id": 1, "seq": newest, "targets": "{}"})
    # A position that was copied from elsewhere would keep people from being told.
    session.execute(update(notice_feed).where(notice_feed.c.seq > newest).values(seq=newest))
    session.execute(update(notice_feed).values(targets=targets.model_dump_json()))
    return session.scalars(_POSITION).one()


@writing
def advance(session: Session, seq: int) -> None:
    """People were told up to this event. A follower that was replaced does not move it back."""
    session.execute(update(notice_feed).where(notice_feed.c.seq < seq).values(seq=seq))


@writing
def withdraw_targets(session: Session) -> None:
    """Users may name none any more, because no target is open."""
    session.execute(update(notice_feed).values(targets=OpenTargets().model_dump_json()))


@reading
def open_targets(session: Session) -> OpenTargets:
    """What users may name."""
    written = session.scalar(_TARGETS)
    return OpenTargets() if written is None else OpenTargets.model_validate_json(written)


@reading
def look(session: Session, after: int) -> Look:
    """The events after a position of which somebody is told, in their order."""
    last = session.scalar(_NEWEST) or 0
    if last < after:
        return Look([], after, last)
    until = min(last, after + _WINDOW)
    terms = {"after": after, "until": until, "limit": MOST_AT_ONCE}
    rows = [*session.execute(_JOB_EVENTS, terms), *session.execute(_ARRAY_EVENTS, terms)]
    rows = sorted(rows, key=lambda row: row.seq)[:MOST_AT_ONCE]
    seq = rows[-1].seq if len(rows) == MOST_AT_ONCE else until
    rows_of_jobs = {row.id: row for row in session.execute(_JOBS, {"ids": [row.job_id for row in rows]})}
    happened: list[Happened] = []
    for row in rows:
        on = OF_JOBS.get(row.kind) or OF_ARRAYS[row.kind]
        rules = tuple(rule for rule in RULES.validate_json(row.notify) if on & set(rule.events))
        if not rules:
            continue
        found = rows_of_jobs.get(row.job_id)
        if found is None:
            happened.append(Happened(event_of(row), rules, on, get_array(session, row.job_id)))
        else:
            happened.append(Happened(event_of(row), rules, on, job_of(found), _limit_s(found)))
    return Look(happened, seq, last)


def _limit_s(row: Row[Any]) -> int | None:
    """The time limit that counts: that of the submission, or the one that the job got while it waited."""
    if row.changed_limit is not None:
        return LimitChange.model_validate_json(row.changed_limit).time_limit_s
    return JobSpec.model_validate_json(row.spec).time_limit_s


@reading
def runs(session: Session, attempt: RunningAttempt) -> bool:
    """True while this attempt of the job runs."""
    where = (job.c.id == attempt.job_id) & (job.c.attempt == attempt.attempt)
    return session.scalar(select(job.c.state).where(where)) == JobState.RUNNING


@writing
def note_undelivered(session: Session, undelivered: Undelivered, now: datetime) -> None:
    """Each job's events say that somebody was not told."""
    there = _known(session, undelivered.jobs)
    for job_id in undelivered.jobs:
        if job_id in there:
            data = {"target": undelivered.target, "reason": undelivered.reason}
            append_event(session, NOT_DELIVERED, "control", now, job_id=job_id, data=data)


def _known(session: Session, ids: Collection[str]) -> set[str]:
    found = session.scalars(select(job.c.id).where(job.c.id.in_(sorted(ids))))
    of_arrays = session.scalars(select(job_array.c.id).where(job_array.c.id.in_(sorted(ids))))
    return {*found, *of_arrays}


_POSITION = select(notice_feed.c.seq)
_TARGETS = select(notice_feed.c.targets)
_NEWEST = select(func.max(event.c.seq))
_BETWEEN = (event.c.seq > bindparam("after")) & (event.c.seq <= bindparam("until"))
_JOB_EVENTS = (
    select(event, job.c.notify)
    .join(job, job.c.id == event.c.job_id)
    .where(_BETWEEN, event.c.kind.in_(sorted(OF_JOBS)), job.c.notify.is_not(None))
    .order_by(event.c.seq)
    .limit(bindparam("limit"))
)
_ARRAY_EVENTS = (
    select(event, job_array.c.notify)
    .join(job_array, job_array.c.id == event.c.job_id)
    .where(_BETWEEN, event.c.kind.in_(sorted(OF_ARRAYS)), job_array.c.notify.is_not(None))
    .order_by(event.c.seq)
    .limit(bindparam("limit"))
)
_JOBS = select(job).where(job.c.id.in_(bindparam("ids", expanding=True)))
