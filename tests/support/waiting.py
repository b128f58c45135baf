"""Tests wait for what they need, with a deadline. None sleeps in the hope that it has come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

DEADLINE_S = 40.0
SHORTEST_PAUSE_S, LATER_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.03, 0.1


async def eventually(
    condition: Callable[[], Any | Awaitable[Any]], what: str = "", within_s: float = DEADLINE_S
) -> Any:
    """The condition's first true value; fails with ``what`` after the deadline. A condition that takes long, or does
    not come soon, is looked at less often, so that what it waits for has the processor."""
    start = time.monotonic()
    deadline = start + within_s
    while True:
        began = time.monotonic()
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        now = time.monotonic()
        assert now < deadline, f"not within {within_s} s: {what or condition}"
        later = min((now - start) / 20, LATER_PAUSE_S)
        await asyncio.sleep(min(max(SHORTEST_PAUSE_S, later, 5 * (now - began)), LONGEST_PAUSE_S))
