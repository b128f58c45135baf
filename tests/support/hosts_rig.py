"""A simulated host for tests: real processes, real supervisors, and GPUs that can be struck."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import (
    FaultReport,
    HostExits,
    HostPlan,
    Launched,
    LaunchRequest,
    RankSpec,
    Stopped,
    StopRequest,
    WatchRequest,
)
from gpu_platform.node.health.fault_policy import FaultPolicy
from gpu_platform.node.health.health import HealthMonitor
from gpu_platform.node.inventory.inventory import read_inventory
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.nvml.opening import open_nvml
from gpu_platform.node.processes.secret_delivery import SecretSource
from gpu_platform.node.processes.stopping import attempt_processes
from gpu_platform.node.stages import Stage
from gpu_platform.node.system import paths
from gpu_platform.settings import NodeSettings, Settings

RESET_FOR_EVER = Path(__file__).parent / "reset_for_ever.yaml"
"""A fault policy for tests that inject faults into a GPU again and again."""


class NoFaults:
    """The faults of a host whose GPUs have none."""

    def recent_fault(self, key: AttemptKey) -> None:
        return None

    async def until_told(self, key: AttemptKey) -> None:
        return None


class HostRig:
    """One simulated host. ``restart`` gives it a new node worker, as a restarted node worker has."""

    def __init__(
        self,
        state_dir: Path,
        *,
        machine: str = "dgx-h100",
        name: str = "box",
        dev: Path = Path("/dev"),
        stages: Sequence[Stage] = (),
        nvml: NvmlLibrary | None = None,
        secrets: SecretSource | None = None,
        **node: Any,
    ) -> None:
        """``node``: more of its settings. ``dev``: where nodes of its GPUs are. ``nvml``: another library than the
        simulated one."""
        simulate = machine if nvml is None else None
        self.settings = Settings(state_dir=state_dir, node=NodeSettings(name=name, simulate=simulate, **node))
        self._dev = dev
        self._stages = stages
        self._secrets = secrets
        self.home = paths.node_dir(state_dir.resolve(), name)
        self.nvml = nvml or open_nvml(self.settings.node, self.home)
        self.inventory = read_inventory(self.nvml, self.settings.node)
        self.worker = self._new_worker()
        self.keys: list[AttemptKey] = []

    def restart(self, stages: Sequence[Stage] | None = None) -> NodeWorker:
        """Make a new node worker, as a restarted node worker has. Returns it."""
        self.worker.close()
        self._stages = self._stages if stages is None else stages
        self.worker = self._new_worker()
        return self.worker

    def _new_worker(self) -> NodeWorker:
        return NodeWorker(
            self.settings, self.nvml, self.inventory, dev=self._dev, stages=self._stages, secrets=self._secrets
        )

    def key(self, attempt: int = 1, job_id: str | None = None) -> AttemptKey:
        """The key of a new attempt, which is stopped at the end of the test."""
        key = AttemptKey(job_id=job_id or f"job-{uuid.uuid4().hex[:12]}", attempt=attempt)
        self.keys.append(key)
        return key

    def plan(
        self,
        *command: str,
        key: AttemptKey | None = None,
        ranks: int = 1,
        env: dict[str, str] | None = None,
        workdir: str | None = None,
        **changes: Any,
    ) -> HostPlan:
        """A host plan that runs ``command`` with one GPU for each rank."""
        if key is not None and key not in self.keys:
            self.keys.append(key)
        gpus = [gpu.uuid for gpu in self.inventory.gpus]
        specs = [
            RankSpec(
                rank=rank,
                local_rank=rank,
                gpu_uuids=[gpus[rank]],
            )
            for rank in range(ranks)
        ]
        plan = HostPlan(
            key=key or self.key(),
            host=self.settings.node.name,
            user="ada",
            namespace="default",
            world_size=ranks,
            command=list(command),
            env=env or {},
            workdir=workdir,
            ranks=specs,
            gpu_uuids=gpus[:ranks],
        )
        return plan.model_copy(update=changes)

    def launch(self, plan: HostPlan) -> Launched:
        """Launch the ranks of a plan."""
        return self.worker.launch(LaunchRequest(plan=plan))

    async def watch(self, plan: HostPlan, timeout_s: float = 20.0) -> HostExits:
        """Wait for the end of the ranks."""
        request = WatchRequest(key=plan.key, host=plan.host, ranks=[rank.rank for rank in plan.ranks])
        return await asyncio.wait_for(self.worker.watch(request), timeout_s)

    async def stop(self, key: AttemptKey, grace_s: float = 0.0, timeout_s: float = 20.0) -> Stopped:
        """Stop an attempt."""
        request = StopRequest(key=key, host=self.settings.node.name, grace_s=grace_s, reason="test")
        return await asyncio.wait_for(self.worker.stop(request), timeout_s)

    def processes(self, key: AttemptKey) -> dict[int, int]:
        """Living processes of the attempt: their pid as they see it themselves -> their pid here."""
        ranks = self.worker.local.ranks(key)
        return {own_pid(process.pid): process.pid for process in attempt_processes(self.home, key, ranks)}

    def log(self, plan: HostPlan, rank: int = 0) -> str:
        """All that a rank has written."""
        return self.worker.read_log(plan.key, rank).data.decode()

    def strike(self, gpu: int, **fault: Any) -> None:
        """Inject a fault into a GPU."""
        inject_fault(paths.control_dir(self.home), gpu, **fault)

    def monitor(self, on_fault: Callable[[FaultReport], None], **options: Any) -> HealthMonitor:
        """A health monitor of this host."""
        return HealthMonitor(
            self.nvml,
            self.inventory,
            options.pop("policy", None) or FaultPolicy.load("platform"),
            host=self.settings.node.name,
            on_fault=on_fault,
            **{"interval_s": 0.01, **options},
        )

    async def aclose(self) -> None:
        """Stop all attempts, and close the worker."""
        for key in self.keys:
            await self.stop(key)
        self.worker.close()
        planner = self.worker._launcher._jail_planner
        if planner is not None:
            planner.network.firewall.remove()


def is_running(pid: int) -> bool:
    """True if the process lives and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it ended before or after the file was opened
        return False


def own_pid(pid: int) -> int:
    """The pid of the process in the innermost PID namespace that it is in."""
    with open(f"/proc/{pid}/status") as file:
        [line] = [line for line in file if line.startswith("NSpid:")]
    return int(line.split()[-1])


def parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def kill(pid: int) -> None:
    os.kill(pid, 9)
