"""Submissions that no person sends: first the job or the array is recorded, then its workflow is
started, as the service does it."""

from __future__ import annotations

import asyncio

from temporalio.client import Client
from temporalio.exceptions import WorkflowAlreadyStartedError

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.array_steps import ArrayInput
from gpu_platform.domain.jobs.job import Interrupt, Job, JobInput
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, interrupts, jobs
from gpu_platform.temporal.job_start import JobStarter


class Submissions:
    """Starts and cancels recorded jobs and arrays. Every method may be repeated, and raises ``RPCError`` while
    Temporal is away."""

    def __init__(self, store: Store, client: Client) -> None:
        self._store, self._client = store, client
        self._starter = JobStarter()

    async def start(self, job: Job) -> None:
        """Start the workflow of a recorded job, unless it was started before."""
        if job.state is JobState.PENDING:
            await self._send(job, None)

    async def start_array(self, array: Array) -> None:
        """Start the workflow of a recorded array, unless it was started before."""
        if array.state is ArrayState.PENDING:
            await self._send_array(array, None)

    async def cancel_array(self, array_id: str, request: Interrupt) -> None:
        """Ask the array to end CANCELLED. Raises :class:`NotFound`."""
        array = await asyncio.to_thread(arrays.get_array, self._store, array_id)
        if array.state.is_terminal:
            return
        await self._record(AttemptKey(job_id=array_id, attempt=0), request)
        await self._send_array(array, ("cancel", request))

    async def cancel(self, job_id: str, request: Interrupt) -> None:
        """Ask the job to end CANCELLED. Raises :class:`NotFound`."""
        job = await asyncio.to_thread(jobs.get_job, self._store, job_id)
        if job.state.is_terminal:
            return
        await self._record(AttemptKey(job_id=job.id, attempt=job.attempt), request)
        await self._send(job, ("cancel", request))

    async def _record(self, key: AttemptKey, request: Interrupt) -> None:
        """First into the database: control signs no stop for a signal that only Temporal knows."""
        await asyncio.to_thread(
            interrupts.record_interrupt, self._store, key, "cancel", request.actor, request.reason, utc_now()
        )

    async def _send_array(self, array: Array, signal: tuple[str, Interrupt] | None) -> None:
        whole = await asyncio.to_thread(arrays.read_whole, self._store, array.id)
        given = ArrayInput.of(array, whole.array, takes_over=array.state is not ArrayState.PENDING)
        try:
            await self._starter.start_array(self._client, given, signal=signal)
        except WorkflowAlreadyStartedError:
            return  # it runs; or it has ended, and the leader sees to its array

    async def _send(self, job: Job, signal: tuple[str, Interrupt] | None) -> None:
        try:
            await self._starter.start_job(self._client, JobInput(job_id=job.id, spec=job.spec), signal=signal)
        except WorkflowAlreadyStartedError:
            return  # it runs; or it has ended, and the reconciler sees to its job
