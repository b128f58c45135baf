"""Reboots this host if remediation orders it. A simulated host loses its processes and starts with a new boot id."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.node.health.boot import boot_id
from gpu_platform.node.health.host_reset import reboot, reboot_simulated
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.settings import NodeSettings
from workers.node.nvml_watch import RestartRequired

log = structlog.get_logger()

_ANSWER_S = 0.3
"""Seconds for the answer to reach Temporal before this process restarts."""


class HostReboot:
    """Reboots this host when it is called."""

    def __init__(self, node: NodeSettings, home: Path, inventory: HostInventory, worker: NodeWorker) -> None:
        self._node = node
        self._home = home
        self._inventory = inventory
        self._worker = worker
        self._rebooted = asyncio.Event()

    async def __call__(self, of_boot: str | None) -> None:
        """End this boot. Does nothing if the host is in another boot than ``of_boot``. Raises
        :class:`HostUnavailable`."""
        simulated = self._inventory.simulated
        if boot_id(self._home, simulated=simulated) != of_boot:
            return
        log.warning("host.reboots", boot_id=of_boot)
        if not simulated:
            await asyncio.to_thread(reboot, self._node.reboot_command)
            return
        pids = {pid for gpu in self._inventory.gpus for pid in self._worker.attempt_pids(gpu.uuid)}
        await asyncio.to_thread(reboot_simulated, self._home, pids)
        self._rebooted.set()

    async def run(self) -> None:
        """Wait for a simulated reboot, then raise :class:`RestartRequired`: no process survives a reboot."""
        await self._rebooted.wait()
        await asyncio.sleep(_ANSWER_S)
        raise RestartRequired("the simulated host was rebooted")
