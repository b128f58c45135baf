"""The queue: one entry for each job that waits for a placement."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import Row, bindparam, delete, func, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey, jobs_by_attempt
from gpu_platform.domain.errors import IllegalTransition, NotFound
from gpu_platform.domain.jobs.placement import Reason
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.placement_request import TOKEN_COMES, PlacementRequest, RankGroupRequests
from gpu_platform.domain.states import JOB_TRANSITIONS, GpuState, JobState
from gpu_platform.store.database import change, reading, upsert, writing, writing_unsynced
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs.dependencies import IS_WAITING, may_go_on, release
from gpu_platform.store.leadership.leader import check_epoch
from gpu_platform.store.models import allocation, gpu, job, queue_entry, reservation, waiting_reason

ASKS, AFTER = "asks", "after"
"""See ``JobRecord.asks_anew``."""
_FORGET_REASONS_AFTER = timedelta(hours=1)
_GROUPS = TypeAdapter(RankGroupRequests)


@writing
def enqueue(
    session: Session,
    job_id: str,
    attempt: int,
    *,
    task_token: bytes,
    excluded_gpus: Sequence[str],
    excluded_hosts: Sequence[str],
    now: datetime,
) -> None:
    """Put a QUEUED job's ``attempt`` into the queue; repeated, it replaces the token and keeps the place.

    The place is that of ``Job.queued_at``: a retry after a fault does not go to the end, a preempted job does.
    Raises :class:`NotFound` and, unless the job is QUEUED and not yet at this attempt, :class:`IllegalTransition`.
    """
    row = session.execute(_JOB, {"job_id": job_id}).one_or_none()
    if row is None:
        raise NotFound(f"there is no job {job_id!r}", job_id=job_id)
    if row.state != JobState.QUEUED or row.attempt >= attempt:
        raise IllegalTransition(
            subject=f"job {job_id}",
            current=row.state,
            wanted="waiting for a placement",
            allowed=sorted(JOB_TRANSITIONS[JobState(row.state)]),
        )
    excluded_gpus = _still_avoided(session, job_id, excluded_gpus)
    key = AttemptKey(job_id=job_id, attempt=attempt)
    # A workflow that took over closed this number for the lost one, and now asks for it itself.
    never_held = (reservation.c.job_id == job_id) & (reservation.c.attempt == attempt)
    session.execute(delete(reservation).where(never_held, reservation.c.reserved_at.is_(None)))
    join_queue(session, key, row, task_token, now, excluded_gpus=excluded_gpus, excluded_hosts=excluded_hosts)


def join_queue(
    session: Session,
    key: AttemptKey,
    row: Any,
    task_token: bytes,
    now: datetime,
    *,
    excluded_gpus: Sequence[str] = (),
    excluded_hosts: Sequence[str] = (),
) -> None:
    """Inside a transaction that locked the row of a QUEUED job: see :func:`enqueue`. A job that is held does not join:
    its workflow asks again when it is released.
    """
    if row.held is not None or (row.asks_anew is not None and not _asks_now(session, key.job_id, row.asks_anew, now)):
        return
    since = row.queued_at or now
    spec = JobSpec.model_validate_json(row.spec)
    if spec.after:
        release(session, key.job_id, now)  # its workflow knows that it may go on; an older database may not
    request = replace(
        PlacementRequest.from_spec(spec, key.job_id, key.attempt, since.timestamp()),
        priority=row.priority,
        namespace=row.namespace,
        user=row.user,
        excluded_gpus=frozenset(excluded_gpus),
        excluded_hosts=frozenset(excluded_hosts),
        task_token=task_token,
    )
    entry = entry_of(request.with_class_key(), enqueued_at=since)
    upsert(session, queue_entry, entry)
    append_event(session, "queue.added", "control", now, job_id=key.job_id, attempt=key.attempt)


def clear_exclusions(session: Session, gpu_uuid: str, now: datetime) -> None:
    """Inside a transaction: the GPU was repaired and verified, so waiting jobs have no reason to avoid it any more."""
    for row in session.execute(_AVOIDING, {"pattern": f'%"{gpu_uuid}"%'}).all():
        request = _placement_request(row)
        request = replace(request, excluded_gpus=request.excluded_gpus - {gpu_uuid}).with_class_key()
        values = {"excluded_gpus": _as_text(request.excluded_gpus), "class_key": request.class_key}
        session.execute(update(queue_entry).where(queue_entry.c.job_id == row.job_id).values(values))
        append_event(session, "queue.added", "remediation", now, job_id=row.job_id, attempt=row.attempt)


@writing
def dequeue(
    session: Session, job_id: str, attempt: int, *, task_token: bytes | None = None, now: datetime | None = None
) -> None:
    """Take the attempt out of the queue, if it is there. With ``task_token``: only if its entry has this token."""
    leave_queue(session, job_id, now or datetime.now(UTC), attempt, task_token)


@reading
def read_queue(session: Session, job_ids: Sequence[str] | None = None) -> list[PlacementRequest]:
    """The waiting jobs (or those of ``job_ids``), in queue order: priority, then time, then id."""
    query = select(queue_entry)
    if job_ids is not None:
        query = query.where(queue_entry.c.job_id.in_(job_ids))
    return sorted(
        (_placement_request(row) for row in session.execute(query)),
        key=lambda entry: (-entry.priority, entry.enqueued_at, entry.job_id),
    )


@reading
def queued_without_row(session: Session, older_than: datetime) -> list[str]:
    """Jobs that have been QUEUED since before ``older_than`` but are not in the queue, or keep only a place there for
    the task token that comes: nobody will place them. The process that should have written it may have died.

    A job that waits for its next try, for the time at which it begins (both ``retry_at``), for other jobs, or to be
    released is left out.
    """
    entry = (queue_entry.c.job_id == job.c.id) & (queue_entry.c.task_token != TOKEN_COMES)
    waits = select(queue_entry.c.job_id).where(entry).exists()
    due = job.c.retry_at.is_(None) | (job.c.retry_at < older_than)
    query = select(job.c.id).where(
        job.c.state == JobState.QUEUED.value,
        job.c.state_at < older_than,
        due,
        ~waits,
        ~IS_WAITING,
        job.c.held.is_(None),
    )
    return list(session.scalars(query.order_by(job.c.id)))


@writing_unsynced
def set_reasons(session: Session, reasons: Mapping[str, Reason], now: datetime) -> None:
    """Write why jobs wait. ``class_key`` -> reason."""
    for key, reason in sorted(reasons.items()):
        text = reason.model_dump_json(exclude={"position"})
        upsert(session, waiting_reason, {"class_key": key, "reason": text, "at": now})
    waits = select(queue_entry.c.class_key).where(queue_entry.c.class_key == waiting_reason.c.class_key).exists()
    session.execute(delete(waiting_reason).where(waiting_reason.c.at < now - _FORGET_REASONS_AFTER, ~waits))


@writing_unsynced
def write_sort_keys(session: Session, epoch: int, keys: Mapping[str, tuple[float, float]]) -> None:
    """The leader of ``epoch`` writes where waiting jobs come: job -> (urgency, place), smaller first.

    Raises :class:`StaleEpoch`.
    """
    check_epoch(session, epoch)
    rows = [{"entry": name, "urgent": urgency, "at": place} for name, (urgency, place) in sorted(keys.items())]
    session.execute(_WRITE_KEY, rows)


@reading
def queue_length(session: Session) -> int:
    """How many jobs wait for a placement."""
    return session.scalar(select(func.count()).select_from(queue_entry)) or 0


@reading
def oldest_entry(session: Session) -> datetime | None:
    """Since when the job waits that waits longest for a placement; None: none waits."""
    return session.scalar(select(func.min(queue_entry.c.enqueued_at)))


@reading
def waiting_by_reason(session: Session) -> dict[str, int]:
    """How many jobs wait for each ``Reason.code``; grouped by the database, since there are few classes of jobs."""
    query = (
        select(waiting_reason.c.reason, func.count())
        .select_from(queue_entry)
        .outerjoin(waiting_reason, waiting_reason.c.class_key == queue_entry.c.class_key)
        .group_by(queue_entry.c.class_key, waiting_reason.c.reason)
    )
    counts: Counter[str] = Counter()
    for reason, count in session.execute(query):
        counts[Reason.model_validate_json(reason).code if reason else "not_yet_looked_at"] += count
    return dict(counts)


def leave_queue(
    session: Session, job_id: str, now: datetime, attempt: int | None = None, task_token: bytes | None = None
) -> bool:
    """Inside a transaction: delete the job's entry (only that of ``attempt``, of ``task_token``), with an event.
    Returns whether there was one."""
    statement, which = _LEAVE, {"entry": job_id, "of_attempt": attempt, "of_token": task_token}
    if attempt is not None:
        statement = _LEAVE_ATTEMPT if task_token is None else _LEAVE_TOKEN
    left = session.scalar(statement, which)
    if left is not None:
        append_event(session, "queue.removed", "control", now, job_id=job_id, attempt=left)
    return left is not None


def leave_queue_of(session: Session, keys: Collection[AttemptKey], now: datetime) -> None:
    """Inside a transaction: delete the entries of exactly these attempts, with events."""
    for attempt, job_ids in jobs_by_attempt(keys).items():
        left = session.scalars(_LEAVE_OF, {"entries": job_ids, "of_attempt": attempt}).all()
        for job_id in left:
            append_event(session, "queue.removed", "control", now, job_id=job_id, attempt=attempt)


def leave_queue_together(
    session: Session, keys: Collection[AttemptKey], now: datetime, task_token: bytes | None = None
) -> set[AttemptKey]:
    """Inside a transaction: delete the entries of these jobs (only those with ``task_token``), with events. Returns
    those that had one. Without a token, entries of other attempts of these jobs are deleted, too."""
    if not keys:
        return set()
    jobs = {key.job_id: key for key in keys}
    statement = _LEAVE_TOGETHER if task_token is None else _LEAVE_TOGETHER_TOKEN
    which = {"entries": list(jobs), **({} if task_token is None else {"of_token": task_token})}
    left = set()
    for row in session.execute(statement, which).all():
        append_event(session, "queue.removed", "control", now, job_id=row.job_id, attempt=row.attempt)
        if row.attempt == jobs[row.job_id].attempt:
            left.add(jobs[row.job_id])
    return left


def replace_token(session: Session, key: AttemptKey, current: bytes, new: bytes) -> bool:
    """Inside a transaction: another task token for an entry with the token ``current``. False: there is none."""
    which = {"entry": key.job_id, "of_attempt": key.attempt, "of_token": current}
    return change(session, _REPLACE_TOKEN, {**which, "new_token": new}) == 1


def _asks_now(session: Session, job_id: str, anew: str, now: datetime) -> bool:
    """Whether a job that was changed asks with what it says now. False: it comes after other jobs that have not
    ended."""
    if anew == AFTER and not may_go_on(session, job_id, now):
        return False
    session.execute(_ASKS_NOW, {"job_": job_id})
    return True


def _still_avoided(session: Session, job_id: str, excluded: Sequence[str]) -> list[str]:
    """Without those that were repaired and verified since the job last had them."""
    if not excluded:
        return []
    query = (
        select(gpu.c.uuid)
        .join(allocation, allocation.c.gpu_uuid == gpu.c.uuid)
        .where(gpu.c.uuid.in_(excluded), allocation.c.job_id == job_id, gpu.c.state.in_(_IN_SERVICE))
        .group_by(gpu.c.uuid, gpu.c.healed_at)
        .having(gpu.c.healed_at > func.max(allocation.c.reserved_at))
    )
    healed = set(session.scalars(query))
    return [uuid for uuid in excluded if uuid not in healed]


_ASKS_NOW = update(job).where(job.c.id == bindparam("job_")).values(asks_anew=None)
_WRITE_KEY = (
    update(queue_entry)
    .where(queue_entry.c.job_id == bindparam("entry"))
    .values(urgency=bindparam("urgent"), place=bindparam("at"))
)
_REPLACE_TOKEN = (
    update(queue_entry)
    .where(
        queue_entry.c.job_id == bindparam("entry"),
        queue_entry.c.attempt == bindparam("of_attempt"),
        queue_entry.c.task_token == bindparam("of_token"),
    )
    .values(task_token=bindparam("new_token"))
)
_IN_SERVICE = [state.value for state in (GpuState.AVAILABLE, GpuState.ALLOCATED, GpuState.IN_USE)]
_AVOIDING = (
    select(queue_entry).where(queue_entry.c.excluded_gpus.like(bindparam("pattern"))).order_by(queue_entry.c.job_id)
)
_JOB = (
    select(
        job.c.state,
        job.c.attempt,
        job.c.spec,
        job.c.priority,
        job.c.namespace,
        job.c.user,
        job.c.queued_at,
        job.c.held,
        job.c.asks_anew,
    )
    .where(job.c.id == bindparam("job_id"))
    .with_for_update(key_share=True)
)
_LEAVE = delete(queue_entry).where(queue_entry.c.job_id == bindparam("entry")).returning(queue_entry.c.attempt)
_LEAVE_TOGETHER = (
    delete(queue_entry)
    .where(queue_entry.c.job_id.in_(bindparam("entries", expanding=True)))
    .returning(queue_entry.c.job_id, queue_entry.c.attempt)
)
_LEAVE_OF = (
    delete(queue_entry)
    .where(
        queue_entry.c.job_id.in_(bindparam("entries", expanding=True)), queue_entry.c.attempt == bindparam("of_attempt")
    )
    .returning(queue_entry.c.job_id)
)
_LEAVE_TOGETHER_TOKEN = _LEAVE_TOGETHER.where(queue_entry.c.task_token == bindparam("of_token"))
_LEAVE_ATTEMPT = _LEAVE.where(queue_entry.c.attempt == bindparam("of_attempt"))
_LEAVE_TOKEN = _LEAVE_ATTEMPT.where(queue_entry.c.task_token == bindparam("of_token"))


@lru_cache(maxsize=4096)
def _resources(text: str) -> ResourceRequest:
    return ResourceRequest.model_validate_json(text)


@lru_cache(maxsize=4096)
def _groups(text: str) -> RankGroupRequests:
    return _GROUPS.validate_json(text) if text else ()


@lru_cache(maxsize=4096)
def _names(text: str) -> frozenset[str]:
    return frozenset(json.loads(text))


def _as_text(names: frozenset[str]) -> str:
    return json.dumps(sorted(names))


def entry_of(request: PlacementRequest, enqueued_at: datetime) -> dict[str, Any]:
    """The row of ``queue_entry`` for a request; ``_placement_request`` reads it back."""
    return {
        "job_id": request.job_id,
        "attempt": request.attempt,
        "priority": request.priority,
        "enqueued_at": enqueued_at,
        "class_key": request.class_key,
        "namespace": request.namespace,
        "user": request.user,
        "task_token": request.task_token,
        "gpus": request.resources.model_dump_json(),
        "groups": _GROUPS.dump_json(request.groups).decode() if request.groups else "",
        "excluded_gpus": _as_text(request.excluded_gpus),
        "excluded_hosts": _as_text(request.excluded_hosts),
        "time_limit_s": request.time_limit_s,
        "preemptible": request.preemptible,
        "checkpoints": request.checkpoints,
        "grace_s": request.grace_s,
        "urgency": None,
        "place": None,
    }


def _placement_request(row: Row[Any]) -> PlacementRequest:
    return PlacementRequest(
        job_id=row.job_id,
        attempt=row.attempt,
        resources=_resources(row.gpus),
        groups=_groups(row.groups),
        priority=row.priority,
        namespace=row.namespace,
        user=row.user,
        enqueued_at=row.enqueued_at.timestamp(),
        excluded_gpus=_names(row.excluded_gpus),
        excluded_hosts=_names(row.excluded_hosts),
        class_key=row.class_key,
        task_token=row.task_token,
        time_limit_s=row.time_limit_s,
        preemptible=row.preemptible,
        checkpoints=row.checkpoints,
        grace_s=row.grace_s,
    )
