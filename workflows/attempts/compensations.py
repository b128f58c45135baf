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
from activities.reservation import EndAttempt
from gpu_platform.domain.contracts import node_task_queue
from gpu_platform.domain.jobs.attempt import Stopped, StopRequest
from gpu_platform.domain.jobs.job import JobProgress
from workflows import policies
from workflows.attempts.answers import of_stop
from workflows.attempts.attempt import Attempt
from workflows.attempts.endings import Ending
from workflows.steps import cut_summary, until


async def stop_hosts(attempt: Attempt, ending: Ending) -> None:
    """Stop the attempt's ranks on all its hosts. Returns when each host has confirmed it or is lost."""
    await asyncio.gather(*[_stop_host(attempt, host, ending) for host in attempt.running_hosts()])


async def wait_for_last_stops(stopping: Sequence[asyncio.Task[Any]]) -> None:
    """Wait a moment before the workflow closes: stops that are not delivered by then are lost."""
    if not all(task.done() for task in stopping):
        await until(lambda: all(task.done() for task in stopping), policies.LAST_STOPS)


async def _stop_host(attempt: Attempt, host: str, ending: Ending) -> None:
    while not await _stopped(attempt, host, ending):
        await until(lambda: host in attempt.lost, policies.STOP_AGAIN)


async def _stopped(attempt: Attempt, host: str, ending: Ending) -> bool:
    """True: the host confirmed that no process is left, or it is lost. False: every stop failed for good."""
    if host in attempt.lost:
        # No grace: the job may start elsewhere at any moment.
        _leave(attempt, [_start_stop(attempt, host, ending, grace_s=0)])
        return True
    stops = [_start_stop(attempt, host, ending, grace_s=ending.grace_s, save_first=ending.save_first)]
    await workflow.wait_condition(
        lambda: _any_done(stops) or host in attempt.lost or (attempt.stop.kill is not None and ending.grace_s > 0)
    )
    if _is_left(attempt, host, stops):
        if ending.grace_s > 0:
            stops.append(_start_stop(attempt, host, ending, grace_s=0))
        _leave(attempt, stops)
        return True
    if not _any_done(stops):
        # A kill ends the grace. Both stops may reach the host, where a stop can be repeated.
        stops.insert(0, _start_stop(attempt, host, ending, grace_s=0))
        await workflow.wait_condition(lambda: _any_done(stops) or host in attempt.lost)
        if _is_left(attempt, host, stops):
            _leave(attempt, stops)
            return True
    for task in stops:
        task.cancel()
    await asyncio.gather(*stops, return_exceptions=True)
    confirmed = [_note_usage(attempt, host, task) for task in stops]
    return any(confirmed) or host in attempt.lost


def end_of(attempt: Attempt, ending: Ending, progress: JobProgress) -> EndAttempt:
    """What the database writes about the end of the attempt."""
    return EndAttempt(
        key=attempt.key,
        state=ending.state,
        ran_unmarked=ending.ended_before_running,
        actor=ending.actor,
        failure=ending.failure,
        exit_code=ending.exit_code,
        progress=progress,
        usage=attempt.ranks_usage(),
        faulty_gpus=attempt.faulty_gpus(),
        retry_in_s=ending.retry_in_s,
        stopped_by=ending.stopped_by,
        placed=attempt.placement is not None,
    )


def _start_stop(
    attempt: Attempt, host: str, ending: Ending, *, grace_s: float, save_first: bool = False
) -> workflow.ActivityHandle:
    return workflow.start_activity_method(
        LaunchActivities.stop_ranks,
        StopRequest(key=attempt.key, host=host, grace_s=grace_s, reason=ending.state.value, save_first=save_first),
        task_queue=node_task_queue(host),
        summary=cut_summary(f"Stop of all ranks on {host}"),
        **policies.STOP,
    )


def _any_done(stops: Sequence[workflow.ActivityHandle]) -> bool:
    return any(task.done() for task in stops)


def _is_left(attempt: Attempt, host: str, stops: Sequence[workflow.ActivityHandle]) -> bool:
    """True when the host is lost before any stop ended: nobody waits for the stops any longer."""
    return host in attempt.lost and not _any_done(stops)


def _leave(attempt: Attempt, stops: Sequence[workflow.ActivityHandle]) -> None:
    for task in stops:
        # Otherwise asyncio logs an exception that nobody read.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
    attempt.stopping += stops


def _note_usage(attempt: Attempt, host: str, stopping: workflow.ActivityHandle[Stopped]) -> bool:
    if stopping.cancelled() or stopping.exception() is not None:
        return False
    attempt.usage[host] = of_stop(host, attempt.ranks_on(host), stopping.result())
    return True
