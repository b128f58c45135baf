"""A scheduler: leads when Temporal gives it the activity ``lead``, stands by otherwise."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import structlog
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import Worker

from activities.leader import SCHEDULER_TASK_QUEUE, LeaderActivities
from activities.upkeep import CONTROL_TASK_QUEUE
from gpu_platform.observability import configure_logging, serve_metrics
from gpu_platform.scheduling.policy import Policy
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from workers.process import connect, run_process
from workflows.scheduler import SCHEDULER_WORKFLOW_ID, SchedulerInput, SchedulerWorkflow

log = structlog.get_logger()


def scheduler_worker(client: Client, store: Store, settings: Settings) -> Worker:
    policy = Policy(order=settings.scheduler.order, proposal_timeout_s=settings.scheduler.proposal_timeout_s)
    leading = LeaderActivities(store, client, settings.scheduler, policy)
    return Worker(
        client,
        task_queue=SCHEDULER_TASK_QUEUE,
        activities=[leading.lead],
        max_concurrent_activities=1,
        # Cancelled at once, so that a standby leads at once.
        graceful_shutdown_timeout=timedelta(),
    )


async def ensure_scheduler_workflow(client: Client, settings: Settings) -> None:
    await client.start_workflow(
        SchedulerWorkflow.run,
        SchedulerInput(heartbeat_timeout_s=settings.scheduler.leader_heartbeat_timeout_s),
        id=SCHEDULER_WORKFLOW_ID,
        task_queue=CONTROL_TASK_QUEUE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
    )


async def main() -> None:
    settings = Settings()
    configure_logging("scheduler", level=settings.log_level, json=settings.log_json)
    if settings.scheduler.metrics_port is not None:
        serve_metrics(settings.scheduler.metrics_port, settings.service.host)
    store = Store(settings.store_url)
    await asyncio.to_thread(store.migrate)
    client = await connect(settings)
    await ensure_scheduler_workflow(client, settings)
    await scheduler_worker(client, store, settings).run()


if __name__ == "__main__":
    run_process(main())
