"""Starts a gang on its hosts: each step runs on all of them at the same time, and fails if it fails on one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, TimeoutError, TimeoutType, is_cancelled_exception

from activities.node.launch import LaunchActivities
from gpu_platform.domain.contracts import node_task_queue
from gpu_platform.domain.jobs.attempt import HostPlan, Launched, LaunchRequest, Prepared
from workflows import policies
from workflows.attempts.answers import UnreadableAnswer, of_launch, of_prepare, readable
from workflows.attempts.attempt import INTERRUPTED, Attempt, Interrupted
from workflows.attempts.failures import HostStepFailed
from workflows.steps import cut_summary

T = TypeVar("T")


async def prepare_hosts(attempt: Attempt, plans: list[HostPlan]) -> list[Prepared] | Interrupted:
    """Prepare every host of the gang: one answer per plan. This is the start barrier: no rank starts before all
    hosts are ready."""

    def start(plan: HostPlan) -> workflow.ActivityHandle[Prepared]:
        return workflow.start_activity_method(
            LaunchActivities.prepare_host,
            plan,
            task_queue=node_task_queue(plan.host),
            summary=cut_summary(f"Host set-up on {plan.host}: GPUs, directories, program"),
            **policies.host_step(plan),
        )

    return await _on_all(attempt, plans, start, of_prepare)


def with_gang(prepared: list[Prepared]) -> Prepared:
    """Where the ranks meet: the answer of rank 0's host. It names all hosts, if each gives gangs their own network."""
    isolated = all(host.isolates_gangs for host in prepared)
    return prepared[0].model_copy(update={"gang": [host.address for host in prepared] if isolated else []})


async def launch_hosts(
    attempt: Attempt, plans: list[HostPlan], rendezvous: Prepared | None
) -> list[Launched] | Interrupted:
    """Start every rank: one answer per plan. ``rendezvous``: where the ranks of several hosts meet."""

    def start(plan: HostPlan) -> workflow.ActivityHandle[Launched]:
        return workflow.start_activity_method(
            LaunchActivities.launch_ranks,
            LaunchRequest(plan=plan, rendezvous=rendezvous),
            task_queue=node_task_queue(plan.host),
            summary=cut_summary(f"Launch on {plan.host}: cgroup set-up, ranks"),
            **policies.host_step(plan),
        )

    return await _on_all(attempt, plans, start, of_launch)


async def _on_all(
    attempt: Attempt,
    plans: list[HostPlan],
    start: Callable[[HostPlan], workflow.ActivityHandle[T]],
    believed: Callable[[HostPlan, T], T],
) -> list[T] | Interrupted:
    """The results of a step on all hosts, as far as they are ``believed``. After an interruption the compensation
    closes the attempt on each host.

    Raises :class:`HostStepFailed` if the step failed for good on a host.
    """
    everything = asyncio.gather(*[on_host(plan.host, partial(start, plan), start(plan)) for plan in plans])
    await workflow.wait_condition(lambda: everything.done() or attempt.interrupted())
    if attempt.interrupted():
        everything.cancel()
        await asyncio.gather(everything, return_exceptions=True)
        return INTERRUPTED
    return [believed(plan, answer) for plan, answer in zip(plans, everything.result(), strict=True)]


async def on_host(host: str, start: Callable[[], workflow.ActivityHandle[T]], asked: workflow.ActivityHandle[T]) -> T:
    """The result of a step on one host, which was ``asked``. If no node worker took it in time, ``start`` asks again.

    The time also runs while Temporal or everything is down, and may end before the node worker is back. Raises
    :class:`HostStepFailed` if the step failed for good.
    """
    try:
        try:
            return readable(host, await asked)
        except ActivityError as error:
            if not _was_not_taken(error):
                raise
        return readable(host, await start())
    except (ActivityError, UnreadableAnswer) as error:
        if is_cancelled_exception(error):
            raise
        raise HostStepFailed(host) from error


def _was_not_taken(error: ActivityError) -> bool:
    return isinstance(error.cause, TimeoutError) and error.cause.type is TimeoutType.SCHEDULE_TO_START
