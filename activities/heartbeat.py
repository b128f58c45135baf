"""Heartbeats while something is under way: a worker that dies in it is replaced within the heartbeat timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import BaseModel
from temporalio import activity

T = TypeVar("T")

HEARTBEAT_S = 1.5


async def heartbeating(work: Awaitable[T], details: Callable[[], BaseModel] | None = None) -> T:
    """The result of ``work``. Cancelling the activity cancels it.

    ``details``: what the Temporal UI shows of the activity while it is pending.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            activity.heartbeat(*([details()] if details else []))
            await asyncio.wait([task], timeout=HEARTBEAT_S)
        return task.result()
    finally:
        task.cancel()
