# Generated from aio/gpus.py (make client): do not edit, change that one.
"""GPUs: looking at them, taking them into and out of service, and their remediation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from gpu_platform.client import calls, models
from gpu_platform.client.sync.asking import Asking

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpu_platform.domain.events import Event
    from gpu_platform.domain.hosts.gpu import Gpu, GpuHealth
    from gpu_platform.domain.hosts.remediation import RemediationStatus, ServiceCase
    from gpu_platform.domain.states import GpuState


class Gpus(Asking):
    """Methods about GPUs."""

    def gpus(self, *, host: str | None = None, states: Iterable[GpuState | str] | None = None) -> Iterator[Gpu]:
        """All GPUs that match, by host and index."""
        wanted = [*states] if states else None
        return self.pages(models.Page[models.Gpu], lambda cursor: calls.gpus(host, wanted, cursor))

    def gpu(self, gpu_id: str) -> Gpu:
        """One GPU. ``gpu_id``: uuid, a unique beginning of it, or ``host:index``."""
        return self.send(calls.gpu(gpu_id), models.Gpu)

    def gpu_events(self, gpu_id: str, limit: int = 50) -> list[Event]:
        """Its newest events, oldest first: faults, resets, changes of its state."""
        return (self.send(calls.gpu_events(gpu_id, limit), models.Page[models.Event])).items

    def gpu_health(self, gpu_id: str) -> GpuHealth:
        """What its host measures right now. Raises :class:`HostUnavailable` if the host does not answer."""
        return self.send(calls.gpu_health(gpu_id), models.GpuHealth)

    def gpu_online(self, gpu_id: str, reason: str = "") -> Gpu:
        """Put the GPU back into service: ends its cordon and its remediation."""
        return self.send(calls.set_gpu(gpu_id, "online", False, reason), models.Gpu)

    def gpu_drain(self, gpu_id: str, *, force: bool = False, reason: str = "") -> Gpu:
        """Give the GPU no new work. ``force`` preempts the jobs that run on it."""
        return self.send(calls.set_gpu(gpu_id, "drain", force, reason), models.Gpu)

    def gpu_offline(self, gpu_id: str, *, force: bool = False, reason: str = "") -> Gpu:
        """Take the GPU OFFLINE. Refused while jobs hold it, unless ``force`` kills them."""
        return self.send(calls.set_gpu(gpu_id, "offline", force, reason), models.Gpu)

    def remediation(self, gpu_id: str) -> RemediationStatus:
        """The state of its remediation. Raises :class:`NotFound` if there is none."""
        return self.send(calls.remediation(gpu_id), models.RemediationStatus)

    def order_remediation(self, gpu_id: str, verb: Literal["approve", "veto"], reason: str = "") -> RemediationStatus:
        """Approve or veto the step that waits for an operator."""
        return self.send(calls.order_remediation(gpu_id, verb, reason), models.RemediationStatus)

    def service_case(self, gpu_id: str) -> ServiceCase:
        """The GPU's record for its vendor."""
        return self.send(calls.service_case(gpu_id), models.ServiceCase)
