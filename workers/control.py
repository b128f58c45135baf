"""The control worker: workflows, and their short database steps. Any number may run."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from activities.admission import AdmissionActivities
from activities.arrays import ArrayActivities
from activities.cleanup import CleanupActivities
from activities.dependencies import DependencyActivities
from activities.host_report import HostReportActivities
from activities.interrupts import InterruptActivities
from activities.notices import NoticeActivities, NoticeFeed
from activities.notifications import NotificationActivities
from activities.pipelines import PipelineActivities
from activities.placement import PlacementActivities
from activities.remediation import RemediationActivities
from activities.repair import RepairActivities
from activities.reservation import ReservationActivities
from activities.schedules import ScheduleActivities
from activities.senders import NotingSenders
from activities.submissions import Submissions
from activities.takeover import TakeoverActivities
from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE, NOTIFICATION_TASK_QUEUE
from gpu_platform.domain.errors import PlatformError
from gpu_platform.identity.signing import OrderSigner
from gpu_platform.notifications.sending import Targets
from gpu_platform.observability import get_logger
from gpu_platform.settings import NotificationSettings, RemediationSettings, Settings
from gpu_platform.state_dir import keep_private
from gpu_platform.store import Store
from gpu_platform.store.jobs import notices
from gpu_platform.temporal.job_workflows import TemporalJobWorkflows
from gpu_platform.temporal.payloads.converter import converter_of
from gpu_platform.temporal.payloads.orders import SigningOrders
from gpu_platform.temporal.worker_deployment import deployment_of, keep_served
from workers.database import open_store
from workers.kept_workflows import keep_for_ever
from workers.notices import notice_feed_worker
from workers.order_checks import OrderChecks
from workers.poison import GuardedRunner, PoisonGuard
from workers.process import OUR_BUILD, connect, measure, observe, run_process, run_worker
from workers.starting import settings_of
from workflows.alert import AlertWorkflow
from workflows.array import ArrayWorkflow
from workflows.cleanup import CleanupWorkflow
from workflows.host_report import HostReportWorkflow
from workflows.job import JobWorkflow
from workflows.notices import NoticeFeedWorkflow, NoticesWorkflow
from workflows.notification_test import NotificationTestWorkflow
from workflows.pipeline import PipelineWorkflow
from workflows.remediation import RemediationWorkflow
from workflows.sandbox import workflow_runner
from workflows.scheduled_submission import ScheduledSubmissionWorkflow
from workflows.scheduler import SchedulerWorkflow

log = get_logger(__name__)

DATABASE_THREADS = 8
LOCAL_STEPS = 50
"""How many steps in the database may be under way. Most wait for a thread, or for the leader."""
CACHED_WORKFLOWS = 2000
"""How many are kept in memory between their tasks."""


def control_worker(
    client: Client,
    store: Store,
    executor: ThreadPoolExecutor,
    *,
    settings: RemediationSettings | None = None,
    notifications: NotificationActivities | None = None,
    lease_ttl_s: float,
    signs_orders: bool = False,
    checked: bool = False,
    guard: PoisonGuard | None = None,
    **more: Any,
) -> Worker:
    """The Temporal worker that runs workflows and their database steps.

    ``notifications``: None means that there are no targets. ``signs_orders``: hosts obey signed orders only.
    ``checked``: run workflows in the sandbox, as tests do. ``guard``: sets aside what kills workers.
    ``more``: other options of ``temporalio.worker.Worker``.
    """
    runner = workflow_runner(checked=checked)
    admission = AdmissionActivities(store, executor)
    placement = PlacementActivities(store)
    reservation = ReservationActivities(store)
    arrays = ArrayActivities(store)
    settings = settings or RemediationSettings()
    notifications = notifications or NotificationActivities(NotificationSettings(), "")
    remediation = RemediationActivities(store, settings)
    repair = RepairActivities(store, settings)
    cleanup = CleanupActivities(store, TemporalJobWorkflows(client))
    reporting = HostReportActivities(store, lease_ttl_s)
    told = NoticeActivities(store)
    submissions = Submissions(store, client)
    scheduled, pipelines = ScheduleActivities(store, submissions), PipelineActivities(store, submissions)
    return Worker(
        client,
        task_queue=CONTROL_TASK_QUEUE,
        workflows=[
            JobWorkflow,
            ArrayWorkflow,
            RemediationWorkflow,
            SchedulerWorkflow,
            CleanupWorkflow,
            HostReportWorkflow,
            ScheduledSubmissionWorkflow,
            PipelineWorkflow,
            AlertWorkflow,
            NotificationTestWorkflow,
            NoticeFeedWorkflow,
            NoticesWorkflow,
        ],
        activities=[
            admission.admit_job,
            DependencyActivities(store).look_at_dependencies,
            InterruptActivities(store).note_cancel,
            TakeoverActivities(store).take_over,
            placement.place_gang,
            reservation.reserve_gang,
            reservation.hand_over,
            reservation.parked_state,
            reservation.changed_limit,
            reservation.unpark,
            reservation.mark_starting,
            reservation.note_start,
            reservation.mark_running,
            reservation.end_attempt,
            arrays.begin_array,
            arrays.take_over_array,
            arrays.advance_array,
            arrays.ready_elements,
            arrays.late_elements,
            arrays.stop_array,
            arrays.end_array,
            cleanup.find_orphan,
            cleanup.end_orphan,
            reporting.report_host,
            scheduled.submit_scheduled,
            scheduled.look_at_scheduled,
            scheduled.cancel_scheduled,
            pipelines.advance_pipeline,
            pipelines.cancel_pipeline,
            pipelines.note_output,
            notifications.notification_plan,
            told.attempt_runs,
            told.note_undelivered,
            remediation.record_fault,
            remediation.begin_reset,
            remediation.gpu_holders,
            remediation.finish_reset,
            repair.remediation_policy,
            repair.hold_gpu,
            repair.begin_repair,
            repair.look_at_repair,
            repair.note_reboot,
            repair.end_repair,
            repair.open_service_case,
            repair.power_cycle,
        ],
        activity_executor=executor,
        workflow_runner=runner if guard is None else GuardedRunner(runner, guard),
        interceptors=[NotingSenders(), *([] if guard is None else [guard])],
        max_concurrent_workflow_tasks=50,
        max_concurrent_local_activities=LOCAL_STEPS,
        max_concurrent_activities=DATABASE_THREADS,
        # How long the workflows of a dead worker wait for it before another worker takes them.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
        graceful_shutdown_timeout=timedelta(seconds=5),
        build_id=None if more.get("deployment_config") else OUR_BUILD,
        **{"max_cached_workflows": CACHED_WORKFLOWS, **more},
    )


def notification_worker(client: Client, notifications: NotificationActivities) -> Worker:
    """The Temporal worker that sends messages to people."""
    return Worker(
        client,
        task_queue=NOTIFICATION_TASK_QUEUE,
        build_id=OUR_BUILD,
        activities=[notifications.send_notification],
        max_concurrent_activities=notifications.most_at_once,
        graceful_shutdown_timeout=timedelta(seconds=5),
    )


def order_signing(settings: Settings, store: Store, executor: ThreadPoolExecutor) -> SigningOrders | None:
    """What signs orders to hosts. None: there is no key for that."""
    if settings.signing_key is None:
        return None
    return SigningOrders(OrderSigner.load(settings.signing_key), OrderChecks(store, executor))


async def main() -> None:
    """Run the control worker until it is told to stop."""
    settings = settings_of("control")
    observe("control", settings)
    keep_private(settings.state_dir)
    await Targets(settings.notifications).check()
    measure(settings, "control")
    store = await open_store(settings)
    with ThreadPoolExecutor(DATABASE_THREADS, thread_name_prefix="database") as executor:
        client = await connect(
            settings, converter=converter_of(settings, orders=order_signing(settings, store, executor))
        )
        notifications = NotificationActivities(settings.notifications, settings.cluster.name)
        guard = await _guard(store, settings)
        worker = control_worker(
            client,
            store,
            executor,
            settings=settings.remediation,
            notifications=notifications,
            lease_ttl_s=settings.lease_ttl_s,
            signs_orders=settings.signing_key is not None,
            guard=guard,
            deployment_config=deployment_of(settings),
        )
        sends = [notification_worker(client, notifications)] if settings.notifications.targets else []
        if settings.notifications.opens_targets:
            feed = NoticeFeed(client, store, settings.notifications, settings.cluster.name)
            sends.append(notice_feed_worker(client, feed))
        else:
            await asyncio.to_thread(notices.withdraw_targets, store)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run_worker(settings, client, worker, *sends))
                group.create_task(keep_served(client, settings))
                group.create_task(keep_for_ever(client, store, settings))
                if guard is not None:
                    group.create_task(guard.keep_looking())
        finally:
            if guard is not None:
                guard.close()


async def _guard(store: Store, settings: Settings) -> PoisonGuard | None:
    """None: the state directory cannot be written, so nobody could know what killed this process."""
    try:
        return await asyncio.to_thread(PoisonGuard.begin, store, settings.state_dir)
    except (OSError, PlatformError) as error:
        log.warning("poison.not_guarded", error=str(error))
        return None


if __name__ == "__main__":
    run_process(main())
