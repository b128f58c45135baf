"""Tells people: which targets there are, and one message to one of them."""

from __future__ import annotations

from collections import Counter as Count
from datetime import timedelta

from prometheus_client import Counter
from temporalio import activity

from gpu_platform.domain.errors import NotSent
from gpu_platform.domain.notifications import Notification, NotificationPlan, PlannedTarget
from gpu_platform.notifications.sending import Targets
from gpu_platform.observability import get_logger
from gpu_platform.settings import NotificationSettings
from gpu_platform.temporal.errors import final, not_yet

UNKNOWN_TARGET = "UnknownTarget"
TARGET_BUSY = "TargetBusy"
MESSAGES_AT_ONCE = 4
"""To one target, in one control worker: each is a process with some 50 MiB of memory. A target that hangs holds up no
message to another one."""
_LONGEST_WAIT_S = 30

SENT = Counter(
    "gpu_platform_notifications", "Messages to people, by target and whether the target took them", ["target", "result"]
)

log = get_logger(__name__)


class NotificationActivities:
    """The steps of alerts and of tests of targets. Addresses of targets stay here: no workflow sees them."""

    def __init__(self, settings: NotificationSettings, cluster: str) -> None:
        self._settings, self._cluster = settings, cluster
        self._targets = Targets(settings)
        self._under_way: Count[str] = Count()
        for target in settings.targets:
            for result in ("sent", "failed"):
                SENT.labels(target.name, result)  # Prometheus sees the first failure only if there was a 0 before

    @property
    def most_at_once(self) -> int:
        """How many messages this process may have under way. There is always room to look at one more."""
        return MESSAGES_AT_ONCE * (len(self._settings.targets) + 1)

    @activity.defn
    def notification_plan(self) -> NotificationPlan:
        """The control worker's settings for notifications, without addresses."""
        settings = self._settings
        return NotificationPlan(
            cluster=self._cluster,
            targets=[
                PlannedTarget(name=target.name, severities=target.severities)
                for target in settings.targets
                if not target.personal
            ],
            group_wait_s=settings.group_wait_s,
            repeat_hours=settings.repeat_hours,
            job_wait_s=settings.job_wait_s,
            user_messages_per_hour=settings.user_messages_per_hour,
            give_up_hours=settings.give_up_hours,
            open_targets=[target.name for target in settings.targets if target.namespaces],
        )

    @activity.defn
    async def send_notification(self, notification: Notification) -> None:
        """Send the message. If this step is repeated after the target took it, the target gets it twice."""
        target, title = notification.target, notification.message.title
        if target not in self._targets:
            raise final(f"notifications.targets has no {target!r} any more", UNKNOWN_TARGET)
        if self._under_way[target] >= MESSAGES_AT_ONCE:
            after = timedelta(seconds=min(2 * activity.info().attempt, _LONGEST_WAIT_S))
            message = f"{MESSAGES_AT_ONCE} messages to {target} are under way, and it answers slowly"
            raise not_yet(message, TARGET_BUSY, after)
        self._under_way[target] += 1
        try:
            await self._targets.send(target, notification.message, notification.address)
        except NotSent as error:
            SENT.labels(target, "failed").inc()
            log.warning("notification.failed", target=target, title=title, reason=error.message)
            raise not_yet(error.message, error.code) from None
        finally:
            self._under_way[target] -= 1
        SENT.labels(target, "sent").inc()
        log.info("notification.sent", target=target, title=title)
