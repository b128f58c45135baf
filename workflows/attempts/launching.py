"""Starting a gang on its hosts: each step on all of them at once, or none of it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, TimeoutError, TimeoutType

from activities.node.launch import LaunchActivities
from gpu_platform.domain.attempt import HostPlan, Launched, LaunchRequest, Prepared
from gpu_platform.domain.contracts import node_task_queue
from workflows import policies
from workflows.attempts.attempt import Attempt
from workflows.attempts.outcomes import INTERRUPTED, Interrupted

ASK_HOST_AGAIN = "ask-host-again"


async def prepare_hosts(attempt: Attempt, plans: list[HostPlan]) -> list[Prepared] | Interrupted:
    """Prepare every host of the gang; one answer per plan. The barrier: no rank starts before all hosts are ready."""
    return await _on_all(
        attempt,
        [
            lambda plan=plan: workflow.start_activity_method(
                LaunchActivities.prepare_host,
                plan,
                task_queue=node_task_queue(plan.host),
                summary=f"Cgroup set-up on {plan.host}",
                **policies.HOST_STEP,
            )
            for plan in plans
        ],
    )


async def launch_hosts(
    attempt: Attempt, plans: list[HostPlan], rendezvous: Prepared | None
) -> list[Launched] | Interrupted:
    """Start every rank; one answer per plan. ``rendezvous``: where the ranks meet, for more than one host."""
    return await _on_all(
        attempt,
        [
            lambda plan=plan: workflow.start_activity_method(
                LaunchActivities.launch_ranks,
                LaunchRequest(plan=plan, rendezvous=rendezvous),
                task_queue=node_task_queue(plan.host),
                summary=f"Launch on {plan.host}",
                **policies.HOST_STEP,
            )
            for plan in plans
        ],
    )


async def _on_all(attempt: Attempt, steps: list[Callable[[], workflow.ActivityHandle[Any]]]) -> list[Any] | Interrupted:
    """Results of all steps. After an interruption the compensation closes the attempt on each host."""
    everything = asyncio.gather(*[_result(step(), step) for step in steps])
    await workflow.wait_condition(lambda: everything.done() or attempt.interrupted())
    if attempt.interrupted():
        everything.cancel()
        await asyncio.gather(everything, return_exceptions=True)
        return INTERRUPTED
    return everything.result()


async def _result(asked: workflow.ActivityHandle[Any], step: Callable[[], workflow.ActivityHandle[Any]]) -> Any:
    """A step that no node worker took in time is asked for once more.

    The time runs on while Temporal or everything is down, and then ends before the node worker is back.
    """
    try:
        return await asked
    except ActivityError as error:
        cause = error.cause
        taken = not isinstance(cause, TimeoutError) or cause.type is not TimeoutType.SCHEDULE_TO_START
        if taken or not workflow.patched(ASK_HOST_AGAIN):
            raise
    return await step()
