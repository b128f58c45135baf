"""A worker ends after one of its local activities was tried again: nothing is lost, and its process goes on.

Temporal's SDK (1.35) leaves a timer behind for each try but the last. It fires after ``start_to_close_timeout`` (60 s
in our database steps). If its worker has ended by then, it panics in a thread of its own: "receive half not dropped:
SendError" in ``local_activities.rs``. That ends the timer and nothing else. A control worker's process ends with its
worker, so it is seen only where a process has one worker after the other: in tests.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy
from temporalio.worker import Worker

TIMER_S = 3.0


@activity.defn
def works_at_the_third_try() -> int:
    attempt = activity.info().attempt
    if attempt < 3:
        raise RuntimeError("the database is away")
    return attempt


@workflow.defn(sandboxed=False)
class Steps:
    @workflow.run
    async def run(self) -> int:
        return await workflow.execute_local_activity(
            works_at_the_third_try,
            start_to_close_timeout=timedelta(seconds=TIMER_S),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=20)),
        )


async def test_a_timer_that_outlives_its_worker_harms_nobody(temporal: Client) -> None:
    for life in range(2):
        with ThreadPoolExecutor(2) as executor:
            async with Worker(
                temporal,
                task_queue="steps",
                workflows=[Steps],
                activities=[works_at_the_third_try],
                activity_executor=executor,
            ):
                begun = temporal.execute_workflow(Steps.run, id=f"life-{life}", task_queue="steps")
                assert await asyncio.wait_for(begun, 30) == 3
        await asyncio.sleep(TIMER_S + 0.5)  # the timers of the first two tries fire
