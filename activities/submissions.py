"""Submissions that no person sends: the job is recorded first, then its workflow is started, as the service does it."""

from __future__ import annotations

import asyncio

from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError

from activities.clock import utc_now
from activities.job_start import JobStarter
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.job import Interrupt, Job, JobInput
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import interrupts, jobs


class Submissions:
    """Starts and cancels recorded jobs. Every method may be repeated, and raises ``RPCError`` while Temporal is
    away."""

    def __init__(self, store: Store, client: Client) -> None:
        self._store, self._client = store, client
        self._starter = JobStarter()

    async def start(self, job: Job) -> None:
        """Start the workflow of a recorded job, unless it was started before."""
        if job.state is JobState.PENDING:
            await self._send(job, None)

    async def cancel(self, job_id: str, request: Interrupt) -> None:
        """Ask the job to end CANCELLED. Raises :class:`NotFound`."""
        job = await asyncio.to_thread(jobs.get_job, self._store, job_id)
        if job.state.is_terminal:
            return
        # First into the database: control signs no stop for a signal that only Temporal knows.
        key = AttemptKey(job_id=job.id, attempt=job.attempt)
        await asyncio.to_thread(
            interrupts.record_interrupt, self._store, key, "cancel", request.actor, request.reason, utc_now()
        )
        await self._send(job, ("cancel", request))

    async def _send(self, job: Job, signal: tuple[str, Interrupt] | None) -> None:
        try:
            await self._starter.start_job(
                self._client, JobInput(job_id=job.id, spec=job.spec, named_watches=True), signal=signal
            )
        except WorkflowAlreadyStartedError:
            return  # it runs; or it has ended, and the reconciler sees to its job
