"""The steps of ScheduledSubmissionWorkflow: submit the job of a firing, look at it, cancel it."""

from __future__ import annotations

import asyncio
from datetime import datetime

from pydantic import BaseModel
from temporalio import activity

from activities.interrupts import ACTOR
from activities.submissions import Submissions
from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import schedule_of_workflow
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import schedules

BY_OVERLAP_POLICY = "cancelled by schedule overlap policy"
"""Temporal's reason when a schedule fires again whose overlap policy is to cancel."""


class Firing(BaseModel):
    """One firing of a schedule."""

    workflow_id: str
    due_at: datetime


class AwaitedJob(BaseModel):
    """A job, and the workflow that waits for its end."""

    job_id: str
    workflow_id: str
    reason: str = ""
    """Why it is to be cancelled."""


class ScheduleActivities:
    """Submits, watches and cancels the jobs of schedules."""

    def __init__(self, store: Store, submissions: Submissions) -> None:
        self._store, self._submissions = store, submissions

    @activity.defn
    async def submit_scheduled(self, firing: Firing) -> str | None:
        """Submit the job of the firing, once. Returns its id. None: no job was submitted; the schedule says why."""
        schedule_id = schedule_of_workflow(firing.workflow_id)
        job = await asyncio.to_thread(
            schedules.record_firing, self._store, schedule_id, firing.workflow_id, firing.due_at, utc_now()
        )
        if job is None:
            return None
        await self._submissions.start(job)
        return job.id

    @activity.defn
    async def look_at_scheduled(self, watched: AwaitedJob) -> JobState | None:
        """The state of the job. While it has not ended, the leader tells the workflow when it has. None: it is not
        known."""
        return await asyncio.to_thread(schedules.look_at_job, self._store, watched.job_id, watched.workflow_id)

    @activity.defn
    async def cancel_scheduled(self, watched: AwaitedJob) -> None:
        """Cancel the job: a later firing replaces it, or somebody cancelled the firing's workflow."""
        request = Interrupt(actor="schedule", reason="the schedule fired again (cancel-other)")
        if not watched.reason.endswith(BY_OVERLAP_POLICY):
            request = Interrupt(actor=ACTOR, reason=f"its firing was {watched.reason}")
        try:
            await self._submissions.cancel(watched.job_id, request)
        except NotFound:
            return  # a database that was lost: its next look says so
