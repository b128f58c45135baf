"""Undoing an attempt on its hosts: no process of it is left, or the host is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from temporalio import workflow

from activities.launch import LaunchActivities, node_task_queue
from gpu_platform.domain.attempt import Stopped, StopRequest
from workflows import policies
from workflows.attempt import Attempt
from workflows.endings import Ending

Undo = Callable[[Ending], Awaitable[None]]


async def stop_hosts(attempt: Attempt, ending: Ending) -> None:
    await asyncio.gather(*[_stop_host(attempt, host, ending) for host in attempt.running_hosts()])


async def _stop_host(attempt: Attempt, host: str, ending: Ending) -> None:
    """Until the host confirms that no process is left, or the host is declared lost."""

    def stop(grace_s: float, save_first: bool = False) -> workflow.ActivityHandle:
        return workflow.start_activity_method(
            LaunchActivities.stop_ranks,
            StopRequest(key=attempt.key, host=host, grace_s=grace_s, reason=ending.state.value, save_first=save_first),
            task_queue=node_task_queue(host),
            **policies.STOP,
        )

    stopping = stop(ending.grace_s, ending.save_first)
    killed_already = ending.grace_s == 0
    await workflow.wait_condition(
        lambda: stopping.done() or host in attempt.lost or (attempt.stop.kill is not None and not killed_already)
    )
    if not stopping.done() and host not in attempt.lost:
        # A kill cuts the grace short; the two stops agree on the host, where a stop is idempotent.
        hard = stop(0)
        await workflow.wait_condition(lambda: stopping.done() or hard.done() or host in attempt.lost)
        hard.cancel()
        await asyncio.gather(hard, return_exceptions=True)
        _note_usage(attempt, hard)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    _note_usage(attempt, stopping)


def _note_usage(attempt: Attempt, stopping: workflow.ActivityHandle) -> None:
    if not stopping.cancelled() and stopping.exception() is None:
        stopped: Stopped = stopping.result()
        attempt.usage[stopped.host] = stopped.usage
