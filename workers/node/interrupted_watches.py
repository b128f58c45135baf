"""Tells Temporal that the watches of an earlier node worker of this host have ended, so that it repeats them at once.

Temporal would notice by itself, but only after their heartbeat timeout. That is long, because each heartbeat of a watch
costs Temporal a write, and thousands of jobs are watched at once.
"""

from __future__ import annotations

import asyncio

import structlog
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.hosts.agent import HostAgent

log = structlog.get_logger()


async def repeat_watches(client: Client, agent: HostAgent) -> None:
    """Let Temporal repeat the watches that this host was given before the start of this process."""
    # Elements of an array have one watch together.
    watches = {token: key for key in agent.attempts() if (token := agent.watch_token(key)) is not None}
    await asyncio.gather(*[_end(client, key, token) for token, key in watches.items()])


async def _end(client: Client, key: AttemptKey, token: bytes) -> None:
    try:
        await client.get_async_activity_handle(task_token=token).fail(
            ApplicationError("the node worker that watched has ended", type="NodeWorkerEnded")
        )
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:  # else Temporal knows that it ended
            log.warning("watch.not_repeated", job=key.job_id, attempt=key.attempt, error=str(error))
