"""The steps that heal a GPU: in the database (control queue) and on the host (``node-<host>``)."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clock import utc_now
from activities.errors import host_may_be_removed
from activities.heartbeat import heartbeating
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.domain.states import GpuState
from gpu_platform.hosts.agent import HostAgent
from gpu_platform.settings import RemediationSettings
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpu_states
from gpu_platform.store.reservations import allocations


class GpuReason(BaseModel):
    """A GPU, and why something is done to it."""

    gpu_uuid: str
    reason: str


class ResetResult(BaseModel):
    """The result of a reset of one GPU."""

    gpu_uuid: str
    ok: bool
    max_failures: int
    problem: str | None = None
    """Why it failed."""
    counts: bool = True
    """The fault was the GPU's own, so it counts as flapping. False: a program caused it."""


RESET_NEEDS_OPERATOR = "ResetNeedsOperator"
"""The type of the failure of a reset that can never succeed, however often it is tried."""


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
    def gpu_holders(self, gpu_uuid: str) -> list[AttemptKey]:
        """Attempts that may run processes on the GPU. A parked gang runs none."""
        return allocations.users(self._store, gpu_uuid)

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

    @activity.defn(name="quarantine_gpu")
    def take_gpu_offline(self, request: GpuReason) -> None:
        """Take the GPU OFFLINE until an operator brings it back."""
        with host_may_be_removed():
            gpu_states.set_gpu_state(
                self._store,
                request.gpu_uuid,
                GpuState.OFFLINE,
                reason=request.reason,
                actor="remediation",
                now=utc_now(),
            )


class ResetActivities:
    """The host's part: resets its GPUs."""

    def __init__(self, agent: HostAgent) -> None:
        self._agent = agent

    @activity.defn
    async def reset_gpu(self, gpu_uuid: str) -> None:
        """Reset and verify the GPU.

        Fails with ``ResetFailed`` if it does not work afterwards, and with ``ResetNeedsOperator`` if this machine
        cannot reset it alone.
        """
        try:
            await heartbeating(asyncio.to_thread(self._agent.reset_gpu, gpu_uuid))
            await asyncio.to_thread(self._agent.verify_gpu, gpu_uuid)
        except PlatformError as error:
            kind = RESET_NEEDS_OPERATOR if error.details.get("needs_operator") else "ResetFailed"
            raise ApplicationError(error.message, type=kind, non_retryable=True) from error
