"""Workflows of which one always runs: a process that needs one starts it, unless it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from temporalio.service import RPCError

from gpu_platform.settings import Settings
from workers.starting import RETRY_S, Waiting


async def keep_starting(start: Callable[[], Awaitable[object]], settings: Settings) -> None:
    """Call ``start`` until Temporal takes it. Temporal's frontend answers before its other services."""
    waiting = Waiting("temporal", address=settings.temporal.address)
    while True:
        try:
            await start()
        except RPCError as error:
            waiting.still(f"{error.status.name}: {error.message}")
        else:
            waiting.over()
            return
        await asyncio.sleep(RETRY_S)
