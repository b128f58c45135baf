"""AlertWorkflow: tells people of alerts with one name, until none of them fires any more.

There is one for each name, so a thousand alerts of one cause become one message. The service starts it by
signal-with-start. Prometheus repeats an alert each minute; the service passes on only what is new, and each alert now
and then, so that the history stays short.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities.notifications import NotificationActivities
    from gpu_platform.alerting.group import AlertGroup, News
    from gpu_platform.alerting.reports import AlertReports
    from gpu_platform.alerting.texts import message_of
    from gpu_platform.domain.contracts import ALERT_WORKFLOW
    from gpu_platform.domain.notifications import Notification, NotificationPlan
    from workflows import policies
    from workflows.steps import cut_summary, database_step, until

LONGEST_HISTORY = 4000
"""Events. Then the workflow continues as new. Messages that are on their way are made again there, so a target may get
one twice."""


@workflow.defn(name=ALERT_WORKFLOW)
class AlertWorkflow:
    """Tells each target what is new, and again after some hours."""

    @workflow.init
    def __init__(self, group: AlertGroup) -> None:
        self._group = group
        self._changed = False
        self._sending: dict[str, asyncio.Task[None]] = {}

    @workflow.signal
    def report(self, reports: AlertReports) -> None:
        """Signal: alerts fire, go on, or are resolved."""
        self._changed = self._group.take(reports) or self._changed

    @workflow.run
    async def run(self, group: AlertGroup) -> None:
        """Runs until every alert is over and every target knows it."""
        while True:
            plan = await database_step(NotificationActivities.notification_plan, summary="Read the targets")
            if self._has_news(plan):
                await workflow.sleep(plan.group_wait_s)
            self._changed = False
            if self._is_long():
                await self._stop_sending()
                workflow.continue_as_new(self._group)
            self._tell(plan)
            self._group.forget(plan.targets, workflow.now())
            self._show()
            if not self._sending and not self._group.alerts:
                return
            await until(lambda: self._changed, self._quiet_for(plan))

    async def _stop_sending(self) -> None:
        sending = [*self._sending.values()]
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)

    def _has_news(self, plan: NotificationPlan) -> bool:
        self._group.end_silent(workflow.now())
        return any(news for _, news in self._news(plan))

    def _news(self, plan: NotificationPlan) -> list[tuple[str, News]]:
        """Target -> what it is to be told, of those that get no message just now."""
        now, repeat = workflow.now(), timedelta(hours=plan.repeat_hours)
        free = [target for target in plan.targets if target.name not in self._sending]
        return [(target.name, self._group.news_for(target, now, repeat)) for target in free]

    def _tell(self, plan: NotificationPlan) -> None:
        self._group.end_silent(workflow.now())
        for target, news in self._news(plan):
            if news:
                self._group.note_tried(target, news)
                self._sending[target] = asyncio.create_task(self._send(plan.cluster, target, news))

    async def _send(self, cluster: str, target: str, news: News) -> None:
        """If it fails for an hour, the target gets another message, with what is true by then."""
        try:
            await workflow.execute_activity_method(
                NotificationActivities.send_notification,
                Notification(target=target, message=message_of(cluster, self._group.name, news)),
                summary=cut_summary(f"Tell {target}"),
                **policies.NOTIFY,
            )
            self._group.note_sent(target, news, workflow.now())
        except ActivityError as error:
            workflow.logger.warning("notification.not_sent", extra={"target": target, "reason": str(error.cause)})
        finally:
            del self._sending[target]
            self._changed = True

    def _quiet_for(self, plan: NotificationPlan) -> timedelta | None:
        """How long nothing is to be done, if nothing is heard. None: until something is heard."""
        free = [target for target in plan.targets if target.name not in self._sending]
        at = self._group.next_change(free, timedelta(hours=plan.repeat_hours))
        return None if at is None else max(at - workflow.now(), timedelta(seconds=1))

    def _is_long(self) -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.get_current_history_length() > LONGEST_HISTORY

    def _show(self) -> None:
        firing = [alert for alert in self._group.alerts.values() if not alert.resolved]
        lines = [f"- {alert.text}" for alert in firing[:20]]
        workflow.set_current_details("\n".join([f"{len(firing)} fire", *lines]))
