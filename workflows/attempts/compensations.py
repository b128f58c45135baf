"""Undoes an attempt on its hosts. Afterwards no process of it is left, or the host is lost.

A lost host gets the stop, too, because Temporal may still reach it. Nobody waits for that: the job goes on elsewhere.
Ranks that such a stop does not reach are killed when the host reports again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from temporalio import workflow

from activities.node.launch import LaunchActivities
from gpu_platform.domain.contracts import node_task_queue
from gpu_platform.domain.jobs.attempt import Stopped, StopRequest
from workflows import policies
from workflows.attempts.attempt import Attempt
from workflows.attempts.endings import Ending
from workflows.steps import cut_summary, until

STOP_LOST_HOSTS = "stop-lost-hosts"
STOP_UNTIL_CONFIRMED = "stop-until-confirmed"


async def stop_hosts(attempt: Attempt, ending: Ending) -> None:
    """Stop the attempt's ranks on all its hosts. Returns when each host has confirmed it or is lost."""
    await asyncio.gather(*[_stop_host(attempt, host, ending) for host in attempt.running_hosts()])


async def wait_for_last_stops(stopping: Sequence[asyncio.Task[Any]]) -> None:
    """Wait a moment before the workflow closes: stops that are not delivered by then are lost."""
    if not all(task.done() for task in stopping):
        await until(lambda: all(task.done() for task in stopping), policies.LAST_STOPS)


async def _stop_host(attempt: Attempt, host: str, ending: Ending) -> None:
    while not await _stopped(attempt, host, ending) and workflow.patched(STOP_UNTIL_CONFIRMED):
        await until(lambda: host in attempt.lost, policies.STOP_AGAIN)


async def _stopped(attempt: Attempt, host: str, ending: Ending) -> bool:
    """True: the host confirmed that no process is left, or it is lost. False: every stop failed for good."""

    def stop(grace_s: float, save_first: bool = False) -> workflow.ActivityHandle:
        return workflow.start_activity_method(
            LaunchActivities.stop_ranks,
            StopRequest(key=attempt.key, host=host, grace_s=grace_s, reason=ending.state.value, save_first=save_first),
            task_queue=node_task_queue(host),
            summary=cut_summary(f"Stop of all ranks on {host}"),
            **policies.STOP,
        )

    if host in attempt.lost and workflow.patched(STOP_LOST_HOSTS):
        _leave(attempt, [stop(0)])  # no grace: the job may start elsewhere at any moment
        return True
    stopping = stop(ending.grace_s, ending.save_first)
    killed_already = ending.grace_s == 0
    await workflow.wait_condition(
        lambda: stopping.done() or host in attempt.lost or (attempt.stop.kill is not None and not killed_already)
    )
    if host in attempt.lost and not stopping.done() and workflow.patched(STOP_LOST_HOSTS):
        _leave(attempt, [stopping] if killed_already else [stopping, stop(0)])
        return True
    hard = None
    if not stopping.done() and host not in attempt.lost:
        # A kill ends the grace. Both stops may reach the host, where a stop can be repeated.
        hard = stop(0)
        await workflow.wait_condition(lambda: stopping.done() or hard.done() or host in attempt.lost)
        if host in attempt.lost and not (stopping.done() or hard.done()) and workflow.patched(STOP_LOST_HOSTS):
            _leave(attempt, [stopping, hard])
            return True
    stops = [task for task in (hard, stopping) if task is not None]
    for task in stops:
        task.cancel()
    await asyncio.gather(*stops, return_exceptions=True)
    confirmed = [_note_usage(attempt, task) for task in stops]
    return any(confirmed) or host in attempt.lost


def _leave(attempt: Attempt, stops: Sequence[workflow.ActivityHandle]) -> None:
    for task in stops:
        task.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # otherwise asyncio logs an exception that nobody read
    attempt.stopping += stops


def _note_usage(attempt: Attempt, stopping: workflow.ActivityHandle) -> bool:
    if stopping.cancelled() or stopping.exception() is not None:
        return False
    stopped: Stopped = stopping.result()
    attempt.usage[stopped.host] = stopped.usage
    return True
