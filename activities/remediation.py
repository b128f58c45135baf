"""The steps in the database that heal a GPU. The step on its host is ``activities.node.reset``."""

from __future__ import annotations

from pydantic import BaseModel
from temporalio import activity

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.domain.states import GpuState
from gpu_platform.settings import RemediationSettings
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpu_states
from gpu_platform.store.reservations import allocations
from gpu_platform.temporal.errors import host_may_be_removed


class GpuReason(BaseModel):
    """A GPU, and why something is done to it."""

    gpu_uuid: str
    reason: str


class GpuHolderSince(AttemptKey, frozen=True):
    """An attempt that holds a GPU."""

    since_ms: int
    """Unix time."""


class ResetResult(BaseModel):
    """The result of a reset of one GPU."""

    gpu_uuid: str
    ok: bool
    max_failures: int
    problem: str | None = None
    """Why it failed."""
    counts: bool = True
    """The fault was the GPU's own, so it counts as flapping. False: a program caused it."""


class RemediationActivities:
    """The database steps of remediation. A step for a GPU whose host was removed fails with ``HOST_REMOVED``."""

    def __init__(self, store: Store, settings: RemediationSettings) -> None:
        self._store = store
        self._settings = settings

    @activity.defn
    def record_fault(self, report: FaultReport) -> None:
        """Write the fault to the event table. A fault id that is known already changes nothing."""
        gpu_states.record_fault(self._store, report, utc_now())

    @activity.defn
    def begin_reset(self, request: GpuReason) -> GpuState:
        """Take the GPU out of service for a reset. Returns RESETTING, or OFFLINE if an operator took it out of
        service."""
        with host_may_be_removed():
            return gpu_states.begin_reset(self._store, request.gpu_uuid, request.reason, utc_now()).state

    @activity.defn
    def gpu_holders(self, gpu_uuid: str) -> list[GpuHolderSince]:
        """Attempts that may run processes on the GPU. A parked gang runs none."""
        users = allocations.users(self._store, gpu_uuid).items()
        return [GpuHolderSince(**key.model_dump(), since_ms=int(since.timestamp() * 1000)) for key, since in users]

    @activity.defn
    def finish_reset(self, result: ResetResult) -> GpuState:
        """Write the result of a reset and return the GPU's state.

        AVAILABLE after a verified reset. OFFLINE after ``max_failures`` failed resets in a row, or for the time of a
        quarantine if the GPU fails again and again.
        """
        with host_may_be_removed():
            return gpu_states.finish_reset(
                self._store,
                result.gpu_uuid,
                result.ok,
                utc_now(),
                result.max_failures,
                result.problem,
                self._settings.back_off if result.counts else None,
            )
