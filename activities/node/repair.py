"""The steps on a host that repair the whole host."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pydantic import BaseModel
from temporalio import activity

from activities.heartbeat import heartbeating
from gpu_platform.domain.errors import PlatformError
from gpu_platform.node.node_worker import NodeWorker
from gpu_platform.node.system.own_thread import in_own_thread
from gpu_platform.temporal.errors import repair_failed


class RebootRequest(BaseModel):
    """Reboot a host."""

    host: str
    boot_id: str | None
    """The boot that must end. A host in another boot was rebooted already."""


class HostRepairActivities:
    """Steps on a host that repair it. ``reboot`` ends the boot with the given id; it may return or not."""

    def __init__(self, worker: NodeWorker, reboot: Callable[[str | None], Awaitable[None]]) -> None:
        self._worker = worker
        self._reboot = reboot

    @activity.defn
    async def reset_host(self, gpu_uuid: str) -> None:
        """Reset all GPUs together, and verify this one."""
        await self._verified(self._worker.reset_all_gpus, gpu_uuid)

    @activity.defn
    async def check_gpu(self, gpu_uuid: str) -> None:
        """Check the health of the GPU and change nothing."""
        await self._verified(None, gpu_uuid)

    @activity.defn
    async def reboot_host(self, request: RebootRequest) -> None:
        """Reboot this host, unless another boot than ``boot_id`` runs already."""
        try:
            await heartbeating(asyncio.ensure_future(self._reboot(request.boot_id)))
        except PlatformError as error:
            raise repair_failed(error.message) from error

    async def _verified(self, act: Callable[[], None] | None, gpu_uuid: str) -> None:
        try:
            if act is not None:
                await heartbeating(in_own_thread(act, name="repair"))
            await heartbeating(in_own_thread(lambda: self._worker.verify_gpu(gpu_uuid), name="repair"))
        except PlatformError as error:
            raise repair_failed(error.message) from error
