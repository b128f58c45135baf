"""Helpers for workflow code: run a short database step, or wait for a condition."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar, overload

from temporalio import workflow
from temporalio.common import RetryPolicy

T = TypeVar("T")
R = TypeVar("R")

LONGEST_SUMMARY = 180
"""The longest summary in characters. Temporal refuses a step with a summary longer than 200 bytes."""


def cut_summary(text: str) -> str:
    """``text`` as the summary of a step: host names and lists of hosts may be long."""
    return text if len(text) <= LONGEST_SUMMARY else text[: LONGEST_SUMMARY - 1] + "…"


LONGEST_TIMER = timedelta(days=365)
"""Temporal cannot count much longer times in one timer."""


@overload
async def database_step(step: Callable[[Any, T], Awaitable[R]], argument: T, /, *, summary: str) -> R: ...
@overload
async def database_step(step: Callable[[Any, T], R], argument: T, /, *, summary: str) -> R: ...
@overload
async def database_step(step: Callable[[Any], R], /, *, summary: str) -> R: ...
async def database_step(step: Callable[..., Any], /, *arguments: Any, summary: str) -> Any:
    """Run the activity ``step`` and return its result. ``summary`` names it in the Temporal UI.

    Raises the activity's own :class:`ApplicationError` if it fails for good: a local activity has no ``ActivityError``
    around it.
    """
    return await workflow.execute_local_activity_method(
        step,
        args=arguments,
        summary=cut_summary(summary),
        start_to_close_timeout=timedelta(seconds=60),
        retry_policy=RetryPolicy(
            initial_interval=timedelta(milliseconds=50), backoff_coefficient=2, maximum_interval=timedelta(seconds=5)
        ),
        # A local activity that waits between tries longer than this becomes a timer, so that
        # an outage of the database does not pin a workflow task.
        local_retry_threshold=timedelta(seconds=2),
    )


async def despite_cancel(work: asyncio.Task[T], obey: Callable[[str], Awaitable[None]] | None = None) -> T:
    """Wait for ``work``, which Temporal's own cancellation must not tear out of a step.

    ``obey`` does what the cancellation means here, and is given what to say of it. None: it means nothing, because
    the platform needs this workflow. That is said where the Temporal UI shows it.
    """
    while True:
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # Eviction from the worker's cache cancels every task, this one and the work: then it ends here.
            if work.done() or workflow.cancellation_reason() is None:
                raise
            if obey is None:
                workflow.set_current_details("cancelled in Temporal, and goes on: the platform needs it")
                continue
            given = workflow.cancellation_reason()
            await obey("cancelled in Temporal" + (f": {given}" if given else ""))


async def until(condition: Callable[[], bool], limit: timedelta | None) -> bool:
    """Wait until ``condition`` holds. False: the time was up first. ``limit`` None: wait as long as it takes."""
    try:
        await workflow.wait_condition(condition, timeout=limit)
    except builtins.TimeoutError:
        return False
    return True


async def sleep(seconds: float, interrupted: Callable[[], bool] = lambda: False) -> None:
    """Wait for so long, or until ``interrupted``."""
    await sleep_until(workflow.now() + timedelta(seconds=seconds), interrupted)


async def sleep_until(at: datetime, interrupted: Callable[[], bool] = lambda: False) -> None:
    """Wait for a time, by the workflow's clock, or until ``interrupted``."""
    while not interrupted() and (left := at - workflow.now()) > timedelta(0):
        await until(interrupted, min(left, LONGEST_TIMER))
