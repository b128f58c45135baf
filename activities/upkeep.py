"""The leader's upkeep: what no single workflow can see.

Hosts whose lease ended, workflows that closed without giving back, jobs that were accepted but not
started, jobs that wait with no queue row. Every duty is safe to repeat: a new leader starts them all over.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import structlog
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.clock import utc_now
from activities.leases import LeaseWatch
from gpu_platform.age_clock import AgeClock
from gpu_platform.domain.attempt import AttemptKey, HostLost
from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.job import JobInput
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, hosts, jobs, queue, retention

log = structlog.get_logger()

CONTROL_TASK_QUEUE = "control"
LEASE_CHECK_S = 1.0
SWEEP_S = 5.0
PRUNE_S = 600.0
START_GRACE = timedelta(seconds=10)
"""The service starts a workflow within this of accepting the job, or died in between."""
ROW_GRACE = timedelta(seconds=6)
"""A job that waits has its queue row within this, or lost it."""
PARALLEL = 16
TASK_TIMEOUT = timedelta(seconds=5)
"""A control worker that dies in the middle of a task holds the job up for so long; Temporal's own default is 10 s."""


class Upkeep:
    def __init__(self, store: Store, client: Client, lease_ttl_s: float, retention_days: float | None = None) -> None:
        self._store = store
        self._client = client
        self._retention = None if retention_days is None else timedelta(days=retention_days)
        self._leases = LeaseWatch(lease_ttl_s)
        self._age_clock = AgeClock()

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        next_sweep, next_prune = 0.0, loop.time() + PRUNE_S
        while True:
            try:
                await self._expire_leases()
                if loop.time() >= next_sweep:
                    next_sweep = loop.time() + SWEEP_S
                    await self._tell_lost_hosts()
                    await self._start_accepted()
                    await self._ask_again()
                    await self._clean_up_closed()
                if loop.time() >= next_prune:
                    next_prune = loop.time() + (SWEEP_S if await self._prune() else PRUNE_S)
            except (Unavailable, RPCError) as error:
                log.warning("upkeep.delayed", error=str(error))
            await asyncio.sleep(LEASE_CHECK_S)

    async def _prune(self) -> bool:
        """Forget a little; is there more?"""
        if self._retention is None:
            return False
        now = datetime.fromtimestamp(self._age_clock(), UTC)
        gone = await asyncio.to_thread(retention.prune, self._store, now - self._retention)
        if gone:
            log.info("upkeep.pruned", **gone)
        return bool(gone)

    async def _expire_leases(self) -> None:
        silent = self._leases.silent(await asyncio.to_thread(hosts.read_leases, self._store))
        if not silent:
            return
        for lost in await asyncio.to_thread(hosts.expire_leases, self._store, silent, utc_now()):
            log.warning("host.lost", host=lost.name, attempts=[str(key) for key in lost.jobs])
            await self._tell(lost)

    async def _tell_lost_hosts(self) -> None:
        """Again, for a leader that died between declaring a host lost and telling its jobs."""
        for lost in await asyncio.to_thread(hosts.lost_hosts_with_attempts, self._store):
            await self._tell(lost)

    async def _tell(self, lost: hosts.LostHost) -> None:
        for key in lost.jobs:
            signal = HostLost(attempt=key.attempt, host=lost.name, reason="its lease ended")
            for workflow_id in (key.job_id, cleanup_id(key)):
                await self._signal(workflow_id, "host_lost", signal)

    async def _start_accepted(self) -> None:
        for job_id in await asyncio.to_thread(jobs.pending_without_start, self._store, utc_now() - START_GRACE):
            job = await asyncio.to_thread(jobs.get_job, self._store, job_id)
            log.info("job.started_late", job=job_id)
            try:
                await self._client.start_workflow(
                    "JobWorkflow",
                    JobInput(job_id=job_id, spec=job.spec),
                    id=job_id,
                    task_queue=CONTROL_TASK_QUEUE,
                    id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                    task_timeout=TASK_TIMEOUT,
                )
            except WorkflowAlreadyStartedError:
                continue

    async def _ask_again(self) -> None:
        """Jobs outside the line for so long: whoever was to write their queue row died before it could."""
        for job_id in await asyncio.to_thread(queue.queued_without_row, self._store, utc_now() - ROW_GRACE):
            log.info("job.place_again", job=job_id)
            await self._signal(job_id, "place_again", None)

    async def _clean_up_closed(self) -> None:
        """Jobs that are not terminal although their workflow is closed (terminated, timed out, deleted)."""
        job_ids = await asyncio.to_thread(jobs.non_terminal_jobs, self._store)
        limit = asyncio.Semaphore(PARALLEL)

        async def check(job_id: str) -> None:
            async with limit:
                await self._clean_up_if_closed(job_id)

        await asyncio.gather(*[check(job_id) for job_id in self._due(job_ids)])

    def _due(self, job_ids: list[str]) -> list[str]:
        """Every job is looked at once a minute; a sweep takes its share, so that a long queue stays cheap."""
        sweeps = max(1, int(60 / SWEEP_S))
        turn = int(utc_now().timestamp() / SWEEP_S) % sweeps
        if len(job_ids) <= PARALLEL:
            return job_ids
        return [job_id for position, job_id in enumerate(sorted(job_ids)) if position % sweeps == turn]

    async def _clean_up_if_closed(self, job_id: str) -> None:
        try:
            described = await self._client.get_workflow_handle(job_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            status = "not known to Temporal"
        else:
            if described.status is WorkflowExecutionStatus.RUNNING or described.close_time is None:
                return
            # An orderly end writes the terminal state before the workflow closes.
            status = described.status.name.lower() if described.status else "closed"
        job = await asyncio.to_thread(jobs.get_job, self._store, job_id)
        if job.state.is_terminal or job.state is JobState.PENDING:
            return
        key = AttemptKey(job_id=job_id, attempt=job.attempt)
        held = job.placement.hosts if job.placement and job.state.holds_gpus else []
        log.warning("job.orphaned", job=job_id, workflow=status, hosts=held)
        try:
            await self._client.start_workflow(
                "CleanupWorkflow",
                {"key": key.model_dump(), "hosts": held, "message": f"its workflow was {status}"},
                id=cleanup_id(key),
                task_queue=CONTROL_TASK_QUEUE,
            )
        except WorkflowAlreadyStartedError:
            return

    async def _signal(self, workflow_id: str, name: str, argument: HostLost | None) -> None:
        handle = self._client.get_workflow_handle(workflow_id)
        try:
            if argument is None:
                await handle.signal(name)
            else:
                await handle.signal(name, argument)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise


def cleanup_id(key: AttemptKey) -> str:
    return f"cleanup-{key.job_id}-{key.attempt}"
