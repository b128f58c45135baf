"""The first step of a workflow that takes over a job whose workflow Temporal lost."""

from __future__ import annotations

from pydantic import BaseModel
from temporalio import activity

from gpu_platform.clock import utc_now
from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.errors import NotFound, Unavailable
from gpu_platform.domain.jobs.job import Failure, JobProgress
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.restoring import orphans


class TakenOverJob(BaseModel):
    """How far a job got whose workflow was lost."""

    state: JobState
    progress: JobProgress
    placement: Placement | None = None
    """The placement of ``progress.attempt``. Its ranks may still run."""
    failure: Failure | None = None
    """The failure of the job, if it is FAILED."""
    closed_attempt: int = 0
    """The job's last attempt so far. It is over, unless it is that of ``placement``."""
    retry_in_s: float | None = None
    """The job asks for GPUs only after so many seconds: it waits after a failure."""


class TakeoverActivities:
    """The step with which a new workflow takes over the job of a lost one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn
    def take_over(self, job_id: str) -> TakenOverJob:
        """Take the job out of the queue for the lost workflow, and read how far it got.

        A job that was withdrawn counts as CANCELLED. Raises :class:`Unavailable`, so that it is tried again, if the
        database lost the job: the leader restores it.
        """
        now = utc_now()
        try:
            job, last = orphans.begin_again(self._store, job_id, now)
        except NotFound as error:
            # Withdrawn before its user got an answer; an element is withdrawn with its array.
            if any(jobs.was_withdrawn(self._store, one) for one in {job_id, array_of(job_id) or job_id}):
                return TakenOverJob(state=JobState.CANCELLED, progress=JobProgress())
            message = f"the database does not know job {job_id}, and nobody withdrew it: it waits to be restored"
            raise Unavailable(message) from error
        return TakenOverJob(
            state=job.state,
            progress=JobProgress.of(job),
            placement=job.placement if job.state.holds_gpus else None,
            failure=job.failure if job.state is JobState.FAILED else None,
            closed_attempt=last,
            retry_in_s=None if last == 0 or job.retry_at is None else (job.retry_at - now).total_seconds(),
        )
