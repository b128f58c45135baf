"""NotificationTestWorkflow: tries each target once, and says what came of it."""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.notifications import NotificationActivities
    from gpu_platform.domain.contracts import NOTIFICATION_TEST_WORKFLOW
    from gpu_platform.domain.notifications import Delivery, Message, Notification, NotificationTest
    from gpu_platform.notifications.job_notices import trial_message
    from workflows import policies
    from workflows.steps import database_step


@workflow.defn(name=NOTIFICATION_TEST_WORKFLOW)
class NotificationTestWorkflow:
    """A test message to one target, or to all."""

    @workflow.run
    async def run(self, test: NotificationTest) -> list[Delivery]:
        """Returns what came of it for each target, in their order."""
        plan = await database_step(NotificationActivities.notification_plan, summary="Read the targets")
        names = [target.name for target in plan.targets]
        known = {*names, *plan.open_targets}
        if test.target is not None and test.target not in known:
            there = f"there are: {', '.join(names)}" if names else "there is none"
            return [Delivery(target=test.target, sent=False, reason=f"notifications.targets has no such name; {there}")]
        message = trial_message(plan.cluster, test.actor)
        wanted = names if test.target is None else [test.target]
        return await asyncio.gather(*[self._try(target, message, test.address) for target in wanted])

    async def _try(self, target: str, message: Message, address: str | None) -> Delivery:
        try:
            await workflow.execute_activity_method(
                NotificationActivities.send_notification,
                Notification(target=target, message=message, address=address),
                summary=f"Test {target}",
                **policies.NOTIFY_ONCE,
            )
        except ActivityError as error:
            # A timeout says nothing by itself.
            return Delivery(target=target, sent=False, reason=getattr(error.cause, "message", "") or "it took too long")
        return Delivery(target=target, sent=True)
