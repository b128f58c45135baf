"""The leader's first duty: jobs whose workflows are open, but which its database does not know, are restored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from pydantic import BaseModel
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError

from activities.clock import utc_now
from activities.metrics import JOBS_RESTORED
from gpu_platform.domain.errors import ReservationConflict
from gpu_platform.domain.job import JobInput, JobProgress
from gpu_platform.domain.placement import Placement
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, restoring
from gpu_platform.store.restoring import SPARED_FOR, RememberedJob

log = structlog.get_logger()

LAST_TRY_S = SPARED_FOR.total_seconds() / 2
"""What could not be restored where it runs by then is restored as waiting: its ranks are stopped, and it is retried."""
QUERY_TIMEOUT = timedelta(seconds=10)
_OPEN_JOBS = "WorkflowType = 'JobWorkflow' AND ExecutionStatus = 'Running'"


class _Status(BaseModel):
    """Of the answer of JobWorkflow's query ``status`` what is needed here."""

    state: JobState
    placement: Placement | None
    progress: JobProgress


class Restorer:
    """For one leader's term. ``clock``: seconds that only grow."""

    def __init__(self, store: Store, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._client = client
        self._clock = clock
        self._began = clock()
        self._told = False

    @property
    def over(self) -> bool:
        return self._clock() - self._began > SPARED_FOR.total_seconds()

    async def look(self) -> None:
        """Repeat it until :attr:`over`: hosts register one after the other. Raises ``RPCError`` without Temporal."""
        started = {one.id: one.start_time async for one in self._client.list_workflows(_OPEN_JOBS)}
        unknown = await asyncio.to_thread(restoring.unknown_jobs, self._store, list(started))
        for job_id in unknown:
            try:
                found = await self._ask(job_id, started[job_id])
            except (RPCError, WorkflowQueryFailedError) as error:  # it closed, or no control worker runs yet
                log.warning("job.restore_delayed", job=job_id, error=str(error))
                continue
            # PENDING: a submission that was just withdrawn. Admission gets past it only with a row.
            if found.state is not JobState.PENDING and not found.state.is_terminal:
                await self._restore(found)

    async def _restore(self, found: RememberedJob) -> None:
        if not self._told:
            log.error(
                "store.older_than_temporal",
                message="the database does not know jobs that Temporal runs: it was lost or restored to an older "
                "point. They are restored; what had ended since, idempotency keys and usage are gone",
            )
            self._told = True
        try:
            restored = await asyncio.to_thread(restoring.restore_job, self._store, found, utc_now())
        except ReservationConflict as conflict:
            log.warning("job.restore_delayed", job=found.job_id, error=conflict.message)
            if self._clock() - self._began < LAST_TRY_S:
                return
            waiting = RememberedJob(
                found.job_id, found.spec, JobState.QUEUED, found.progress, None, created_at=found.created_at
            )
            restored = await asyncio.to_thread(restoring.restore_job, self._store, waiting, utc_now())
        if restored:
            JOBS_RESTORED.inc()
            log.warning("job.restored", job=found.job_id, state=found.state.value, attempt=found.progress.attempt)

    async def _ask(self, job_id: str, created_at: datetime) -> RememberedJob:
        handle = self._client.get_workflow_handle(job_id)
        status = await handle.query("status", result_type=_Status, rpc_timeout=QUERY_TIMEOUT)
        given = await self._input(job_id)
        placement = status.placement if status.state.holds_gpus else None
        return RememberedJob(job_id, given.spec, status.state, status.progress, placement, created_at)

    async def _input(self, job_id: str) -> JobInput:
        """The workflow's argument, from the first event of its history."""
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=job_id),
            maximum_page_size=1,
        )
        answer = await self._client.workflow_service.get_workflow_execution_history(request, timeout=QUERY_TIMEOUT)
        started = answer.history.events[0].workflow_execution_started_event_attributes
        [given] = await self._client.data_converter.decode(list(started.input.payloads), [JobInput])
        return given
