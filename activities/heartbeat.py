"""Heartbeats of activities: if a worker dies in one, another worker takes over within the heartbeat timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import BaseModel
from temporalio import activity

T = TypeVar("T")

HEARTBEAT_S = 1.5
DETAILS_EVERY = 3
"""New details with every third heartbeat: Temporal's client sends no more than one in about five seconds."""


async def heartbeating(
    work: Awaitable[T], details: Callable[[], BaseModel] | None = None, *, every_s: float = HEARTBEAT_S
) -> T:
    """Wait for ``work`` and send heartbeats meanwhile. Returns its result. Cancelling the activity cancels ``work``.

    ``details``: what the Temporal UI shows of the activity while it is pending. ``every_s``: a quarter of the
    activity's heartbeat timeout, or less.
    """
    task = asyncio.ensure_future(work)
    shown: list[BaseModel] = []
    beats = 0
    try:
        while not task.done():
            if details and beats % DETAILS_EVERY == 0:
                shown = [details()]
            beats += 1
            activity.heartbeat(*shown)
            await asyncio.wait([task], timeout=every_s)
        return task.result()
    finally:
        task.cancel()
