"""The steps of the control worker that repair a whole host. The host's own steps are in ``activities.node.repair``."""

from __future__ import annotations

import asyncio
import shlex
from datetime import datetime

from pydantic import BaseModel
from temporalio import activity

from gpu_platform.clock import utc_now
from gpu_platform.domain.hosts.remediation import RemediationPolicy, RepairBegun, RepairStep, RepairView
from gpu_platform.inherited import inherited
from gpu_platform.settings import RemediationSettings
from gpu_platform.store import Store
from gpu_platform.store.hosts import repairs
from gpu_platform.temporal.errors import host_may_be_removed, repair_failed


class HoldGpuRequest(BaseModel):
    """Take a GPU OFFLINE until it is repaired. ``first``: the fault has just come, so the GPU is still in service."""

    gpu_uuid: str
    reason: str
    first: bool


class BeginRepairRequest(BaseModel):
    """Begin a step of the repair of a host."""

    host: str
    gpu_uuid: str
    step: RepairStep
    since: datetime
    """When the GPU failed."""
    reboots_per_day: int


class RepairReference(BaseModel):
    """A repair of a host for one GPU.

    ``problem``: at its end, why it failed. ``how``: how the host is ordered to reboot.
    """

    host: str
    gpu_uuid: str
    problem: str | None = None
    how: str = ""


class ServiceCaseRequest(BaseModel):
    """Open a service case for a GPU. ``tried``: the steps that did not help."""

    gpu_uuid: str
    reason: str
    tried: list[str]


class RepairActivities:
    """Short database steps, and the command that power cycles a host.

    A step for a host that was removed fails with ``HOST_REMOVED``.
    """

    def __init__(self, store: Store, settings: RemediationSettings) -> None:
        self._store = store
        self._settings = settings

    @activity.defn
    def remediation_policy(self) -> RemediationPolicy:
        """The control worker's settings for remediation."""
        return self._settings.policy

    @activity.defn
    def hold_gpu(self, request: HoldGpuRequest) -> bool:
        """Take the GPU OFFLINE until it is repaired. False: an operator decided otherwise."""
        with host_may_be_removed():
            return repairs.hold_gpu(self._store, request.gpu_uuid, request.reason, utc_now(), first=request.first)

    @activity.defn
    def begin_repair(self, request: BeginRepairRequest) -> RepairBegun:
        """Begin the repair of the host, unless another repair or a limit forbids it now: then the answer says why."""
        with host_may_be_removed():
            return repairs.begin_repair(
                self._store,
                request.host,
                request.gpu_uuid,
                request.step,
                since=request.since,
                reboots_per_day=request.reboots_per_day,
                now=utc_now(),
            )

    @activity.defn
    def look_at_repair(self, request: RepairReference) -> RepairView:
        """The state of the repair, and what still runs on the host."""
        with host_may_be_removed():
            return repairs.look_at_repair(self._store, request.host, request.gpu_uuid, utc_now())

    @activity.defn
    def note_reboot(self, request: RepairReference) -> None:
        """Count a reboot of the host, before it is ordered."""
        with host_may_be_removed():
            repairs.note_reboot(self._store, request.host, request.gpu_uuid, request.how, utc_now())

    @activity.defn
    def end_repair(self, request: RepairReference) -> None:
        """End the repair and the cordon that it set."""
        with host_may_be_removed():
            repairs.end_repair(self._store, request.host, request.gpu_uuid, request.problem, utc_now())

    @activity.defn
    def open_service_case(self, request: ServiceCaseRequest) -> bool:
        """Open a service case. False: an operator decided otherwise."""
        with host_may_be_removed():
            return repairs.open_service_case(self._store, request.gpu_uuid, request.reason, request.tried, utc_now())

    @activity.defn
    async def power_cycle(self, host: str) -> None:
        """Run ``remediation.power_command`` for the host."""
        command = [part.replace("{host}", host) for part in shlex.split(self._settings.power_command or "")]
        if not command:
            raise repair_failed("there is no remediation.power_command")
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env=inherited(), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
            )
        except OSError as error:
            raise repair_failed(f"{command[0]} cannot be run: {error}") from error
        try:
            async with asyncio.timeout(120):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            raise repair_failed(f"{command[0]} did not end within 120 s") from None
        if process.returncode:
            raise repair_failed(
                f"{command[0]} ended with {process.returncode}: {output.decode(errors='replace').strip()[-300:]}"
            )
