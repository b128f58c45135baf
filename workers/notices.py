"""The part of a control worker that follows the feed of events for notices of jobs."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Worker

from activities.notices import NoticeFeed
from gpu_platform.domain.contracts import (
    CONTROL_TASK_QUEUE,
    NOTICE_FEED_TASK_QUEUE,
    NOTICE_FEED_WORKFLOW,
    NOTICE_FEED_WORKFLOW_ID,
)
from gpu_platform.settings import Settings
from workers.kept_workflows import keep_starting


def notice_feed_worker(client: Client, feed: NoticeFeed) -> Worker:
    """The Temporal worker that follows the feed."""
    return Worker(
        client,
        task_queue=NOTICE_FEED_TASK_QUEUE,
        activities=[feed.follow_notices],
        max_concurrent_activities=1,
        # Its activity is cancelled at once, so that another control worker follows at once.
        graceful_shutdown_timeout=timedelta(),
    )


async def ensure_notice_feed(client: Client, settings: Settings) -> None:
    """Start the workflow of the feed unless it runs. Waits for a Temporal that starts itself."""
    await keep_starting(lambda: start_notice_feed(client), settings)


async def start_notice_feed(client: Client) -> None:
    """Start the workflow of the feed unless it runs. Raises ``RPCError``."""
    await client.start_workflow(
        NOTICE_FEED_WORKFLOW,
        id=NOTICE_FEED_WORKFLOW_ID,
        task_queue=CONTROL_TASK_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        static_summary="tells users of their jobs",
    )
