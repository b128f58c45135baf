"""Follows the feed of events and hands what people are to be told of jobs to their workflows; and the steps of these.

The position in the feed is in the database, beside the events. It moves on only when Temporal has taken the notices, so
nothing is lost with a process. Notices that are handed over twice are known by their ids.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from prometheus_client import Counter, Gauge
from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE, NOTICES_WORKFLOW, notices_workflow_id
from gpu_platform.domain.errors import CannotStart
from gpu_platform.domain.jobs.notify import NotifyOn
from gpu_platform.domain.notices import Notice, Notices, RunningAttempt, Undelivered
from gpu_platform.notifications.inbox import Inbox
from gpu_platform.notifications.job_notices import notices_of
from gpu_platform.notifications.sending import Targets
from gpu_platform.observability import get_logger
from gpu_platform.settings import NotificationSettings
from gpu_platform.store import Store
from gpu_platform.store.events import oldest_after
from gpu_platform.store.jobs import notices
from gpu_platform.temporal.errors import not_yet

POLL_S = 1.0
"""How often the follower looks for events."""
WRITE_EVERY_S = 60.0
"""How often a position is written that passed nothing of which anybody is told."""
MOST_IN_A_SIGNAL = 100

TAKEN = Counter("gpu_platform_notices", "Notices of jobs, by what happened, handed over to be sent", ["on"])
LAG = Gauge(
    "gpu_platform_notices_lag_seconds", "Age of the oldest event that the follower of notices has not read; 0: none"
)
UNDELIVERED = Counter("gpu_platform_notices_undelivered", "Notices that nobody tries to send any more", ["target"])

log = get_logger(__name__)


class NoticeFeed:
    """The activity that follows the feed. One runs in the cluster; a second one does no harm."""

    def __init__(self, client: Client, store: Store, settings: NotificationSettings, cluster: str) -> None:
        self._client, self._store, self._settings, self._cluster = client, store, settings, cluster
        self._targets = Targets(settings)
        for on in NotifyOn:
            TAKEN.labels(on)
        for target in settings.targets:
            UNDELIVERED.labels(target.name)

    @activity.defn
    async def follow_notices(self, follow_s: float) -> None:
        """Follow the feed for ``follow_s`` seconds, or until the activity is cancelled."""
        try:
            opened = self._targets.open()
        except CannotStart as error:
            raise not_yet(error.message, error.code) from None
        seq = await asyncio.to_thread(notices.begin, self._store, opened)
        log.info("notices.followed", seq=seq, targets=[target.name for target in opened.targets])
        ends_at = time.monotonic() + follow_s
        written, written_at = seq, time.monotonic()
        while time.monotonic() < ends_at:
            activity.heartbeat()
            found = await asyncio.to_thread(notices.look, self._store, seq)
            if found.happened:
                await self._hand_over(found)
            seq = found.seq
            if found.happened or (seq > written and time.monotonic() - written_at > WRITE_EVERY_S):
                await asyncio.to_thread(notices.advance, self._store, seq)
                written, written_at = seq, time.monotonic()
            LAG.set(await self._lag_s(seq) if seq < found.last else 0.0)
            if seq == found.last:
                await asyncio.sleep(POLL_S)

    async def _hand_over(self, found: notices.Look) -> None:
        by_user: dict[str, list[Notice]] = {}
        for happened in found.happened:
            made = notices_of(happened, self._cluster, self._settings.dashboard_url)
            by_user.setdefault(happened.of.spec.user, []).extend(made)
        for user, theirs in by_user.items():
            for first in range(0, len(theirs), MOST_IN_A_SIGNAL):
                await self._signal(user, theirs[first : first + MOST_IN_A_SIGNAL])
                activity.heartbeat()
            for notice in theirs:
                TAKEN.labels(notice.on).inc()
            log.info("notices.taken", user=user, notices=len(theirs), jobs=_some(notice.job_id for notice in theirs))

    async def _signal(self, user: str, theirs: list[Notice]) -> None:
        """Raises ``RPCError`` if Temporal does not take them: the activity is repeated from the written position."""
        await self._client.start_workflow(
            NOTICES_WORKFLOW,
            Inbox(user=user),
            id=notices_workflow_id(user),
            task_queue=CONTROL_TASK_QUEUE,
            start_signal="tell",
            start_signal_args=[Notices(notices=theirs)],
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            static_summary=f"messages about jobs of {user}",
        )

    async def _lag_s(self, seq: int) -> float:
        oldest = await asyncio.to_thread(oldest_after, self._store, seq)
        return 0.0 if oldest is None else max(0.0, (utc_now() - oldest).total_seconds())


class NoticeActivities:
    """The steps of the workflow that tells a user."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn
    def attempt_runs(self, attempt: RunningAttempt) -> bool:
        """True while this attempt of the job runs."""
        return notices.runs(self._store, attempt)

    @activity.defn
    def note_undelivered(self, undelivered: Undelivered) -> None:
        """Write into the events of the jobs that somebody was not told."""
        notices.note_undelivered(self._store, undelivered, utc_now())
        UNDELIVERED.labels(undelivered.target).inc(len(undelivered.jobs))
        log.error(
            "notices.undelivered",
            target=undelivered.target,
            reason=undelivered.reason,
            jobs=_some(undelivered.jobs),
        )


def _some(job_ids: Iterable[str]) -> list[str]:
    """The ids, each once, and not more than a line of the log can show."""
    return [*dict.fromkeys(job_ids)][:10]
