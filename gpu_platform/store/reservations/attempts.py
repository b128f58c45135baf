"""Steps of an attempt that change more than its GPUs: the job's state and its place in the line go with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy.orm import Session

from gpu_platform.domain.attempt import AttemptKey
from gpu_platform.domain.errors import IllegalTransition, ReservationConflict, WorkflowIsOlder
from gpu_platform.domain.job import Failure, Job, StoppedBy
from gpu_platform.domain.states import JOB_TRANSITIONS, JobState
from gpu_platform.domain.usage import RankUsage
from gpu_platform.store.database import writing
from gpu_platform.store.jobs.jobs import change_job, job_fields, job_of, lock_job
from gpu_platform.store.jobs.queue import leave_queue
from gpu_platform.store.jobs.usage import record_usage
from gpu_platform.store.reservations.allocations import close_reservation, give_back, holds


@writing
def mark_starting(session: Session, key: AttemptKey, now: datetime) -> Job:
    """Every host of the gang is prepared: ALLOCATED -> STARTING. Repeating it is a no-op, later as well.

    Raises :class:`ReservationConflict` (the attempt does not hold GPUs), :class:`NotFound`, :class:`IllegalTransition`.
    """
    row = lock_job(session, key.job_id)
    if not holds(session, key):
        raise ReservationConflict(f"attempt {key} holds no GPUs; it was released or never reserved")
    if row["state"] == JobState.RUNNING:
        return job_of(row)
    return job_of(change_job(session, row, JobState.STARTING, now, "workflow"))


@writing
def end_attempt(
    session: Session,
    key: AttemptKey,
    states: Sequence[JobState],
    *,
    now: datetime,
    actor: str,
    quarantine: Mapping[str, str] | None = None,
    failure: Failure | None = None,
    exit_code: int | None = None,
    user_retries: int | None = None,
    hardware_retries: int | None = None,
    preemptions: int | None = None,
    usage: Sequence[RankUsage] = (),
    retry_in_s: float | None = None,
    stopped_by: StoppedBy | None = None,
    placed: bool | None = None,
) -> Job:
    """Release what the attempt holds and move the job through ``states``, e.g. ``[PREEMPTED, QUEUED]``.

    ``stopped_by``: who wanted that; in the event of the state it led to. ``placed``: did the job's workflow know
    of a place, where it stopped the ranks? None: it is not the workflow that ends it.

    One transaction: nobody ever sees a finished job that holds GPUs. Repeating it is a no-op, and a job that ended
    otherwise meanwhile keeps its state (what the attempt held is released all the same). ``retry_in_s``: a job that is
    QUEUED again does not ask for GPUs before that. Raises :class:`NotFound`, :class:`IllegalTransition` and
    :class:`WorkflowIsOlder`; nothing was released then.
    """
    held = close_reservation(session, key, now)
    row = lock_job(session, key.job_id)
    passed = not held and row["attempt"] > key.attempt and not JobState(row["state"]).is_terminal
    if placed is not None and (passed or (held and not placed)):
        raise WorkflowIsOlder(f"attempt {key} has gone on without this workflow")
    goes_on = row["state"] != states[-1] and not JobState(row["state"]).is_terminal and row["attempt"] <= key.attempt
    if goes_on and not held and row["attempt"] < key.attempt and (usage or JobState(row["state"]).holds_gpus):
        # It ran, and the row knows nothing of it: see ``older_rows``.
        raise IllegalTransition(
            subject=f"job {key.job_id}",
            current=row["state"],
            wanted=f"{states[-1]} of attempt {key.attempt}",
            allowed=sorted(JOB_TRANSITIONS[JobState(row["state"])]),
        )
    stop = {} if stopped_by is None else stopped_by.model_dump(include={"verb", "reason"})
    if goes_on:
        for state in _still_to_come(states[:-1], row["state"]):
            row = change_job(session, row, state, now, actor, {}, stop if state is JobState.PREEMPTED else {})
    if held:
        give_back(session, key, now, quarantine or {})
        record_usage(session, key, usage, now)
    leave_queue(session, key.job_id, now, key.attempt)
    if goes_on:
        columns, data = job_fields(failure, exit_code, user_retries, hardware_retries, preemptions)
        columns["retry_at"] = None if retry_in_s is None else now + timedelta(seconds=retry_in_s)
        if retry_in_s is not None:
            data["retry_in_s"] = round(retry_in_s, 3)
        if stopped_by is not None:
            columns["stopped_by"] = stopped_by.model_dump_json()
            data |= stop if states[-1] is JobState.CANCELLED else {}
        row = change_job(session, row, states[-1], now, actor, columns, data)
    return job_of(row)


def _still_to_come(way: Sequence[JobState], current: str) -> Sequence[JobState]:
    """Of the states on the way those after ``current``: an older workflow may not know that the job came so far."""
    return way[way.index(JobState(current)) + 1 :] if current in way else way
