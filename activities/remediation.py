"""Healing a GPU: the database's half (control queue) and the host's half (``node-<host>``)."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.clock import utc_now
from activities.errors import host_may_be_removed
from activities.heartbeat import heartbeating
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.jobs.attempt import AttemptKey, FaultReport
from gpu_platform.domain.states import GpuState
from gpu_platform.hosts.agent import HostAgent
from gpu_platform.settings import RemediationSettings
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus
from gpu_platform.store.reservations import allocations


class GpuReason(BaseModel):
    gpu_uuid: str
    reason: str


class ResetResult(BaseModel):
    gpu_uuid: str
    ok: bool
    max_failures: int
    problem: str | None = None
    """Why it failed."""
    counts: bool = True
    """The fault was the GPU's own, not a program's."""


RESET_NEEDS_OPERATOR = "ResetNeedsOperator"
"""Type of the failure of a reset that cannot succeed by being tried again."""


class RemediationActivities:
    """A step about a GPU whose host was removed fails with ``HOST_REMOVED``."""

    def __init__(self, store: Store, settings: RemediationSettings) -> None:
        self._store = store
        self._settings = settings

    @activity.defn
    def record_fault(self, report: FaultReport) -> None:
        gpus.record_fault(self._store, report, utc_now())

    @activity.defn
    def begin_reset(self, request: GpuReason) -> GpuState:
        """RESETTING, or OFFLINE when an operator has taken the GPU out of service."""
        with host_may_be_removed():
            return gpus.begin_reset(self._store, request.gpu_uuid, request.reason, utc_now()).state

    @activity.defn
    def gpu_holders(self, gpu_uuid: str) -> list[AttemptKey]:
        """Attempts that may run processes on the GPU. A parked gang does not."""
        return allocations.users(self._store, gpu_uuid)

    @activity.defn
    def finish_reset(self, result: ResetResult) -> GpuState:
        """AVAILABLE after a verified reset; OFFLINE after ``max_failures`` failed ones in a row, or for a while when
        the GPU fails again and again."""
        with host_may_be_removed():
            return gpus.finish_reset(
                self._store,
                result.gpu_uuid,
                result.ok,
                utc_now(),
                result.max_failures,
                result.problem,
                self._settings.back_off if result.counts else None,
            )

    @activity.defn
    def quarantine_gpu(self, request: GpuReason) -> None:
        """OFFLINE until an operator brings it back."""
        with host_may_be_removed():
            gpus.set_gpu_state(
                self._store,
                request.gpu_uuid,
                GpuState.OFFLINE,
                reason=request.reason,
                actor="remediation",
                now=utc_now(),
            )


class ResetActivities:
    def __init__(self, agent: HostAgent) -> None:
        self._agent = agent

    @activity.defn
    async def reset_gpu(self, gpu_uuid: str) -> None:
        """Reset and verify. A GPU that does not come back healthy is a ``ResetFailed``; one that this machine cannot
        reset alone ``ResetNeedsOperator``."""
        try:
            await heartbeating(asyncio.to_thread(self._agent.reset_gpu, gpu_uuid))
            await asyncio.to_thread(self._agent.verify_gpu, gpu_uuid)
        except PlatformError as error:
            kind = RESET_NEEDS_OPERATOR if error.details.get("needs_operator") else "ResetFailed"
            raise ApplicationError(error.message, type=kind, non_retryable=True) from error
