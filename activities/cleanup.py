"""The steps of CleanupWorkflow. They look before they act, because the request for the cleanup may be wrong."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel
from temporalio import activity

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.restoring import orphans
from gpu_platform.temporal.job_workflows import CleanupInput, InThread, JobWorkflowsView, WorkflowLife


class Orphan(BaseModel):
    """The hosts on which an attempt holds something although no workflow drives it."""

    hosts: list[str] = []
    driven: str = ""
    """Why it must be left alone. Empty: no workflow drives it."""


class CleanupActivities:
    """The database steps of CleanupWorkflow. ``in_thread`` runs a blocking call in a thread."""

    def __init__(self, store: Store, workflows: JobWorkflowsView, *, in_thread: InThread = asyncio.to_thread) -> None:
        self._store = store
        self._workflows = workflows
        self._in_thread = in_thread

    @activity.defn
    async def find_orphan(self, key: AttemptKey) -> Orphan:
        """Find what the attempt still holds, unless a workflow drives it."""
        driven = await self._driven(key)
        if driven:
            return Orphan(driven=driven)
        held: list[orphans.HeldAttempt] = await self._in_thread(orphans.held_of_job, self._store, key.job_id)
        return Orphan(hosts=[host for one in held if one.key == key for host in one.hosts])

    @activity.defn
    async def end_orphan(self, request: CleanupInput) -> bool:
        """Release the attempt's GPUs and end its job. The hosts have confirmed that its ranks are gone.

        False: nothing was done, because a workflow drives it by now, or another attempt of the job holds GPUs.
        """
        if await self._driven(request.key):
            return False
        failure = Failure(kind=blame(FailureCause.WORKFLOW_LOST), message=request.message)
        return await self._in_thread(
            orphans.end_orphan,
            self._store,
            request.key,
            request.state,
            actor=request.actor,
            failure=failure if request.state is JobState.FAILED else None,
            now=utc_now(),
        )

    async def _driven(self, key: AttemptKey) -> str:
        view = await self._workflows.look(key.job_id)
        row: orphans.JobRow | None = await self._in_thread(orphans.job_row, self._store, key.job_id)
        if row is not None and row.attempt > key.attempt:
            return ""  # the job is at a later attempt: its workflow released this one, or it never will
        if view.life is WorkflowLife.OPEN:
            return f"the workflow of {key.job_id} is open"
        if view.life is WorkflowLife.UNKNOWN and row is not None and not row.state.is_terminal:
            return f"Temporal does not know the workflow of {key.job_id}: it is begun again, not ended"
        return ""
