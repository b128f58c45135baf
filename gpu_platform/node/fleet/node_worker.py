"""The node worker of a host in a fleet: ranks of simulated duration need no process, all others are real ones.

Steps of jobs and the lease call it as they call :class:`NodeWorker`, so they do not know the difference.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable, InvalidRequest, PreflightFailed
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.lease import SavedCheckpoint
from gpu_platform.domain.jobs.attempt import (
    HostExits,
    HostPlan,
    Launched,
    LaunchRequest,
    Prepared,
    Stopped,
    StopRequest,
    WatchRequest,
)
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.node.fleet.attempts import SimulatedAttempt, SimulatedAttempts
from gpu_platform.node.fleet.commands import SimulatedCommand, is_simulated
from gpu_platform.node.health import gpu_reset
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.launching import LEASE_PATIENCE_S, NO_LEASE
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.processes.logs import LogRead
from gpu_platform.node.stages import Stage
from gpu_platform.node.system import lease_file
from gpu_platform.node.system.lease_file import LeaseFile
from gpu_platform.node.system.lease_page import Lease
from gpu_platform.settings import Settings

RENDEZVOUS_PORT = 29_500
"""No process listens: ranks of simulated duration need no port of their own."""
_LEASE_LOOK_S = 0.25


class FleetLease:
    """The lease of a fleet host, in this process. While real ranks are there it is in the host's page, too, where their
    supervisors read it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._page: LeaseFile | None = None
        self.current: Lease | None = None
        self.on_lease: Callable[[], None] = lambda: None
        """Called when the host gets its first lease."""
        self.has_real_ranks: Callable[[], bool] = lambda: False

    def read(self) -> Lease | None:
        """The lease. None: there was none yet."""
        return self.current

    def write(self, lease: Lease) -> None:
        """Replace the lease."""
        first = lease.leased_until_s > 0 and (self.current is None or self.current.leased_until_s <= 0)
        self.current = lease
        if first:
            self.on_lease()
        if self.has_real_ranks():
            self.save()

    def save(self) -> None:
        """Write the lease into the page."""
        if self.current is not None:
            self._page = self._page or LeaseFile(str(self.path))
            self._page.write(self.current)


class FleetNodeWorker(NodeWorker):
    """See :class:`NodeWorker`. ``on_work``: called when GPUs begin or end to work for simulated ranks."""

    def __init__(
        self,
        settings: Settings,
        nvml: NvmlLibrary,
        inventory: HostInventory,
        health: HealthMonitor,
        *,
        stages: Sequence[Stage],
        lease: FleetLease,
        on_work: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(settings, nvml, inventory, health, stages=stages, lease_file=lease.path)
        self._lease = lease
        self._on_work = on_work
        self.simulated = SimulatedAttempts(self.host, self._work)
        lease.has_real_ranks = lambda: bool(self.local.open())

    def prepare(self, plan: HostPlan) -> Prepared:
        """See :meth:`NodeWorker.prepare`."""
        if not _is_simulated(plan):
            self._lease.save()
            return super().prepare(plan)
        return self._prepare(plan).prepared

    def launch(self, request: LaunchRequest) -> Launched:
        """See :meth:`NodeWorker.launch`."""
        if not _is_simulated(request.plan):
            self._lease.save()
            return super().launch(request)
        attempt = self._prepare(request.plan)
        if attempt.started_at_ms is None:
            self._check_lease(request.plan)
        started = self.simulated.start(attempt)
        own = attempt.prepared if request.rendezvous is None else None
        return Launched(host=self.host, ranks=started, prepared=own)

    async def wait_for_lease(self, plan: HostPlan) -> None:
        """See :meth:`NodeWorker.wait_for_lease`."""
        deadline = time.monotonic() + LEASE_PATIENCE_S
        while lease_file.is_renewable(self._lease.current, plan.term) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_LEASE_LOOK_S)

    async def watch(self, request: WatchRequest) -> HostExits:
        """See :meth:`NodeWorker.watch`."""
        if self._is_real(request.key):
            return await super().watch(request)
        return await self.simulated.watch(request)

    async def stop(self, request: StopRequest) -> Stopped:
        """See :meth:`NodeWorker.stop`. An attempt that this host never saw is closed for both kinds of ranks."""
        attempt = self.simulated.stop(request.key, request.reason)
        if attempt is None:
            return await super().stop(request)
        exits = [attempt.ended(spec.rank, time.time_ns() // 1_000_000) for spec in attempt.plan.ranks]
        known = [exit for exit in exits if exit is not None]
        return Stopped(host=self.host, exits=known, usage=attempt.usage())

    def attempts(self) -> list[AttemptKey]:
        """See :meth:`NodeWorker.attempts`."""
        return [*super().attempts(), *self.simulated.open()]

    def checkpoints(self, keys: Sequence[AttemptKey]) -> list[SavedCheckpoint]:
        """See :meth:`NodeWorker.checkpoints`. Ranks of simulated duration write none."""
        real = [key for key in keys if self.simulated.get(key) is None]
        if not real and self.checkpointing.root_id is not None:
            return []
        return super().checkpoints(real)

    def stopped_because(self, key: AttemptKey, at_ms: int) -> str | None:
        """See :meth:`NodeWorker.stopped_because`."""
        attempt = self.simulated.get(key)
        if attempt is None:
            return super().stopped_because(key, at_ms)
        return attempt.closed[1] if attempt.closed is not None and attempt.closed[0] <= at_ms else None

    def overdue(self, key: AttemptKey) -> tuple[FailureCause, str] | None:
        """See :meth:`NodeWorker.overdue`."""
        return super().overdue(key) if self.simulated.get(key) is None else None

    def running_ranks(self, key: AttemptKey) -> int:
        """See :meth:`NodeWorker.running_ranks`."""
        attempt = self.simulated.get(key)
        if attempt is None:
            return super().running_ranks(key)
        now_ms = time.time_ns() // 1_000_000
        return sum(attempt.ended(spec.rank, now_ms) is None for spec in attempt.plan.ranks)

    def gpus_of(self, key: AttemptKey) -> list[str]:
        """See :meth:`NodeWorker.gpus_of`."""
        attempt = self.simulated.get(key)
        return super().gpus_of(key) if attempt is None else attempt.plan.gpu_uuids

    def attempts_on(self, uuid: str) -> list[AttemptKey]:
        """See :meth:`NodeWorker.attempts_on`."""
        return [*super().attempts_on(uuid), *self.simulated.on_gpu(uuid)]

    def reset_gpu(self, uuid: str) -> None:
        """See :meth:`NodeWorker.reset_gpu`."""
        if keys := self.simulated.on_gpu(uuid):
            raise PreflightFailed(
                f"GPU {uuid} cannot be reset: simulated ranks of {keys[0]} hold it",
                kind=blame(FailureCause.GPU_UNFIT),
                gpu_uuid=uuid,
            )
        super().reset_gpu(uuid)

    def read_log(self, key: AttemptKey, rank: int, offset: int = 0, limit: int = 1 << 20) -> LogRead:
        """See :meth:`NodeWorker.read_log`. Ranks of simulated duration write nothing."""
        if self.simulated.get(key) is None:
            return super().read_log(key, rank, offset, limit)
        return LogRead(b"", 0, 0, "a rank of simulated duration writes nothing")

    async def end_ranks_without_lease(self) -> None:
        """See :meth:`NodeWorker.end_ranks_without_lease`."""
        self.end_simulated(f"host {self.host} was cut off: its lease ended, so the job may start elsewhere")
        await super().end_ranks_without_lease()

    def end_simulated(self, reason: str, *, relaxed: bool = False) -> None:
        """End all ranks of simulated duration. ``relaxed``: those of jobs with ``fencing: relaxed``, too."""
        for key in self.simulated.open():
            attempt = self.simulated.get(key)
            if attempt is not None and (relaxed or attempt.plan.fencing is not Fencing.RELAXED):
                self.simulated.stop(key, reason)

    def _prepare(self, plan: HostPlan) -> SimulatedAttempt:
        self.simulated.check_open(plan.key)
        known = self.simulated.get(plan.key)
        if known is not None:
            return known
        self._check_lease(plan)
        if plan.require_isolation:
            raise HostUnavailable(f"{plan.host} is a host of a fleet: it does not isolate ranks (require_isolation)")
        for uuid in plan.gpu_uuids:
            gpu_reset.verify_gpu(self._nvml, uuid)
        try:
            commands = {spec.rank: SimulatedCommand.parse(plan.program(spec).command) for spec in plan.ranks}
        except InvalidRequest as error:
            raise PreflightFailed(error.message, kind=blame(FailureCause.REQUEST), host=plan.host) from error
        prepared = Prepared(host=self.host, address=self._node.address, rendezvous_port=RENDEZVOUS_PORT)
        return self.simulated.prepare(plan, commands, prepared)

    def _check_lease(self, plan: HostPlan) -> None:
        why = lease_file.refusal(self._lease.current, plan.term)
        if why is not None:
            raise HostUnavailable(f"{plan.host} does not start attempt {plan.key}: {why}", **{NO_LEASE: True})

    def _work(self, uuids: list[str], begins: bool) -> None:
        for uuid in uuids:
            self._nvml.simulate_work(uuid, begins=begins)
        self._on_work()

    def _is_real(self, key: AttemptKey) -> bool:
        return self.simulated.get(key) is None and self.local.plan(key) is not None


def _is_simulated(plan: HostPlan) -> bool:
    """True if any rank is of simulated duration. Then all must be: a gang is simulated or real."""
    return any(is_simulated(plan.program(spec).command) for spec in plan.ranks)
