"""Heartbeats while something is under way: a worker that dies in it is replaced within the heartbeat timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from temporalio import activity

T = TypeVar("T")

HEARTBEAT_S = 1.5


async def heartbeating(work: Awaitable[T]) -> T:
    """The result of ``work``. Cancelling the activity cancels it."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            activity.heartbeat()
            await asyncio.wait([task], timeout=HEARTBEAT_S)
        return task.result()
    finally:
        task.cancel()
