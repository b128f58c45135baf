"""Wakes the workflows of jobs that wait for other jobs, when these have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog
from temporalio.service import RPCError

from gpu_platform.clock import utc_now
from gpu_platform.domain.errors import Unavailable
from gpu_platform.store import Store
from gpu_platform.store.jobs import dependencies
from gpu_platform.temporal.job_workflows import JobWorkflowsView

log = structlog.get_logger()


class DependencyWatch:
    """Signals jobs to look again whether they may go on.

    :meth:`wake_after` follows the change feed, so that a job starts soon. :meth:`wake` finds what that has missed: a
    signal is lost with the leader, and is sent again until the workflow has looked.
    """

    def __init__(self, store: Store, workflows: JobWorkflowsView) -> None:
        self._store, self._workflows = store, workflows

    async def wake(self) -> None:
        """Wake every job that waits no longer. Raises ``RPCError`` without Temporal, ``Unavailable`` without the
        database."""
        await self._wake(None)

    async def wake_after(self, ended: Collection[str]) -> None:
        """Wake the jobs that waited for one of these."""
        try:
            await self._wake(ended)
        except (RPCError, Unavailable) as error:
            log.warning("dependency.delayed", ended=len(ended), error=str(error))

    async def _wake(self, ended: Collection[str] | None) -> None:
        for job_id in await asyncio.to_thread(dependencies.to_be_woken, self._store, utc_now(), ended):
            log.info("dependency.ended", job=job_id)
            await self._workflows.ask_again(job_id)
