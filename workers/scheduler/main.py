"""A scheduler: leads when Temporal gives it the activity ``lead``, stands by otherwise."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta

import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from gpu_platform.domain.contracts import SCHEDULER_TASK_QUEUE
from gpu_platform.domain.errors import PlatformError
from gpu_platform.settings.reading import read_settings
from gpu_platform.state_dir import keep_private
from workers.database import open_store
from workers.kept_workflows import keep_for_ever
from workers.process import OUR_BUILD, connect, measure, observe, run_worker
from workers.scheduler.leader import Leader
from workers.starting import settings_of

log = structlog.get_logger()


def scheduler_worker(client: Client, leading: Leader) -> Worker:
    """The Temporal worker that runs the scheduler's workflow and its activity."""
    return Worker(
        client,
        task_queue=SCHEDULER_TASK_QUEUE,
        build_id=OUR_BUILD,
        activities=[leading.lead],
        max_concurrent_activities=1,
        # Its activity is cancelled at once, so that a standby leads at once.
        graceful_shutdown_timeout=timedelta(),
    )


async def main() -> None:
    """Run the scheduler worker until it is told to stop."""
    settings = settings_of("scheduler")
    observe("scheduler", settings)
    keep_private(settings.state_dir)
    measure(settings, "scheduler")
    store = await open_store(settings)
    client = await connect(settings)
    leading = Leader(
        client, store, settings.scheduler, settings.lease_ttl_s, settings.job_archive, settings.remediation.back_off
    )
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload_policy, leading)
    async with asyncio.TaskGroup() as group:
        group.create_task(run_worker(settings, client, scheduler_worker(client, leading)))
        group.create_task(keep_for_ever(client, store, settings))


def reload_policy(leading: Leader) -> None:
    """Read the configuration again. If it is wrong, log that and change nothing."""
    try:
        leading.reconfigure(read_settings().scheduler)
    except (PlatformError, ValueError, OSError) as error:
        log.error("scheduler.configuration_refused", error=str(error))
