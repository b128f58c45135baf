"""CleanupWorkflow: releases what an attempt holds that no workflow drives any more.

Terminating or timing out a workflow runs no compensation, so the leader's reconciler starts this one, with the id
``cleanup-<job>-<attempt>``. It looks by itself before it stops anything, and again before it ends the job: an attempt
that a workflow drives is left alone.
"""

from __future__ import annotations

import asyncio

from temporalio import workflow

from workflows.attempts.compensations import wait_for_last_stops

with workflow.unsafe.imports_passed_through():
    from activities.cleanup import CleanupActivities
    from activities.node.launch import LaunchActivities
    from gpu_platform.domain.contracts import node_task_queue
    from gpu_platform.domain.jobs.attempt import HostLost, StopRequest
    from gpu_platform.temporal.job_workflows import CleanupInput
    from workflows import policies
    from workflows.steps import cut_summary, database_step, despite_cancel, until


@workflow.defn(name="CleanupWorkflow")
class CleanupWorkflow:
    """Releases what an attempt holds that no workflow drives, and ends its job."""

    def __init__(self) -> None:
        self._lost: set[str] = set()

    @workflow.signal
    def host_lost(self, lost: HostLost) -> None:
        """Signal: the host is LOST, so nobody must wait for its answer."""
        self._lost.add(lost.host)

    @workflow.run
    async def run(self, input: CleanupInput) -> None:
        """Stop the attempt's ranks on all its hosts, then release what it holds."""
        await despite_cancel(asyncio.create_task(self._work(input)))

    async def _work(self, input: CleanupInput) -> None:
        found = await database_step(
            CleanupActivities.find_orphan, input.key, summary="Does a workflow drive the attempt?"
        )
        if found.driven:
            workflow.set_current_details(f"nothing to clean up: {found.driven}")
            return
        stops = await asyncio.gather(*[self._stop_or_lost(input, host) for host in found.hosts])
        await database_step(CleanupActivities.end_orphan, input, summary="Release what the attempt holds")
        await wait_for_last_stops(stops)

    async def _stop_or_lost(self, input: CleanupInput, host: str) -> workflow.ActivityHandle:
        """Send stops until the host confirms that no process is left. A lost host gets the stop too, but nobody
        waits for it."""
        while True:
            stopping = self._start_stop(input, host)
            await workflow.wait_condition(lambda task=stopping: task.done() or host in self._lost)
            if not stopping.done() or stopping.exception() is None or host in self._lost:
                stopping.add_done_callback(lambda done: done.cancelled() or done.exception())
                return stopping
            await until(lambda: host in self._lost, policies.STOP_AGAIN)

    def _start_stop(self, input: CleanupInput, host: str) -> workflow.ActivityHandle:
        return workflow.start_activity_method(
            LaunchActivities.stop_ranks,
            StopRequest(key=input.key, host=host, grace_s=0, reason=input.message),
            task_queue=node_task_queue(host),
            summary=cut_summary(f"Stop of all ranks on {host}"),
            **policies.STOP,
        )
