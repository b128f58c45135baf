"""Tells workflows that jobs for which they wait have ended: firings of schedules."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import structlog
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.errors import Unavailable
from gpu_platform.store import Store
from gpu_platform.store.jobs import watches

log = structlog.get_logger()
JOB_ENDED = "job_ended"
"""The signal."""


class WorkflowWatch:
    """:meth:`tell_after` follows the change feed, so that a workflow hears of it soon. :meth:`tell` finds what that has
    missed: a signal is sent again until the workflow has looked."""

    def __init__(self, store: Store, client: Client) -> None:
        self._store, self._client = store, client

    async def tell(self) -> None:
        """Tell every workflow that waits for a job that has ended. Raises ``RPCError`` and ``Unavailable``."""
        await self._tell(None)

    async def tell_after(self, ended: Collection[str]) -> None:
        """Tell the workflows that wait for one of these jobs."""
        try:
            await self._tell(ended)
        except (RPCError, Unavailable) as error:
            log.warning("workflow_watch.delayed", ended=len(ended), error=str(error))

    async def _tell(self, ended: Collection[str] | None) -> None:
        for workflow_id in await asyncio.to_thread(watches.to_be_told, self._store, ended):
            try:
                await self._client.get_workflow_handle(workflow_id).signal(JOB_ENDED)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise
                await asyncio.to_thread(watches.forget, self._store, workflow_id)
