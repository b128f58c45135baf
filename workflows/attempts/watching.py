"""Watching the ranks of a gang until all have ended, one failed, the attempt is interrupted, or time is up."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from temporalio import workflow

from activities.node.watch import WatchActivities
from gpu_platform.domain.contracts import node_task_queue, watch_id
from gpu_platform.domain.jobs.attempt import HostExits, HostPlan, RankExit, WatchRequest
from gpu_platform.domain.jobs.job import JobProgress
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from workflows import policies
from workflows.attempts.answers import of_watch
from workflows.attempts.attempt import Attempt
from workflows.attempts.endings import Ending, after_rank_failure, interruption, time_limit_reached
from workflows.steps import cut_summary, until


async def watch_gang(attempt: Attempt, plans: list[HostPlan], progress: JobProgress) -> Ending:
    """Watch all ranks until the attempt ends. Returns how it ended. Counts what it costs the job in ``progress``."""
    watches = [_start_watch(attempt, plan) for plan in plans]

    def exits(index: int) -> HostExits:
        plan = plans[index]
        return of_watch(plan.host, [one.rank for one in plan.ranks], plan.gpu_uuids, watches[index].result())

    def failure() -> RankExit | None:
        """The first rank that failed, on the first host of which it is known."""
        done = [index for index, watch in enumerate(watches) if watch.done()]
        return next((found for index in done if (found := exits(index).first_failure) is not None), None)

    def settled() -> bool:
        return all(watch.done() for watch in watches) or failure() is not None

    began, changes = workflow.now(), 0
    while True:
        in_time = await until(
            lambda seen=changes: settled() or attempt.interrupted() or attempt.limit_changes != seen,
            _time_left(attempt.spec, began),
        )
        if attempt.limit_changes == changes or settled() or attempt.interrupted():
            break
        changes = attempt.limit_changes
        assert attempt.new_limit is not None
        attempt.spec = attempt.new_limit.applied_to(attempt.spec)
        # The hosts enforce the limit, too. A new watch tells them; the ranks go on.
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        watches = [_start_watch(attempt, plan, changes=changes) for plan in plans]
    failed = failure()
    if failed is None and all(watch.done() for watch in watches):
        return completed(attempt, [exits(index) for index in range(len(watches))])
    if failed is not None and failed.failure is None and len(watches) > 1 and not attempt.interrupted():
        await until(attempt.interrupted, policies.FAULT_SETTLE)
    for watch in watches:
        watch.cancel()
    await asyncio.gather(*watches, return_exceptions=True)
    if failed is not None:
        return after_rank_failure(failed, attempt, progress)
    if attempt.interrupted():
        return interruption(attempt, progress)
    assert not in_time
    return time_limit_reached(attempt.spec)


def completed(attempt: Attempt, exits: list[HostExits]) -> Ending:
    """How an attempt ends whose ranks all ended well. Every host reported that no process is left, so nothing must
    be stopped."""
    attempt.may_run = False
    attempt.usage = {one.host: one.usage for one in exits}
    return Ending(state=JobState.COMPLETED, exit_code=0)


def _time_left(spec: JobSpec, began: datetime) -> timedelta | None:
    """How long the attempt may run on. None: for ever."""
    if not spec.time_limit_s:
        return None
    return max(timedelta(seconds=spec.time_limit_s) - (workflow.now() - began), timedelta(0))


def _start_watch(attempt: Attempt, plan: HostPlan, *, changes: int = 0) -> workflow.ActivityHandle[HostExits]:
    """``changes``: how often the time limit was changed: the watch has another name then, and tells the host."""
    name = watch_id(plan.host, attempt.key.attempt) + (f":{changes}" if changes else "")
    limit = attempt.new_limit if changes else None
    return workflow.start_activity_method(
        WatchActivities.watch_ranks,
        WatchRequest(key=attempt.key, host=plan.host, ranks=[rank.rank for rank in plan.ranks], limit=limit),
        task_queue=node_task_queue(plan.host),
        activity_id=name,
        summary=cut_summary(f"Health watch on {plan.host}"),
        **policies.WATCH,
    )
