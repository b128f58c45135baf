"""Delivers the result of a long activity itself.

Temporal's SDK gives up after about ten seconds without an answer, and drops the result. The activity has a heartbeat
timeout of a minute, so Temporal would repeat it that much later, and GPUs would be held meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

import structlog
from temporalio import activity
from temporalio.service import RPCError, RPCStatusCode

log = structlog.get_logger()

PAUSE_S = 0.5
_REFUSED = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)

T = TypeVar("T")


async def delivered(result: T) -> T:
    """Complete this activity with ``result``: try until Temporal answers. Leaves the activity by an exception that
    the SDK knows: it has nothing more to say to Temporal.

    Returns ``result`` if Temporal refuses the call: the SDK completes the activity, and reports what is wrong.
    """
    handle = activity.client().get_async_activity_handle(task_token=activity.info().task_token)
    warned = False
    while True:
        try:
            await handle.complete(result)
        except RPCError as error:
            if error.status in _REFUSED:
                return result
            if error.status is not RPCStatusCode.NOT_FOUND:  # not found: it has timed out, or an answer was lost
                if not warned:
                    log.warning("result.not_delivered", activity=activity.info().activity_id, error=str(error))
                    warned = True
                await asyncio.sleep(PAUSE_S)
                continue
        activity.raise_complete_async()
