"""Waiting for a condition, no longer than a time."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow


async def until(condition: Callable[[], bool], limit: timedelta | None) -> bool:
    """False when the time ran out first. With no limit: as long as it takes."""
    try:
        await workflow.wait_condition(condition, timeout=limit)
    except builtins.TimeoutError:
        return False
    return True
