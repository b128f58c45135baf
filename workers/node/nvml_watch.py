"""Handles an NVML that does not answer, stops, or comes back: the host stays registered, its ranks go on, and it gets
no new work.

A node worker may restart at any moment without loss. So if the facts of its start change (NVML stops or comes back,
another driver, a new GPU), it restarts in the same process: :class:`RestartRequired`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import structlog

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.lanes import Lane, LastKnown, Stuck
from gpu_platform.node.inventory.inventory import (
    read_inventory,
    read_inventory_without_gpus,
    read_inventory_without_nvml,
)
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.nvml.opening import NoGpus, SilentNvml, open_nvml
from gpu_platform.settings import NodeSettings

log = structlog.get_logger()

CHECK_S = 5.0
OPEN_WITHIN_S = 20.0
"""A host of eight GPUs without persistence mode takes some seconds. Its ranks run on for the lease of a restart."""
MAX_FAILED_CHECKS = 3
"""After this many failed checks in a row the node worker restarts. A single one may be a short disturbance."""


class RestartRequired(Exception):
    """The node worker must start again. The message says why."""


def open_gpus(node: NodeSettings, home: Path) -> tuple[NvmlLibrary, HostInventory]:
    """Open NVML and read the inventory.

    If NVML does not answer, the library refuses every call and the inventory comes from other sources. If GPU support
    is off, the library and the inventory have no GPUs.
    """
    opened = LastKnown[tuple[NvmlLibrary, HostInventory] | None](None, "nvml-open", patience_s=OPEN_WITHIN_S)
    try:
        found = opened.read(lambda: _open(node, home))
        if found is None:
            raise HostUnavailable(f"NVML has not answered for {OPEN_WITHIN_S:g} s: see the kernel's log")
    except HostUnavailable as error:
        log.error("node.without_nvml", error=error.message)
        return SilentNvml(error.message), read_inventory_without_nvml(node)
    return found


def _open(node: NodeSettings, home: Path) -> tuple[NvmlLibrary, HostInventory]:
    nvml = open_nvml(node, home)
    return nvml, read_inventory_without_gpus(node) if isinstance(nvml, NoGpus) else read_inventory(nvml, node)


def unusable(nvml: NvmlLibrary, inventory: HostInventory) -> dict[str, str]:
    """GPU uuid -> why it gets no work. While NVML does not answer, these are all GPUs."""
    if not isinstance(nvml, SilentNvml):
        return {}
    return {gpu.uuid: nvml.why for gpu in inventory.gpus}


class NvmlWatch:
    """Notices changes after which the node worker must restart, such as new GPUs or a driver that answers again.

    ``is_paused``: a GPU is being reset, and NVML is closed meanwhile.
    """

    def __init__(
        self,
        nvml: NvmlLibrary,
        node: NodeSettings,
        home: Path,
        inventory: HostInventory,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._nvml = nvml
        self._node = node
        self._home = home
        self._inventory = inventory
        self._is_paused = is_paused
        self._looks = Lane("nvml", patience_s=OPEN_WITHIN_S)

    async def run(self) -> None:
        """Check until cancelled. Raises :class:`RestartRequired` when the node worker must start again."""
        if self._inventory.simulated or not self._node.gpus:
            return
        failed_checks = 0
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                why = await self._looks.run(self.look)
            except Stuck:  # the health monitor says which GPU does not answer; a restart mends none
                continue
            failed_checks = failed_checks + 1 if why is not None else 0
            if why is not None and failed_checks >= MAX_FAILED_CHECKS:
                raise RestartRequired(why)

    def look(self) -> str | None:
        """What has changed since the node worker started, so that it must restart. None: nothing."""
        if isinstance(self._nvml, SilentNvml):
            try:
                open_nvml(self._node, self._home)
            except HostUnavailable:
                return None
            return "NVML answers again"
        if self._is_paused():
            return None
        try:
            seen = read_inventory(self._nvml, self._node)
        except self._nvml.NVMLError as error:
            return None if self._is_paused() else f"NVML does not answer any more: {error}"
        if seen.driver_version != self._inventory.driver_version:
            return f"the driver is {seen.driver_version} now, and was {self._inventory.driver_version}"
        new = {gpu.uuid for gpu in seen.gpus} - {gpu.uuid for gpu in self._inventory.gpus}
        # The health monitor handles a GPU that is missing: it reports it as lost.
        return f"there are new GPUs: {', '.join(sorted(new))}" if new else None
