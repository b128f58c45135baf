"""The node worker: one per GPU host. It never connects to the database."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog
import uvloop
from prometheus_client import REGISTRY
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.converter import DataConverter
from temporalio.service import RPCError
from temporalio.worker import Interceptor, Worker

from activities.node.artifacts import ArtifactActivities
from activities.node.elements import ElementActivities
from activities.node.launch import LaunchActivities
from activities.node.repair import HostRepairActivities
from activities.node.reset import ResetActivities
from activities.node.watch import RankWatcher, WatchActivities
from gpu_platform.disk_room import DiskRoom, kept_by_starts
from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE, HOST_REPORT_WORKFLOW, host_report_id, node_task_queue
from gpu_platform.domain.errors import CannotOpen, Unavailable
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.lease import HostReport, LeaseAnswer, facts_hash
from gpu_platform.domain.hosts.protocol import PROTOCOL
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.identity.signing import PinnedKeys
from gpu_platform.lanes import Lane
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.accounting.power_cap import PowerCap
from gpu_platform.node.attempt_watch import AttemptWatch
from gpu_platform.node.environments.outputs import outputs_root
from gpu_platform.node.environments.stages import environment_stages
from gpu_platform.node.health.boot import boot_id
from gpu_platform.node.health.fault_history import FaultHistory
from gpu_platform.node.health.fault_policy import FaultPolicy
from gpu_platform.node.health.fitness import GpuFitness
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.inventory.cuda_driver import CudaStage
from gpu_platform.node.isolation.cgroups.cpus import CpuBinding
from gpu_platform.node.isolation.isolation import JAILED
from gpu_platform.node.isolation.rdma import Rdma
from gpu_platform.node.isolation.scrub.scrub_policy import Scrubber
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.processes.exec_sessions import ExecSessions
from gpu_platform.node.processes.logs import LogRetention
from gpu_platform.node.processes.record_cleanup import RecordRetention
from gpu_platform.node.sharing.stage import Sharing
from gpu_platform.node.stages import Stage
from gpu_platform.node.system.lease_file import LeaseFile, LeaseRecord, lease_path
from gpu_platform.node.system.own_loop import OwnLoop, in_loop
from gpu_platform.node.system.own_thread import in_own_thread
from gpu_platform.node.system.paths import node_dir
from gpu_platform.observability import measure_for
from gpu_platform.settings import Settings
from gpu_platform.settings.reading import read_settings
from gpu_platform.state_dir import keep_private
from gpu_platform.temporal.payloads.converter import converter_of
from gpu_platform.temporal.payloads.orders import CheckingOrders, OrderGuard
from gpu_platform.temporal.runtime import ProcessRuntime
from workers.node.disk_probe import DiskProbe
from workers.node.fault_outbox import FaultOutbox
from workers.node.http import NodeHttp
from workers.node.identity import NodeIdentity
from workers.node.interrupted_watches import FINISHED_WITHIN_S, Connection, InterruptedWatches
from workers.node.lease_keeper import LeaseKeeper
from workers.node.lease_metrics import LeaseMetrics
from workers.node.metrics import NodeMetrics
from workers.node.nvml_watch import NvmlWatch, RestartRequired, open_gpus, unusable
from workers.node.peer_votes import votes_route
from workers.node.readings import reading_routes
from workers.node.reboot import HostReboot
from workers.node.samples import sample_keeper, sample_route
from workers.node.service_secrets import ServiceSecrets
from workers.node.service_uploads import ServiceUploads
from workers.process import OUR_BUILD, connect, observe, run_worker
from workers.starting import settings_of

log = structlog.get_logger()

SWEEP_S = 60.0
CHECKPOINT_SWEEP_S = 60.0
FAULT_HISTORY = timedelta(days=90)
"""Older faults of GPUs are forgotten when the node worker starts."""
REPORT_TIMEOUT = timedelta(seconds=5)
REPORT_WITHIN_S = 0.5
"""A report that is not made in this time says what the one before said."""


def activity_worker(
    client: Client,
    worker: NodeWorker,
    faults: FaultOutbox,
    health: HealthMonitor,
    reboot: Callable[[str | None], Awaitable[None]],
    interceptors: Sequence[Interceptor] = (),
    *,
    polls: int = 2,
) -> Worker:
    """The Temporal worker of this host, with the activities that it runs. ``polls``: how many ask for steps at once."""
    watcher = RankWatcher(worker, faults)
    launching = LaunchActivities(worker, watcher)
    watching = WatchActivities(watcher, health.telemetry)
    elements = ElementActivities(worker, launching, watcher)
    resetting = ResetActivities(worker)
    repairing = HostRepairActivities(worker, reboot)
    return Worker(
        client,
        task_queue=node_task_queue(worker.host),
        build_id=OUR_BUILD,
        activities=[
            launching.prepare_host,
            launching.launch_ranks,
            launching.stop_ranks,
            elements.launch_elements,
            elements.watch_elements,
            watching.watch_ranks,
            resetting.reset_gpu,
            repairing.reset_host,
            repairing.check_gpu,
            repairing.reboot_host,
            ArtifactActivities(worker.artifacts).read_output,
        ],
        interceptors=interceptors,
        max_concurrent_activities=1000,
        max_concurrent_activity_task_polls=polls,
    )


def node_converter(settings: Settings) -> DataConverter:
    """The data converter of this host: with its own keys, and it checks who signed its orders."""
    node = settings.node
    orders = None if node.order_keys is None else CheckingOrders(node.name, PinnedKeys(node.order_keys))
    return converter_of(settings, home=node_task_queue(node.name), orders=orders)


def order_guards(settings: Settings) -> list[Interceptor]:
    """What refuses orders that control did not sign. Empty: there is no key to check them with."""
    if settings.node.order_keys is None:
        return []
    kept = node_dir(settings.state_dir.resolve(), settings.node.name) / "used-orders.json"
    return [OrderGuard(required=settings.node.require_signed_orders, kept=kept)]


def report_maker(
    settings: Settings,
    inventory: HostInventory,
    worker: NodeWorker,
    health: HealthMonitor,
    fitness: GpuFitness,
    worker_url: str,
    unusable: Mapping[str, str] = MappingProxyType({}),
    why_stuck: Callable[[], str | None] = lambda: None,
) -> Callable[[], HostReport]:
    """Returns a function that makes the report which a lease renewal carries. ``why_stuck``: why no GPU of this host
    must get new work."""
    session = uuid.uuid4().hex
    inventory = inventory.model_copy(update={"outputs_root": str(outputs_root(settings))})
    boot = boot_id(node_dir(settings.state_dir.resolve(), settings.node.name), simulated=inventory.simulated)

    hashes: dict[str | None, str] = {}  # only the checkpoint root can change while this process lives

    def make_report() -> HostReport:
        attempts = worker.attempts()
        root = worker.checkpointing.root_id
        report = HostReport(
            name=settings.node.name,
            protocol=PROTOCOL,
            session=session,
            boot_id=boot,
            address=settings.node.address,
            url=worker_url,
            leaf=settings.node.leaf,
            spine=settings.node.spine,
            inventory=inventory,
            attempts=attempts,
            checkpoints=worker.checkpoints(attempts),
            checkpoint_root=root,
            telemetry=health.telemetry(),
            degraded={**health.degraded(), **fitness.unfit(), **unusable, **_of_all(inventory, why_stuck())},
        )
        if root not in hashes:
            hashes[root] = facts_hash(report)
        return report.model_copy(update={"facts": hashes[root]})

    return make_report


def _of_all(inventory: HostInventory, why: str | None) -> dict[str, str]:
    return {} if why is None else {gpu.uuid: why for gpu in inventory.gpus}


async def run_activities(
    settings: Settings,
    worker: NodeWorker,
    faults: FaultOutbox,
    health: HealthMonitor,
    reboot: Callable[[str | None], Awaitable[None]],
) -> None:
    """Connect to Temporal, as soon as it answers, and run this host's activities."""
    # Before an end of the lease ends attempts.
    finished = worker.finished_lately(FINISHED_WITHIN_S)
    watches = InterruptedWatches(worker.host, worker.attempts, worker.watched, finished)
    client = await connect(settings, converter=node_converter(settings), host=worker.host)
    steps = activity_worker(client, worker, faults, health, reboot, order_guards(settings))
    # Faults and reports go the same way as soon as it is there, so they use a renewed certificate, too.
    faults.client = client
    await watches.look(client)
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(watches.run(faults))
        await run_worker(settings, client, steps)
        looking.cancel()


def report_by_temporal(connection: Connection) -> Callable[[HostReport], Coroutine[Any, Any, LeaseAnswer]]:
    """Returns a function that sends a report as a workflow, for times when no service answers. A newer report ends
    the workflow of an older one."""

    async def report(made: HostReport) -> LeaseAnswer:
        try:
            return await connection.client.execute_workflow(
                HOST_REPORT_WORKFLOW,
                made,
                id=host_report_id(made.name),
                task_queue=CONTROL_TASK_QUEUE,
                result_type=LeaseAnswer,
                id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
                execution_timeout=REPORT_TIMEOUT,
                rpc_timeout=REPORT_TIMEOUT,
            )
        except (RPCError, WorkflowFailureError, RuntimeError, CannotOpen) as error:
            raise Unavailable(f"no answer through Temporal: {error}") from error

    return report


async def sweep_old(retentions: Sequence[LogRetention | RecordRetention]) -> None:
    """Remove logs and records of attempts that ended long ago, again and again."""
    while True:
        for retention in retentions:
            try:
                await asyncio.to_thread(retention.sweep)
            except OSError as error:  # the disk is full, so the removal cannot be recorded; try again the next time
                log.warning("retention.sweep_failed", error=str(error))
        await asyncio.sleep(SWEEP_S)


async def sweep_checkpoints(worker: NodeWorker) -> None:
    """Remove surplus checkpoints of running jobs, once a minute."""
    while True:
        await in_own_thread(worker.sweep_checkpoints, name="checkpoints")
        await asyncio.sleep(CHECKPOINT_SWEEP_S)


def health_monitor(
    settings: Settings,
    nvml: NvmlLibrary,
    inventory: HostInventory,
    home: Path,
    policy: FaultPolicy,
    on_fault: Callable[[FaultReport], None],
) -> HealthMonitor:
    """The monitor of this host's GPUs, not started yet."""
    history = FaultHistory(
        home / "gpu-history.jsonl",
        forget_before_ms=int((time.time() - FAULT_HISTORY.total_seconds()) * 1000),
    )
    return HealthMonitor(
        nvml,
        inventory,
        policy,
        host=settings.node.name,
        interval_s=settings.node.health_interval_s,
        max_temperature_c=settings.node.max_temperature_c,
        on_fault=on_fault,
        history=history,
        kernel_log=None if inventory.simulated or not settings.node.gpus else Path("/dev/kmsg"),
    )


def stages_of(
    settings: Settings,
    nvml: NvmlLibrary,
    inventory: HostInventory,
    home: Path,
    fitness: GpuFitness,
    sharing: Sharing,
    accountant: Accountant,
    identity: NodeIdentity | None = None,
) -> list[Stage]:
    """What this host does around each attempt, in the order in which it prepares.

    The accountant is last, so it begins last and ends first: a job pays only for what its ranks use, and not for the
    time in which the host overwrites the memory of its GPUs.
    """
    node = settings.node
    cuda = CudaStage(
        inventory.cuda_installations,
        inventory.cuda_version,
        inventory.unusable_cuda,
        default=node.cuda_default == "newest",
    )
    power_cap = PowerCap(nvml, [gpu.uuid for gpu in inventory.gpus], node.power_limit_w)
    rdma = Rdma(inventory, management=node.rdma_management)
    environments = environment_stages(settings, home, inventory, identity and ServiceUploads(settings, identity))
    return [cuda, *environments, power_cap, fitness, CpuBinding(inventory, home), rdma, sharing, accountant]


def retentions(settings: Settings, home: Path, worker: NodeWorker) -> list[LogRetention | RecordRetention]:
    """What removes the logs and records of attempts that ended long ago."""
    logs = LogRetention(home, settings.node.log_keep_days * 24 * 3600, settings.node.log_keep_mib << 20)
    return [logs, RecordRetention(home, worker.forget, settings.node.record_keep_hours * 3600)]


async def main() -> None:
    """Run the node worker until it is told to stop. Raises :class:`RestartRequired` in an exception group."""
    settings = read_settings()
    node = settings.node
    observe(f"node/{node.name}", settings, host=node.name)
    measure_for(settings.cluster.name)
    home = node_dir(settings.state_dir.resolve(), node.name)
    lease_file = lease_path(str(home))
    lease_loop, http_loop = OwnLoop("lease", uvloop.new_event_loop()), OwnLoop("http", uvloop.new_event_loop())
    identity = await NodeIdentity.begin(settings)
    nvml, inventory = open_gpus(node, home)
    ProcessRuntime.measure()
    # Connect lazily, so that the lease is kept while Temporal does not answer.
    client = await connect(settings, lazy=True, converter=node_converter(settings), host=node.name)
    policy = FaultPolicy.load(node.fault_policy)
    health = health_monitor(settings, nvml, inventory, home, policy, lambda fault: faults.report(fault))
    accountant = Accountant(home)
    health.observe_with(accountant)
    samples = sample_keeper(health, home, node)
    fitness = GpuFitness(
        nvml,
        inventory,
        node,
        own_pids=lambda uuid: worker.attempt_pids(uuid) | sharing.daemon_pids(uuid),
        on_fault=lambda fault: faults.report(fault),
    )
    scrubber = Scrubber(node, nvml, home, reset=lambda uuid: worker.reset_unused_gpu(uuid), on_failure=fitness.report)
    sharing = Sharing(node, nvml, inventory, home, reset=lambda uuid: worker.reset_unused_gpu(uuid), scrubber=scrubber)
    worker = NodeWorker(
        settings,
        nvml,
        inventory,
        health,
        stages=stages_of(settings, nvml, inventory, home, fitness, sharing, accountant, identity),
        lease_file=Path(lease_file),
        secrets=ServiceSecrets(settings, identity),
    )
    faults = FaultOutbox(home / "faults", client, worker, node.reset_attempts)
    indices = {gpu.uuid: gpu.index for gpu in inventory.gpus}
    attempts = AttemptWatch(node, nvml, home, accountant, policy, faults.report, indices, worker.checkpointing.clock)
    sessions = ExecSessions(home.resolve(), node.name, worker.start_helper, jailed=inventory.isolation == JAILED)
    routes = [
        *reading_routes(health, accountant),
        sample_route(samples.files),
        votes_route(lambda: lease_loop.ask(lease.votes)),
    ]
    http = NodeHttp(worker, sessions, node, routes, settings.tls, identity.contexts, revoked=lambda: lease.revoked)
    probe = DiskProbe.begin(home)
    lease = keeper_apart(
        settings,
        worker,
        report_maker(
            settings, inventory, worker, health, fitness, http.url, unusable(nvml, inventory), probe.why_stuck
        ),
        health.forget_resets_before,
        faults,
        LeaseFile(lease_file),
        identity,
    )
    REGISTRY.register(NodeMetrics(health, accountant, lambda: DiskRoom.of(home, kept_by_starts(node.disk_reserve_mib))))
    REGISTRY.register(LeaseMetrics(lease))
    log.info("node.starts", machine=inventory.machine, gpus=len(inventory.gpus), url=http.public_url)
    watch = NvmlWatch(nvml, node, home, inventory, is_paused=lambda: health.is_paused)
    reboot = HostReboot(node, home, inventory, worker)
    worker.start_guard()
    health.start()
    try:
        async with asyncio.TaskGroup() as group:
            works = [part.run() for part in (faults, watch, reboot, samples)]
            works += [
                lease_loop.run(lease.run),
                http_loop.run(partial(serve, http, sessions)),
                identity.keep(),
                attempts.run(worker),
                sweep_checkpoints(worker),
                sweep_old(retentions(settings, home, worker)),
                run_activities(settings, worker, faults, health, reboot),
            ]
            for work in works:
                group.create_task(work)
    finally:
        health.stop()
        worker.close()


def keeper_apart(
    settings: Settings,
    worker: NodeWorker,
    make_report: Callable[[], HostReport],
    forget_resets_before: Callable[[int], None],
    faults: FaultOutbox,
    record: LeaseRecord,
    identity: NodeIdentity,
) -> LeaseKeeper:
    """The keeper for a loop of its own. Ranks are ended, and Temporal is asked, in the loop that runs now."""
    main_loop, by_temporal = asyncio.get_running_loop(), report_by_temporal(faults)

    async def report(made: HostReport) -> LeaseAnswer:
        return await in_loop(main_loop, partial(by_temporal, made))

    lease = LeaseKeeper(settings, worker, make_report, forget_resets_before, report, record, identity)
    lease.read = Lane("report", patience_s=REPORT_WITHIN_S).run
    lease.carry_out = partial(in_loop, main_loop)
    return lease


async def serve(http: NodeHttp, sessions: ExecSessions) -> None:
    """Serve until cancelled, and close the commands beside ranks, which live in the loop of the server."""
    try:
        await http.run()
    finally:
        sessions.close()


async def main_with_restarts() -> None:
    """Run :func:`main`. If the node worker must restart, the process executes its program again and keeps its pid."""
    keep_private(settings_of("node").state_dir, make=True)
    try:
        await main()
    except* RestartRequired as group:
        log.warning("node.starts_anew", reason=str(group.exceptions[0]))
        for handler in logging.getLogger().handlers:
            handler.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
