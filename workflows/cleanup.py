"""CleanupWorkflow: gives back what a closed JobWorkflow still holds.

Terminating or timing out a workflow runs no compensation, so the leader starts this one, with the id
``cleanup-<job>-<attempt>``, for every job that is not terminal in the store while its workflow is closed.
"""

from __future__ import annotations

import asyncio

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

    from activities.launch import LaunchActivities, node_task_queue
    from activities.reservation import EndAttempt, ReservationActivities
    from gpu_platform.domain.attempt import AttemptKey, HostLost, StopRequest
    from gpu_platform.domain.job import Failure, FailureKind, JobProgress
    from gpu_platform.domain.states import JobState
    from workflows import policies


class CleanupInput(BaseModel):
    key: AttemptKey
    hosts: list[str]
    """Where ranks of the attempt may run."""
    message: str
    """Why: becomes the job's failure."""


@workflow.defn(name="CleanupWorkflow")
class CleanupWorkflow:
    def __init__(self) -> None:
        self._lost: set[str] = set()

    @workflow.signal
    def host_lost(self, lost: HostLost) -> None:
        self._lost.add(lost.host)

    @workflow.run
    async def run(self, input: CleanupInput) -> None:
        await asyncio.gather(*[self._stop(input, host) for host in input.hosts])
        await workflow.execute_local_activity_method(
            ReservationActivities.end_attempt,
            EndAttempt(
                key=input.key,
                state=JobState.FAILED,
                actor="cleanup",
                failure=Failure(kind=FailureKind.HARDWARE, message=input.message),
                progress=JobProgress(attempt=input.key.attempt),
            ),
            **policies.DATABASE_STEP,
        )

    async def _stop(self, input: CleanupInput, host: str) -> None:
        stopping = workflow.start_activity_method(
            LaunchActivities.stop_ranks,
            StopRequest(key=input.key, host=host, grace_s=0, reason=input.message),
            task_queue=node_task_queue(host),
            **policies.STOP,
        )
        await workflow.wait_condition(lambda: stopping.done() or host in self._lost)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
