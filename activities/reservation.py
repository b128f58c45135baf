"""Activities that reserve and release a gang. The rules are in ``gpu_platform.store.reservations``."""

from __future__ import annotations

import structlog
from pydantic import BaseModel
from temporalio import activity

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import (
    IllegalTransition,
    NotFound,
    PlatformError,
    ReservationConflict,
    Unavailable,
    WorkflowIsOlder,
)
from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.job import Failure, JobProgress, StoppedBy
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.domain.states import JobState, Parked
from gpu_platform.store import Store
from gpu_platform.store.jobs import changes, checkpoints, jobs
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.reservations import attempts, handover, releasing, reserving
from gpu_platform.store.reservations.attempts import EndedAttempt
from gpu_platform.store.restoring import older_rows
from gpu_platform.store.restoring.older_rows import RowStanding
from gpu_platform.temporal.errors import job_not_ours, workflow_is_older

log = structlog.get_logger()


class ReserveRequest(BaseModel):
    """Reserve a placement for an attempt."""

    key: AttemptKey
    placement: Placement


class Conflict(BaseModel):
    """Nothing was reserved, because the place is not free as it was when it was chosen. The gang is placed again."""

    message: str


class EndAttempt(BaseModel):
    """How an attempt ends: the job's next state, and which of its GPUs become DEGRADED."""

    key: AttemptKey
    state: JobState
    """The job's next state: terminal, or QUEUED for a retry, or PREEMPTED."""
    ran_unmarked: bool = False
    """Its ranks ran and ended before RUNNING was written. It is written now."""
    actor: str = "workflow"
    failure: Failure | None = None
    exit_code: int | None = None
    progress: JobProgress
    usage: list[RankUsage] = []
    """Usage as its hosts measured it. Lost hosts report none."""
    faulty_gpus: dict[str, str] = {}
    """GPU uuid -> fault. These GPUs do not become AVAILABLE: they are DEGRADED, and remediation takes them over."""
    retry_in_s: float | None = None
    """If it is QUEUED: it asks for GPUs again after this many seconds."""
    stopped_by: StoppedBy | None = None
    placed: bool | None = None
    """It had a placement, and what ran there was stopped. None: a cleanup."""


class StartedFrom(BaseModel):
    """The checkpoint from which a later attempt resumed."""

    key: AttemptKey
    host: str
    """Rank 0's host."""
    resumed_from: str | None = None
    note: str | None = None


class HandoverRequest(BaseModel):
    """End an attempt, and let the next one go on with GPUs that it holds."""

    key: AttemptKey
    placement: Placement
    """The placement of the next attempt."""
    parked: bool
    """One of its GPUs must be healed first."""
    failure: Failure | None = None
    hardware_retries: int
    faulty_gpus: dict[str, str] = {}
    """As in :class:`EndAttempt`."""
    usage: list[RankUsage] = []


class ReservationActivities:
    """The steps that reserve, hand over and release GPUs.

    The database must know every job that comes here, because the job was admitted. If it does not, it was lost or is an
    older copy: then the step is tried until the job is restored (``workers/scheduler/job_restorer.py``).
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn
    def reserve_gang(self, request: ReserveRequest) -> Reserved | Conflict:
        """Reserve all GPUs of the placement, or none."""
        try:
            return self._reserve(request)
        except IllegalTransition as error:
            match older_rows.standing(self._store, request.key):
                case RowStanding.ENDED:
                    raise job_not_ours(error) from error
                case RowStanding.PAST:
                    raise workflow_is_older(request.key) from error
                case RowStanding.BEHIND | RowStanding.HOLDS:
                    older_rows.follow(self._store, request.key, utc_now())
            return self._reserve(request)

    def _reserve(self, request: ReserveRequest) -> Reserved | Conflict:
        try:
            reserved = reserving.reserve_gang(self._store, request.key, request.placement, now=utc_now())
        except ReservationConflict as conflict:
            return Conflict(message=conflict.message)
        return reserved.model_copy(update={"limit": changes.changed_limit(self._store, request.key.job_id)})

    @activity.defn
    def hand_over(self, request: HandoverRequest) -> Reserved | Conflict:
        """End the attempt and give what it holds to the next one, in one transaction."""
        try:
            return handover.hand_over(
                self._store,
                request.key,
                request.placement,
                parked=request.parked,
                now=utc_now(),
                faulty_gpus=request.faulty_gpus,
                failure=request.failure,
                hardware_retries=request.hardware_retries,
                usage=request.usage,
            )
        except (ReservationConflict, IllegalTransition, NotFound) as error:
            return Conflict(message=error.message)

    @activity.defn
    def changed_limit(self, job_id: str) -> LimitChange | None:
        """The time limit that the job got since its submission. None: it has its first one."""
        return changes.changed_limit(self._store, job_id)

    @activity.defn
    def parked_state(self, key: AttemptKey) -> Parked:
        """Whether the job can go on with its parked reservation."""
        return handover.parked_state(self._store, key)

    @activity.defn
    def unpark(self, key: AttemptKey) -> bool:
        """End the parking, so that ranks may start. False: a GPU of the reservation does not work again."""
        try:
            handover.unpark(self._store, key)
        except ReservationConflict:
            return False
        return True

    @activity.defn
    def mark_starting(self, key: AttemptKey) -> None:
        """Write STARTING: hosts are being prepared."""
        try:
            attempts.mark_starting(self._store, key, utc_now())
        except (IllegalTransition, ReservationConflict) as error:
            raise self._no_such_step(key, error) from error

    @activity.defn
    def mark_running(self, key: AttemptKey) -> None:
        """Write RUNNING: every rank has a process. Its GPUs are IN_USE."""
        try:
            attempts.mark_running(self._store, key, utc_now())
        except (IllegalTransition, ReservationConflict) as error:
            raise self._no_such_step(key, error) from error

    def _no_such_step(self, key: AttemptKey, error: PlatformError) -> Exception:
        match older_rows.standing(self._store, key):
            case RowStanding.BEHIND | RowStanding.HOLDS:
                return Unavailable(f"the database is older than attempt {key}: it waits to be restored")
            case RowStanding.PAST:
                return workflow_is_older(key)
            case RowStanding.ENDED:
                return job_not_ours(error)

    @activity.defn
    def note_start(self, start: StartedFrom) -> str | None:
        """Record from which checkpoint the attempt started. Returns a sentence for the timeline, or None."""
        found = checkpoints.Start(start.key, start.host, start.resumed_from, start.note)
        return checkpoints.note_start(self._store, found, utc_now())

    @activity.defn
    def end_attempt(self, request: EndAttempt) -> float | None:
        """Release what is held, leave the queue and write the job's next state, in one transaction.

        Returns in how many seconds a job with ``retry_in_s`` asks for GPUs again: repeated, what is left of them. It is
        a duration, since Temporal's clock may differ from this one; and never more than ``retry_in_s``, since this one
        may have been set meanwhile.
        """
        try:
            self._end(request)
        except WorkflowIsOlder as error:
            raise workflow_is_older(request.key) from error
        except IllegalTransition as error:
            running = JobState.ALLOCATED if request.ran_unmarked else JobState.RUNNING
            if older_rows.catch_up_to_end(self._store, request.key, running, utc_now()):
                self._end(request)
                return self._retry_in_s(request)
            # The job ended without this workflow (an operator terminated and reset it). It may only release what it
            # holds.
            key = request.key
            log.warning("attempt.ended_elsewhere", job=key.job_id, attempt=key.attempt, error=error.message)
            releasing.release_gang(self._store, request.key, now=utc_now(), faulty_gpus=request.faulty_gpus)
        return self._retry_in_s(request)

    def _retry_in_s(self, request: EndAttempt) -> float | None:
        if request.retry_in_s is None:
            return None
        retry_at = jobs.get_job(self._store, request.key.job_id).retry_at
        left_s = request.retry_in_s if retry_at is None else (retry_at - utc_now()).total_seconds()
        return min(max(0.0, left_s), request.retry_in_s)

    def _end(self, request: EndAttempt) -> None:
        end = attempt_end(request)
        attempts.end_attempt(self._store, end.key, end.states, now=utc_now(), actor=end.actor, result=end.result)


def attempt_end(request: EndAttempt) -> EndedAttempt:
    """The end of an attempt as the store writes it: through which states its job goes."""
    progress = request.progress
    states = [JobState.STARTING, JobState.RUNNING] if request.ran_unmarked else []
    states.append(request.state)
    if request.state is JobState.PREEMPTED:
        states.append(JobState.QUEUED)
    return EndedAttempt(
        key=request.key,
        states=states,
        actor=request.actor,
        result=attempts.AttemptResult(
            update=JobUpdate(
                failure=request.failure,
                exit_code=request.exit_code,
                user_retries=progress.user_retries,
                hardware_retries=progress.hardware_retries,
                preemptions=progress.preemptions,
            ),
            faulty_gpus=request.faulty_gpus,
            usage=request.usage,
            retry_in_s=request.retry_in_s,
            stopped_by=request.stopped_by,
            placed=request.placed,
        ),
    )
