"""ScheduledSubmissionWorkflow: one firing of a schedule. It submits an ordinary job and waits for its end.

Temporal's overlap policy looks at this workflow, so it lives as long as its job. Cancelling it cancels the job.
Terminating it leaves the job alone: that goes on as any other, and the schedule takes it for ended.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import SearchAttributeKey

from workflows.steps import despite_cancel, until

with workflow.unsafe.imports_passed_through():
    from activities.schedules import AwaitedJob, Firing, ScheduleActivities
    from gpu_platform.domain.contracts import SCHEDULED_SUBMISSION_WORKFLOW
    from gpu_platform.domain.states import JobState
    from workflows.steps import database_step

DUE_AT = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")
LOOK_AGAIN, LOOK_AGAIN_LONGEST = timedelta(minutes=5), timedelta(hours=6)
"""The leader says when the job has ended. A database that was restored may not know any more that somebody waits, so
the workflow looks by itself, too: each further time after twice as long."""
UNKNOWN_LOOKS = 3
"""A job that the database does not know in so many looks is not waited for any more."""


@workflow.defn(name=SCHEDULED_SUBMISSION_WORKFLOW)
class ScheduledSubmissionWorkflow:
    """Submits the job of one firing and ends with it."""

    def __init__(self) -> None:
        self._told = False
        self._cancelled = False
        self._why_cancelled = ""

    @workflow.signal
    def job_ended(self) -> None:
        """Signal: a job for which this workflow waits has ended."""
        self._told = True

    @workflow.run
    async def run(self) -> str | None:
        """Returns the id of the job. None: none was submitted."""
        # The work is shielded: a job whose submission was cut in the middle would be left alone.
        work = asyncio.create_task(self._work())
        return await despite_cancel(work, self._cancel_in_temporal)

    async def _cancel_in_temporal(self, reason: str) -> None:
        """The job of the firing is cancelled. Temporal does the same for the overlap policy ``cancel-other``."""
        self._cancelled, self._why_cancelled = True, reason

    async def _work(self) -> str | None:
        info = workflow.info()
        due_at = info.typed_search_attributes.get(DUE_AT) or info.start_time
        firing = Firing(workflow_id=info.workflow_id, due_at=due_at)
        job_id = await database_step(ScheduleActivities.submit_scheduled, firing, summary="Submit the job")
        if job_id is not None:
            workflow.set_current_details(f"job {job_id}")
            await self._ended(AwaitedJob(job_id=job_id, workflow_id=info.workflow_id))
        return job_id

    async def _ended(self, job: AwaitedJob) -> None:
        wait, unknown, cancels = LOOK_AGAIN, 0, False
        while unknown < UNKNOWN_LOOKS:
            if self._cancelled and not cancels:
                cancelled = job.model_copy(update={"reason": self._why_cancelled})
                await database_step(ScheduleActivities.cancel_scheduled, cancelled, summary="Cancel the job")
                cancels = True
            self._told = False
            state: JobState | None = await database_step(
                ScheduleActivities.look_at_scheduled, job, summary="Has the job ended?"
            )
            if state is not None and state.is_terminal:
                return
            unknown = unknown + 1 if state is None else 0
            if await until(lambda stops=cancels: self._told or (self._cancelled and not stops), wait):
                continue
            wait = min(2 * wait, LOOK_AGAIN_LONGEST)
