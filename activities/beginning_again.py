"""The first step of a job's workflow that takes over from one that Temporal lost."""

from __future__ import annotations

from pydantic import BaseModel
from temporalio import activity

from activities.clock import utc_now
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.job import Failure, JobProgress
from gpu_platform.domain.placing.placement import Placement
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.restoring import orphans


class TakenOverJob(BaseModel):
    """The job's state."""

    state: JobState
    progress: JobProgress
    placement: Placement | None = None
    """The placement of ``progress.attempt``, whose ranks may run."""
    failure: Failure | None = None
    """The failure of a job that is FAILED."""
    closed_attempt: int = 0
    """This attempt and those before it can never reserve again."""


class TakeoverActivities:
    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn
    def begin_again(self, job_id: str) -> TakenOverJob:
        try:
            job, closed = orphans.begin_again(self._store, job_id, utc_now())
        except NotFound:  # withdrawn: nobody was told that it was accepted
            return TakenOverJob(state=JobState.CANCELLED, progress=JobProgress())
        return TakenOverJob(
            state=job.state,
            progress=JobProgress(
                attempt=job.attempt,
                user_retries=job.user_retries,
                hardware_retries=job.hardware_retries,
                preemptions=job.preemptions,
            ),
            placement=job.placement if job.state.holds_gpus else None,
            failure=job.failure if job.state is JobState.FAILED else None,
            closed_attempt=closed,
        )
