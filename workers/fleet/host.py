"""One host of a fleet: the parts of a node worker, without threads and files that only a machine of its own needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import structlog
from temporalio.client import Client

from activities.senders import NamingItself
from gpu_platform.domain.contracts import node_task_queue
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.identity.signing import PinnedKeys
from gpu_platform.node.accounting.accounting import Accountant
from gpu_platform.node.fleet.node_worker import FleetLease, FleetNodeWorker
from gpu_platform.node.health.boot import boot_id
from gpu_platform.node.health.fault_policy import FaultPolicy
from gpu_platform.node.health.fitness import GpuFitness
from gpu_platform.node.health.host_reset import reboot_simulated
from gpu_platform.node.nvml import fault_injection
from gpu_platform.node.system.lease_file import lease_path
from gpu_platform.node.system.paths import control_dir, node_dir
from gpu_platform.settings import Settings
from gpu_platform.temporal.payloads.converter import data_converter
from gpu_platform.temporal.payloads.orders import CheckingOrders, OrderGuard
from workers.fleet.ballots import Ballots, FleetVotes
from workers.fleet.http import HostPort
from workers.fleet.spec import FleetHostSpec
from workers.fleet.transport import LocalTransport
from workers.node.fault_outbox import FaultOutbox
from workers.node.http import node_app
from workers.node.identity import NodeIdentity
from workers.node.lease_keeper import LeaseKeeper
from workers.node.main import activity_worker, health_monitor, report_by_temporal, report_maker
from workers.node.members import MemberLists
from workers.node.nvml_watch import open_gpus
from workers.node.peer_votes import votes_route
from workers.node.readings import reading_routes
from workers.node.samples import sample_route

log = structlog.get_logger()

FIRST_CALM_S = 1.0


class FleetIdentity(NodeIdentity):
    """As :class:`NodeIdentity`, with connections that cost little."""

    def client(self, timeout_s: float) -> httpx.AsyncClient:
        """This host's own client, so that it has connections of its own, as a machine has."""
        return httpx.AsyncClient(timeout=timeout_s, trust_env=False, transport=LocalTransport())


@dataclass(frozen=True)
class Shared:
    """What all hosts of a fleet process share."""

    settings: Settings
    """Those of the process; ``node`` is a pattern for all hosts."""
    client: Client
    keys: KeyRing | None
    order_keys: PinnedKeys | None
    policy: FaultPolicy
    members: MemberLists
    ballots: Ballots


class FleetHost:
    """One host. :meth:`run` is its life from power on to power off."""

    def __init__(self, shared: Shared, spec: FleetHostSpec, machine: str, port: HostPort) -> None:
        self._shared = shared
        changed = {"name": spec.name, "simulate": machine, "leaf": spec.leaf, "spine": spec.spine}
        node = shared.settings.node.model_copy(update=changed)
        self._settings = shared.settings.model_copy(update={"node": node})
        self.name = spec.name
        self.home = node_dir(shared.settings.state_dir.resolve(), spec.name)
        self._port = port
        self._rebooted = asyncio.Event()
        self.registered = asyncio.Event()
        """Set once the host has its first lease."""
        self._look: Callable[[], None] = lambda: None

    @property
    def control_dir(self) -> Path:
        """Where faults of its GPUs are injected."""
        return control_dir(self.home)

    def look(self) -> bool:
        """Read the GPUs once. True: nothing is wrong with them, so no further look is needed before a change."""
        self._look()
        return fault_injection.is_perfect(self.control_dir)

    async def run(self, on_work: Callable[[], None]) -> None:
        """Be this host until cancelled. After a reboot it begins again. ``on_work``: see :class:`FleetNodeWorker`."""
        while True:
            self._rebooted.clear()
            async with self._powered(on_work) as works, asyncio.TaskGroup() as group:
                running = [group.create_task(work) for work in works]
                await self._rebooted.wait()
                for task in running:
                    task.cancel()

    @asynccontextmanager
    async def _powered(self, on_work: Callable[[], None]) -> AsyncGenerator[list[Any]]:
        settings, shared = self._settings, self._shared
        node = settings.node
        nvml, inventory = open_gpus(node, self.home)
        health = health_monitor(settings, nvml, inventory, self.home, shared.policy, lambda fault: faults.report(fault))
        accountant = Accountant(self.home)
        health.observe_with(accountant)
        fitness = GpuFitness(
            nvml, inventory, node, own_pids=lambda uuid: worker.attempt_pids(uuid), on_fault=lambda f: faults.report(f)
        )
        lease_record = FleetLease(Path(lease_path(str(self.home))))
        lease_record.on_lease = self.registered.set
        worker = FleetNodeWorker(
            settings, nvml, inventory, health, stages=[fitness, accountant], lease=lease_record, on_work=on_work
        )
        client = self._client()
        faults = FaultOutbox(self.home / "faults", client, worker, node.reset_attempts)
        lease = LeaseKeeper(
            settings,
            worker,
            report_maker(settings, inventory, worker, health, fitness, self._port.url),
            health.forget_resets_before,
            report_by_temporal(faults),
            lease_record,
            FleetIdentity(settings),
            shared.members,
            FleetVotes(self.name, shared.ballots),
        )
        lease.announces_restart = lambda: fault_injection.has_power(self.control_dir) and bool(worker.local.open())

        async def votes() -> dict[str, float]:
            return lease.votes()

        routes = [*reading_routes(health, accountant), sample_route(None), votes_route(votes)]
        self._port.answer_with(lambda: node_app(worker, self._port.token, None, routes))

        async def reboot(of_boot: str | None) -> None:
            if boot_id(self.home, simulated=True) == of_boot:
                pids = {pid for gpu in inventory.gpus for pid in worker.attempt_pids(gpu.uuid)}
                await asyncio.to_thread(reboot_simulated, self.home, pids)
                asyncio.get_running_loop().call_later(FIRST_CALM_S, self._rebooted.set)

        guard = []
        if shared.order_keys is not None:
            guard = [OrderGuard(required=node.require_signed_orders)]
        steps = activity_worker(client, worker, faults, health, reboot, guard, polls=1)
        shared.ballots.join(self.name, lease.vote)

        def look() -> None:
            health.take_events()
            health.poll_once()

        self._look = look
        health.poll_once()
        try:
            yield [lease.run(), faults.run(), steps.run()]
        finally:
            self._look = lambda: None
            shared.ballots.leave(self.name)
            self._port.answer_with(None)
            worker.end_simulated(f"{self.name} was switched off", relaxed=True)
            worker.close()

    def _client(self) -> Client:
        """A client with this host's own keys, on the connection that all share."""
        shared, queue = self._shared, node_task_queue(self.name)
        orders = None if shared.order_keys is None else CheckingOrders(self.name, shared.order_keys)
        converter = data_converter(
            None if shared.keys is None else shared.keys.scoped(queue),
            home=queue,
            accepts_plain=shared.settings.temporal.plain_payloads == "accept",
            orders=orders,
        )
        config = shared.client.config()
        interceptors = [*config["interceptors"], NamingItself(self.name)]
        return Client(**{**config, "data_converter": converter, "interceptors": interceptors})
