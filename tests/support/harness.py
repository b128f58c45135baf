"""The platform in one process, on real parts: a Temporal dev server, a database, supervised ranks on simulated hosts.

Only the processes are missing (``tests/integration`` has those), so a test starts in milliseconds
and can look into everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Interceptor, Worker, WorkerDeploymentConfig

from activities.notifications import NotificationActivities
from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.events import Event
from gpu_platform.domain.hosts.lease import HostReport
from gpu_platform.domain.jobs.array import Array, ArraySpec
from gpu_platform.domain.jobs.array_steps import ArrayInput
from gpu_platform.domain.jobs.attempt import StopRequest
from gpu_platform.domain.jobs.job import Interrupt, Job, JobInput
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, GpuState, JobState
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.attempt_watch import AttemptWatch
from gpu_platform.node.health.boot import boot_id
from gpu_platform.node.health.fault_policy import FaultPolicy
from gpu_platform.node.health.fitness import GpuFitness
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.health.host_reset import reboot_simulated
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.isolation.scrub.scrub_policy import Scrubber
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.nvml.opening import open_nvml
from gpu_platform.node.sharing.stage import Sharing
from gpu_platform.node.system.paths import control_dir, node_dir
from gpu_platform.settings import NodeSettings, RemediationSettings, SchedulerSettings, Settings
from gpu_platform.store import Store, events
from gpu_platform.store.hosts import gpus, reports
from gpu_platform.store.jobs import arrays, elements, jobs
from gpu_platform.store.leadership import leader, leases
from gpu_platform.store.reservations import allocations
from gpu_platform.temporal.job_workflows import TemporalJobWorkflows, WorkflowLife
from gpu_platform.temporal.search_attributes import of_submission
from tests.support.waiting import DEADLINE_S, eventually
from workers.control import control_worker
from workers.kept_workflows import Keeper, kept_workflows
from workers.node.fault_outbox import FaultOutbox
from workers.node.main import activity_worker, report_maker
from workers.scheduler.housekeeping import Housekeeping
from workers.scheduler.leader import Leader
from workers.scheduler.main import scheduler_worker

LEASE_TTL_S = 3600.0
"""Nodes report only when a test says so. The lease is so long that none is lost by itself."""


_FAST: dict[str, Any] = {"health_interval_s": 0.05, "accounting_interval_s": 0.2, "time_limit_slack_s": 0.5}


class SimulatedNode:
    """The parts of a node worker, as ``workers.node`` connects them. Reports go directly to the store."""

    def __init__(self, platform: Platform, name: str, machine: str) -> None:
        self.name = name
        self.settings = Settings(
            state_dir=platform.state_dir,
            node=NodeSettings(name=name, simulate=machine, **{**_FAST, **platform.node_fields(name)}),
        )
        self._platform = platform
        self._home = node_dir(platform.state_dir, name)
        self.nvml = nvml = open_nvml(self.settings.node, self._home)
        inventory = read_inventory(nvml, self.settings.node)
        self.health = HealthMonitor(
            nvml,
            inventory,
            FaultPolicy.load("platform"),
            host=name,
            interval_s=self.settings.node.health_interval_s,
            max_temperature_c=85,
            on_fault=lambda fault: self.faults.report(fault),
        )
        accountant = Accountant(self._home)
        self.health.observe_with(accountant)
        fitness = GpuFitness(
            nvml,
            inventory,
            self.settings.node,
            own_pids=lambda uuid: self.worker.attempt_pids(uuid) | sharing.daemon_pids(uuid),
            on_fault=lambda fault: self.faults.report(fault),
        )
        reset = lambda uuid: self.worker.reset_unused_gpu(uuid)  # noqa: E731
        scrubber = Scrubber(self.settings.node, nvml, self._home, reset=reset, on_failure=fitness.report)
        sharing = Sharing(self.settings.node, nvml, inventory, self._home, reset=reset, scrubber=scrubber)
        self.worker = NodeWorker(self.settings, nvml, inventory, self.health, stages=[fitness, sharing, accountant])
        self.client = platform.node_client(name)
        self.faults = FaultOutbox(self._home / "faults", self.client, self.worker, reset_attempts=2)
        self.attempts = AttemptWatch(
            self.settings.node,
            nvml,
            self._home,
            accountant,
            FaultPolicy.load("platform"),
            self.faults.report,
            {gpu.uuid: gpu.index for gpu in inventory.gpus},
            self.worker.checkpointing.clock,
        )
        self._inventory = inventory
        self._report_maker = lambda: report_maker(
            self.settings, inventory, self.worker, self.health, fitness, "http://127.0.0.1:0"
        )
        self._make_report = self._report_maker()

    async def reboot(self, of_boot: str | None) -> None:
        """Reboot as ``workers.node.reboot`` does, but in this process."""
        if boot_id(self._home, simulated=True) == of_boot:
            pids = {pid for gpu in self._inventory.gpus for pid in self.worker.attempt_pids(gpu.uuid)}
            await asyncio.to_thread(reboot_simulated, self._home, pids)
            self._make_report = self._report_maker()

    def made_report(self) -> HostReport:
        return self._make_report()

    async def report(self, **fields: Any) -> None:
        """Send a report, with other ``fields`` if any are given, and obey the answer."""
        report = self._make_report().model_copy(update=fields)
        answer = await asyncio.to_thread(
            reports.report_host, self._platform.store, report, ttl_s=LEASE_TTL_S, now=datetime.now(UTC)
        )
        for key in answer.kill:
            await self.worker.stop(StopRequest(key=key, host=self.name, grace_s=0, reason="stale"))

    async def end_ranks(self) -> None:
        """End what a test leaves running."""
        for key in self.worker.attempts():
            with contextlib.suppress(PlatformError):
                await self.worker.stop(StopRequest(key=key, host=self.name, grace_s=0, reason="the test is over"))

    async def lose(self) -> None:
        """Declare the host LOST at once, as the leader does after a silent lease."""
        store = self._platform.store
        lease = leases.read_leases(store, LEASE_TTL_S).stamps[self.name]
        housekeeping = Housekeeping(store, self._platform.client, LEASE_TTL_S)
        await housekeeping.signal_all(
            await asyncio.to_thread(leases.expire_leases, store, {self.name: lease}, datetime.now(UTC))
        )

    def strike(self, gpu_index: int, **fault: Any) -> None:
        """Inject a fault into a GPU."""
        inject_fault(control_dir(self._home), gpu_index, **fault)

    @contextmanager
    def held_resets(self) -> Iterator[None]:
        """No reset of a GPU of this host ends in this block. Only faults that change no condition can be injected."""
        with (control_dir(self._home) / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class Platform:
    """The platform of one test."""

    def __init__(self, client: Client, store: Store, state_dir: Path) -> None:
        self.client = client
        self.store = store
        self.state_dir = state_dir
        self.nodes: dict[str, SimulatedNode] = {}
        self.settings = Settings(state_dir=state_dir)
        self.leading: Leader | None = None
        self.node_fields: Callable[[str], Mapping[str, Any]] = lambda name: {}
        self.node_client: Callable[[str], Client] = lambda name: client
        self.node_guards: Callable[[], Sequence[Interceptor]] = list

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        client: Client,
        store: Store,
        state_dir: Path,
        machines: dict[str, str],
        *,
        schedule: bool = True,
        silent: Set[str] = frozenset(),
        cached: int = 2000,
        policy: Mapping[str, Any] | None = None,
        remediation: RemediationSettings | None = None,
        notifications: NotificationActivities | None = None,
        node_fields: Callable[[str], Mapping[str, Any]] | None = None,
        node_client: Callable[[str], Client] | None = None,
        node_guards: Callable[[], Sequence[Interceptor]] = list,
        signs_orders: bool = False,
        deployment: WorkerDeploymentConfig | None = None,
    ) -> AsyncIterator[Platform]:
        """``machines`` maps host names to machine types. ``schedule=False``: nothing is ever placed.

        A host in ``silent`` has registered but takes no activities until ``listening``. ``policy``: its fields.
        ``node_fields``: more settings of a host, by its name. ``node_client``: the host's own client of Temporal.
        ``node_guards``: what its worker asks before it runs an activity. ``signs_orders``, ``deployment``: see
        ``control_worker``.
        """
        platform = cls(client, store, state_dir)
        platform.node_client = node_client or platform.node_client
        platform.node_guards = node_guards
        if node_fields is not None:
            platform.node_fields = node_fields
        async with contextlib.AsyncExitStack() as stack:
            for name, machine in machines.items():
                node = SimulatedNode(platform, name, machine)
                platform.nodes[name] = node
                node.health.start()
                stack.callback(node.health.stop)
                stack.callback(node.worker.close)
                stack.push_async_callback(node.end_ranks)
                await node.report()
                if name not in silent:
                    await stack.enter_async_context(platform.listening(name))
                delivering = asyncio.create_task(node.faults.run())
                stack.push_async_callback(_cancel, delivering)
                looking = asyncio.create_task(node.attempts.run(node.worker))
                stack.push_async_callback(_cancel, looking)
            executor = stack.enter_context(ThreadPoolExecutor(8))
            settings = Settings(state_dir=state_dir, scheduler=SchedulerSettings(poll_ms=25, policy=dict(policy or {})))
            platform.settings = settings
            control = control_worker(
                client,
                store,
                executor,
                settings=remediation,
                notifications=notifications,
                lease_ttl_s=LEASE_TTL_S,
                signs_orders=signs_orders,
                checked=True,
                max_cached_workflows=cached,
                deployment_config=deployment,
            )
            await stack.enter_async_context(control)
            if schedule:
                platform.leading = Leader(client, store, settings.scheduler, LEASE_TTL_S, settings.job_archive)
                await stack.enter_async_context(scheduler_worker(client, platform.leading))
                await platform.keeper().look()
            try:
                yield platform
            finally:
                if schedule:
                    await client.get_workflow_handle("scheduler").terminate()

    def listening(self, name: str) -> Worker:
        """``async with`` it: the host runs its activities in the block."""
        node = self.nodes[name]
        return activity_worker(node.client, node.worker, node.faults, node.health, node.reboot, self.node_guards())

    def keeper(self) -> Keeper:
        """What a scheduler or control worker that has just started looks after."""
        return Keeper(self.client, self.store, kept_workflows(self.settings))

    async def change_leader(self) -> None:
        """Let the scheduler stop, and a new one without memory lead."""
        epoch = leader.current_epoch(self.store)
        await self.client.get_workflow_handle("scheduler").terminate()
        await self.keeper().look()
        await eventually(lambda: leader.current_epoch(self.store) > epoch, "a new leader")

    # -- verbs ---------------------------------------------------------------------------------

    async def submit(self, spec: JobSpec) -> str:
        """Submit a job as the service does. Returns its id."""
        return await self.begin(await self.record(spec), spec)

    async def record(self, spec: JobSpec) -> str:
        """Write a job to the store, without a workflow."""
        job_id = f"j-{uuid.uuid4().hex[:12]}"
        now = datetime.now(UTC)
        await asyncio.to_thread(
            jobs.submit_job, self.store, job_id, spec, actor=spec.user, now=now, idempotency_key=None
        )
        return job_id

    async def begin(self, job_id: str, spec: JobSpec) -> str:
        """Start the workflow of a job."""
        await self.client.start_workflow(
            "JobWorkflow",
            JobInput(job_id=job_id, spec=spec),
            id=job_id,
            task_queue="control",
            search_attributes=of_submission(spec),
        )
        return job_id

    async def submit_array(self, spec: JobSpec, indices: str, **fields: Any) -> str:
        """Submit an array as the service does. ``fields``: of its :class:`ArraySpec`. Returns its id."""
        array_id, now = f"a-{uuid.uuid4().hex[:12]}", datetime.now(UTC)
        whole = ArraySpec(indices=indices, **fields)
        array, _ = await asyncio.to_thread(
            arrays.submit_array,
            self.store,
            array_id,
            spec,
            whole,
            actor=spec.user,
            now=now,
            idempotency_key=None,
        )
        await self.client.start_workflow(
            "ArrayWorkflow",
            ArrayInput.of(array, whole),
            id=array_id,
            task_queue="control",
            search_attributes=of_submission(spec),
        )
        return array_id

    async def array_ends(self, array_id: str, state: ArrayState, within_s: float = DEADLINE_S) -> Array:
        """Wait until the array has ended in this state and its workflow is closed."""

        def ended() -> Array | None:
            array = arrays.get_array(self.store, array_id)
            return array if array.state.is_terminal else None

        array = await eventually(ended, f"array {array_id} to end", within_s)
        assert array.state is state, (array.state, array.counts)

        async def closed() -> bool:
            return (await self.workflow(array_id).describe()).close_time is not None

        await eventually(closed, f"the workflow of {array_id} to close", within_s)
        return array

    async def reaches_element(self, array_id: str, index: int, *states: JobState, within_s: float = DEADLINE_S) -> Job:
        """As :meth:`reaches`, for an element, which may have no row yet."""
        job_id = element_id(array_id, index)
        there = lambda: elements.states_of(self.store, [job_id])  # noqa: E731
        await eventually(there, f"{job_id} to enter the queue", within_s)
        return await self.reaches(job_id, *states, within_s=within_s)

    async def ends_element(self, array_id: str, index: int, state: JobState, within_s: float = DEADLINE_S) -> Job:
        """Wait until an element, which may have no row yet, is in this terminal state."""
        return await self.reaches_element(array_id, index, state, within_s=within_s)

    def workflow(self, job_id: str) -> WorkflowHandle[Any, Any]:
        return self.client.get_workflow_handle(job_id)

    async def signal(self, job_id: str, name: str, argument: BaseModel | None = None) -> None:
        """Send a signal to the workflow of the job or array; without ``argument`` that of a user."""
        await self.workflow(job_id).signal(name, argument or Interrupt(actor="test", reason="asked"))

    async def forgotten(self, job_id: str) -> None:
        """Let Temporal forget the job's workflow, as if its database was lost."""
        execution = WorkflowExecution(workflow_id=job_id)
        await self.client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(namespace=self.client.namespace, workflow_execution=execution)
        )
        workflows = TemporalJobWorkflows(self.client)

        async def unknown() -> bool:
            return (await workflows.look(job_id)).life is WorkflowLife.UNKNOWN

        await eventually(unknown, "Temporal to forget the workflow")

    def job(self, job_id: str) -> Job:
        return jobs.get_job(self.store, job_id)

    async def reaches(self, job_id: str, *states: JobState, within_s: float = DEADLINE_S) -> Job:
        """Wait until the job is in one of these states."""

        def there() -> Job | None:
            job = self.job(job_id)
            if job.state.is_terminal and job.state not in states:
                raise AssertionError(f"{job_id} ended {job.state}: {job.failure}")
            return job if job.state in states else None

        return await eventually(there, f"{job_id} to be {'/'.join(states)}, is {self.job(job_id).state}", within_s)

    async def ends(self, job_id: str, state: JobState, within_s: float = DEADLINE_S) -> Job:
        """Wait until the job is in this terminal state and its workflow is closed."""
        job = await self.reaches(job_id, state, within_s=within_s)

        async def closed() -> bool:
            return (await self.workflow(job_id).describe()).close_time is not None

        await eventually(closed, f"the workflow of {job_id} to close", within_s)
        return job

    async def nothing_leaked(self) -> None:
        """Check that no GPU is held, ALLOCATED or IN_USE, that no job waits, and that no rank's process is left."""
        held = await eventually(lambda: not allocations.held_attempts(self.store) or None, "every GPU to be released")
        assert held
        states = {gpu.state for gpu in gpus.list_gpus(self.store)}
        assert not states & {GpuState.ALLOCATED, GpuState.IN_USE}, states
        for node in self.nodes.values():
            for gpu in gpus.list_gpus(self.store, host=node.name):
                assert node.worker.gpu_processes(gpu.info.uuid) == []

    def events(self, job_id: str, kind: str) -> list[Event]:
        """The job's events of one kind, in order."""
        return [event for event in events.read_events(self.store, 0, job_id=job_id) if event.kind == kind]

    def kinds(self, job_id: str) -> list[str]:
        """The kinds of the job's events, in order."""
        return [event.kind for event in events.read_events(self.store, 0, job_id=job_id)]


async def _cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
