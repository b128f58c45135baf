"""The part of a control worker that follows the feed of events for notices of jobs."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import Client
from temporalio.worker import Worker

from activities.notices import NoticeFeed
from gpu_platform.domain.contracts import NOTICE_FEED_TASK_QUEUE
from workers.process import OUR_BUILD


def notice_feed_worker(client: Client, feed: NoticeFeed) -> Worker:
    """The Temporal worker that follows the feed."""
    return Worker(
        client,
        task_queue=NOTICE_FEED_TASK_QUEUE,
        build_id=OUR_BUILD,
        activities=[feed.follow_notices],
        max_concurrent_activities=1,
        # Its activity is cancelled at once, so that another control worker follows at once.
        graceful_shutdown_timeout=timedelta(),
    )
