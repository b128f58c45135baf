"""NoticeFeedWorkflow keeps one control worker following the feed of events for notices of jobs. NoticesWorkflow tells
one user of jobs.

There is one NoticesWorkflow for each user, so that a limit counts for all messages about the user's jobs, and a
thousand jobs that end become a few messages. The follower starts it by signal-with-start. It stays until an hour after
its last message: until then it knows notices that come twice.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from activities.notices import NoticeActivities, NoticeFeed
    from activities.notifications import NotificationActivities
    from gpu_platform.domain.contracts import NOTICE_FEED_TASK_QUEUE, NOTICE_FEED_WORKFLOW, NOTICES_WORKFLOW
    from gpu_platform.domain.notices import Notices, RunningAttempt, Undelivered
    from gpu_platform.domain.notifications import Notification, NotificationPlan
    from gpu_platform.notifications.inbox import Inbox, WaitingNotices
    from gpu_platform.notifications.job_notices import message_of
    from workflows import policies
    from workflows.steps import cut_summary, database_step, despite_cancel, until

FOLLOW_S = 24 * 3600.0
"""How long one activity follows the feed. Then the workflow continues as new."""
LONGEST_HISTORY = 4000
"""Events. Then the workflow continues as new. Messages that are on their way are made again there, so somebody may get
one twice."""


@workflow.defn(name=NOTICE_FEED_WORKFLOW)
class NoticeFeedWorkflow:
    """Keeps one follower: one activity after the other, for ever."""

    @workflow.run
    async def run(self) -> None:
        """Follow, then continue as new."""
        following = workflow.start_activity_method(
            NoticeFeed.follow_notices,
            FOLLOW_S,
            task_queue=NOTICE_FEED_TASK_QUEUE,
            start_to_close_timeout=timedelta(seconds=FOLLOW_S + 3600),
            heartbeat_timeout=timedelta(seconds=10),
            retry_policy=RetryPolicy(
                initial_interval=timedelta(milliseconds=200), maximum_interval=timedelta(seconds=10)
            ),
        )
        # Nobody is told of jobs without it, so a cancellation in Temporal does not end it.
        await despite_cancel(following)
        workflow.continue_as_new()


@workflow.defn(name=NOTICES_WORKFLOW)
class NoticesWorkflow:
    """Tells a user, each destination by itself."""

    @workflow.init
    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._changed = False
        self._sending: dict[str, asyncio.Task[None]] = {}

    @workflow.signal
    def tell(self, notices: Notices) -> None:
        """Signal: something happened to jobs."""
        self._inbox.take(notices.notices)
        self._changed = True

    @workflow.run
    async def run(self, inbox: Inbox) -> None:
        """Runs until there is nothing to tell, and no message of the last hour."""
        while True:
            plan = await database_step(NotificationActivities.notification_plan, summary="Read the targets")
            await self._take_due()
            if self._free():
                await workflow.sleep(plan.job_wait_s)
            self._changed = False
            if self._is_long():
                await self._stop_sending()
                workflow.continue_as_new(self._inbox)
            self._send_what_may_be_sent(plan)
            workflow.set_current_details(f"{len(self._inbox.waiting)} destinations wait, {len(self._sending)} are told")
            if self._inbox.is_quiet(workflow.now()) and not self._sending:
                return
            await until(lambda: self._changed, self._quiet_for(plan))

    async def _take_due(self) -> None:
        """Tell what was to be told later, if it is still true."""
        for notice in self._inbox.take_due(workflow.now()):
            attempt = RunningAttempt(job_id=notice.job_id, attempt=notice.attempt or 0)
            if await database_step(NoticeActivities.attempt_runs, attempt, summary=f"Does {notice.job_id} still run?"):
                self._inbox.tell(notice)

    def _free(self) -> list[str]:
        """The destinations that have something to be told, and get no message just now."""
        return [key for key in self._inbox.waiting if key not in self._sending]

    def _send_what_may_be_sent(self, plan: NotificationPlan) -> None:
        for key in self._free():
            is_tried = self._inbox.waiting[key].since is not None
            if not is_tried and not self._inbox.room(workflow.now(), plan.user_messages_per_hour):
                continue
            waiting = self._inbox.begin(key, workflow.now())
            resumes_at = self._inbox.has_room_at(workflow.now(), plan.user_messages_per_hour)
            self._sending[key] = asyncio.create_task(self._send(plan, key, waiting, resumes_at))

    async def _send(
        self, plan: NotificationPlan, key: str, waiting: WaitingNotices, resumes_at: datetime | None
    ) -> None:
        assert waiting.since is not None
        left = waiting.since + timedelta(hours=plan.give_up_hours) - workflow.now()
        message = message_of(plan.cluster, waiting.notices, waiting.left_out, resumes_at)
        try:
            await workflow.execute_activity_method(
                NotificationActivities.send_notification,
                Notification(target=waiting.target, message=message, address=waiting.address),
                summary=cut_summary(f"Tell {waiting.target}"),
                **{**policies.NOTIFY, "schedule_to_close_timeout": max(left, timedelta(seconds=1))},
            )
        except ActivityError as error:
            if is_cancelled_exception(error):
                raise
            await self._give_up(waiting, _reason(error))
        self._inbox.end(key, waiting)
        self._done(key)

    async def _give_up(self, waiting: WaitingNotices, reason: str) -> None:
        jobs = [*dict.fromkeys(notice.job_id for notice in waiting.notices)]
        undelivered = Undelivered(target=waiting.target, reason=reason, jobs=jobs)
        await database_step(NoticeActivities.note_undelivered, undelivered, summary=f"{waiting.target} was not told")

    def _done(self, key: str) -> None:
        del self._sending[key]
        self._changed = True

    async def _stop_sending(self) -> None:
        sending = [*self._sending.values()]
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)

    def _quiet_for(self, plan: NotificationPlan) -> timedelta | None:
        """How long nothing is to be done, if nothing is heard. None: until something is heard."""
        now = workflow.now()
        at = self._inbox.next_change(now, plan.user_messages_per_hour, waits=bool(self._free()))
        return None if at is None else max(at - now, timedelta(seconds=1))

    def _is_long(self) -> bool:
        info = workflow.info()
        return info.is_continue_as_new_suggested() or info.get_current_history_length() > LONGEST_HISTORY


def _reason(error: ActivityError) -> str:
    """What the target said last. A timeout says nothing by itself."""
    cause: BaseException | None = error.cause
    while isinstance(cause, FailureError) and cause.cause is not None:
        cause = cause.cause
    return cause.message if isinstance(cause, ApplicationError) else "it took too long"
