"""GPUs: looking at them, taking them into and out of service, and their remediation.
``sync/gpus.py`` is generated from this file: run ``make client``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpu_platform.client import calls, models
from gpu_platform.client.aio.asking import AsyncAsking

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from gpu_platform.domain.events import Event
    from gpu_platform.domain.hosts.gpu import Gpu, GpuHealth
    from gpu_platform.domain.hosts.remediation import RemediationStatus, ServiceCase
    from gpu_platform.domain.states import GpuState


class AsyncGpus(AsyncAsking):
    """Methods about GPUs."""

    def gpus(self, *, host: str | None = None, states: Iterable[GpuState | str] | None = None) -> AsyncIterator[Gpu]:
        """All GPUs that match, by host and index."""
        wanted = [*states] if states else None
        return self.pages(models.Page[models.Gpu], lambda cursor: calls.gpus(host, wanted, cursor))

    async def gpu(self, gpu_id: str) -> Gpu:
        """One GPU. ``gpu_id``: uuid, a unique beginning of it, or ``host:index``."""
        return await self.send(calls.gpu(gpu_id), models.Gpu)

    async def gpu_events(self, gpu_id: str, limit: int = 50) -> list[Event]:
        """Its newest events, oldest first: faults, resets, changes of its state."""
        return (await self.send(calls.gpu_events(gpu_id, limit), models.Page[models.Event])).items

    async def gpu_health(self, gpu_id: str) -> GpuHealth:
        """What its host measures right now. Raises :class:`HostUnavailable` if the host does not answer."""
        return await self.send(calls.gpu_health(gpu_id), models.GpuHealth)

    async def gpu_online(self, gpu_id: str, reason: str = "") -> Gpu:
        """Put the GPU back into service: ends its cordon and its remediation."""
        return await self.send(calls.set_gpu(gpu_id, "online", False, reason), models.Gpu)

    async def gpu_drain(self, gpu_id: str, *, force: bool = False, reason: str = "") -> Gpu:
        """Give the GPU no new work. ``force`` preempts the jobs that run on it."""
        return await self.send(calls.set_gpu(gpu_id, "drain", force, reason), models.Gpu)

    async def gpu_offline(self, gpu_id: str, *, force: bool = False, reason: str = "") -> Gpu:
        """Take the GPU OFFLINE. Refused while jobs hold it, unless ``force`` kills them."""
        return await self.send(calls.set_gpu(gpu_id, "offline", force, reason), models.Gpu)

    async def remediation(self, gpu_id: str) -> RemediationStatus:
        """The state of its remediation. Raises :class:`NotFound` if there is none."""
        return await self.send(calls.remediation(gpu_id), models.RemediationStatus)

    async def order_remediation(
        self, gpu_id: str, verb: Literal["approve", "veto"], reason: str = ""
    ) -> RemediationStatus:
        """Approve or veto the step that waits for an operator."""
        return await self.send(calls.order_remediation(gpu_id, verb, reason), models.RemediationStatus)

    async def service_case(self, gpu_id: str) -> ServiceCase:
        """The GPU's record for its vendor."""
        return await self.send(calls.service_case(gpu_id), models.ServiceCase)
