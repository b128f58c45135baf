"""SchedulerWorkflow: the singleton that keeps exactly one scheduler deciding.

Temporal elects the leader: the activity ``lead`` runs in one scheduler process and sends heartbeats. If that
process dies or freezes, the heartbeat times out and a standby gets the next try. Each try takes a new epoch
in the database, so that the old leader's late answers are refused.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from pydantic import BaseModel

    from activities.leading import LeaderActivities
    from gpu_platform.domain.contracts import SCHEDULER_TASK_QUEUE
    from workflows.steps import despite_cancel


class SchedulerInput(BaseModel):
    """The argument of SchedulerWorkflow."""

    heartbeat_timeout_s: float = 4.0
    lead_s: float = 24 * 3600.0
    """The longest time that one process leads in a row, in seconds. Then the workflow continues as new."""


@workflow.defn(name="SchedulerWorkflow")
class SchedulerWorkflow:
    """Keeps one scheduler leading: one activity after the other, for ever."""

    @workflow.run
    async def run(self, input: SchedulerInput) -> None:
        """Run one leader's activity to its end, then continue as new."""
        leading = workflow.start_activity_method(
            LeaderActivities.lead,
            input.lead_s,
            task_queue=SCHEDULER_TASK_QUEUE,
            start_to_close_timeout=timedelta(seconds=input.lead_s + 3600),
            heartbeat_timeout=timedelta(seconds=input.heartbeat_timeout_s),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=100),
                backoff_coefficient=1.5,
                maximum_interval=timedelta(seconds=2),
            ),
        )
        # Nothing is placed without it, so a cancellation in Temporal does not end it.
        await despite_cancel(leading)
        workflow.continue_as_new(input)
