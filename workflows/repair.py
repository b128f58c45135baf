"""Repairs the host of a GPU that could not be healed alone, step by step. The last step is a service case.

Every step takes the host out of service first and waits until nothing runs there; hosts of one failure domain are
repaired one at a time; what an operator decides meanwhile is respected.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError

from workflows import policies
from workflows.job_signals import signal_job
from workflows.steps import cut_summary, database_step

with workflow.unsafe.imports_passed_through():
    from activities.node.repair import HostRepairActivities, RebootRequest
    from activities.remediation import GpuReason, RemediationActivities, ResetResult
    from activities.repair import (
        BeginRepairRequest,
        HoldGpuRequest,
        RepairActivities,
        RepairReference,
        ServiceCaseRequest,
    )
    from gpu_platform.domain.contracts import node_task_queue
    from gpu_platform.domain.hosts.remediation import (
        RemediationOrder,
        RemediationPolicy,
        RepairBegun,
        RepairStep,
        RepairView,
        reason_with_next_step,
    )
    from gpu_platform.domain.jobs.attempt import FaultReport
    from gpu_platform.domain.jobs.job import Interrupt
    from gpu_platform.domain.states import GpuState, HostState

ON_HOST: dict[str, Any] = {
    # A host that does not answer cannot repair itself.
    "schedule_to_start_timeout": timedelta(seconds=60),
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": policies.HEARTBEAT_TIMEOUT,
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_attempts=3),
}
POWER: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=3),
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=5), maximum_attempts=2),
}
LONGEST_PAUSE_S = 30.0


class End(Enum):
    """How a repair step ended."""

    HEALED = "healed"
    FAILED = "failed"
    OVERRULED = "overruled"
    """An operator decided otherwise, so nothing more is done."""


@dataclass
class Orders:
    """What operators decided. Only signals write here."""

    approved: RemediationOrder | None = None
    vetoed: RemediationOrder | None = None
    overruled: RemediationOrder | None = None
    step: RepairStep | None = None
    waiting: bool = False

    @property
    def any(self) -> bool:
        """True if an operator has decided anything."""
        return bool(self.approved or self.vetoed or self.overruled)


@dataclass
class HostRepair:
    """The repair of a host because of one GPU's failure.

    ``note`` writes the timeline. ``free`` returns when nobody uses the GPU any more.
    """

    report: FaultReport
    began: datetime
    policy: RemediationPolicy
    orders: Orders
    note: Callable[[str], None]
    free: Callable[[], Awaitable[None]]
    problem: str
    """What is wrong, as far as it is known."""
    tried: list[str] = field(default_factory=list)
    first: bool = True

    async def climb(self, steps: list[RepairStep]) -> GpuState | None:
        """Take one step after the other until the GPU is healed. Returns its last state. None: an operator took
        over."""
        for step in steps:
            self.orders.step = step
            end = await self._take(step)
            self.orders.step = None
            if end is End.HEALED:
                return GpuState.AVAILABLE
            if end is End.OVERRULED:
                self.note("an operator decided otherwise: nothing more is done")
                return None
        return await self._give_up()

    async def _take(self, step: RepairStep) -> End:
        if not await self._hold(step):
            return End.OVERRULED
        await self.free()
        if step in self.policy.approve and not await self._approved(step):
            return End.OVERRULED if self.orders.overruled else End.FAILED
        begun = await self._begin(step)
        if begun is None:
            return End.OVERRULED
        if begun.done_before:
            self.note(f"the host had its {step.description} meanwhile: checked only")
            return await self._check(step, ended=True)
        if not begun.began:
            return self._failed(step, begun.refusal or "it is not allowed now")
        end = await self._drained(step)
        if end is None:
            end = await (self._reset() if step is RepairStep.HOST_RESET else self._reboot(begun.boot_id))
        if end is End.OVERRULED:
            await self._end("an operator put the host online")
        return end

    async def _hold(self, step: RepairStep) -> bool:
        waits = step in self.policy.approve
        target = f"{self.report.host}:{self.report.gpu_index}" if waits else None
        reason = reason_with_next_step(self.problem, f"{step.description} of host {self.report.host}", target)
        hold = HoldGpuRequest(gpu_uuid=self.report.gpu_uuid, reason=reason, first=self.first)
        self.first = False
        held = await database_step(
            RepairActivities.hold_gpu, hold, summary=f"Take the GPU out of service before the {step.description}"
        )
        if held:
            self.note(f"OFFLINE: {reason}")
        return held

    async def _approved(self, step: RepairStep) -> bool:
        self.orders.approved = self.orders.vetoed = None
        self.orders.waiting = True
        await workflow.wait_condition(lambda: self.orders.any)
        self.orders.waiting = False
        said = self.orders.overruled or self.orders.vetoed or self.orders.approved
        assert said is not None
        if said is self.orders.approved:
            self.note(f"{step.description} approved by {said.actor} {said.reason}".rstrip())
            return True
        if said is self.orders.vetoed:
            self._failed(step, f"vetoed by {said.actor} {said.reason}".rstrip())
        return False

    async def _begin(self, step: RepairStep) -> RepairBegun | None:
        """Wait until the repair of this host may begin. None: an operator took over."""
        request = BeginRepairRequest(
            host=self.report.host,
            gpu_uuid=self.report.gpu_uuid,
            step=step,
            since=self.began,
            reboots_per_day=self.policy.reboots_per_day,
        )
        pause, said = 1.0, None
        while self.orders.overruled is None:
            begun = await database_step(
                RepairActivities.begin_repair, request, summary=f"May the {step.description} of the host begin?"
            )
            if begun.began or begun.done_before or begun.is_final:
                return begun
            if begun.refusal != said:
                said = begun.refusal
                self.note(f"waits: {said}")
            await self._sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)
        return None

    async def _drained(self, step: RepairStep) -> End | None:
        """Wait until nothing runs on the host. None: it is drained. Otherwise how the step ended."""
        self.note(f"host {self.report.host} is drained")
        deadline = workflow.now() + timedelta(seconds=self.policy.drain_timeout_s)
        pause, preempted = 0.2, False
        while True:
            view = await self._look()
            if view.overruled or self.orders.overruled:
                return End.OVERRULED
            if not view.held_by:
                if step is RepairStep.REBOOT or view.host_state is HostState.DRAINED:
                    return None
            elif self.policy.preempts and not preempted:
                preempted = True
                await self._preempt(view)
            if workflow.now() >= deadline:
                jobs = ", ".join(str(key) for key in view.held_by) or "none, but it does not report"
                return await self._over(step, f"the host was not drained in time (jobs: {jobs})")
            await self._sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    async def _preempt(self, view: RepairView) -> None:
        for key in view.held_by:
            why = Interrupt(actor="remediation", reason=f"host {self.report.host} is repaired", attempt=key.attempt)
            await signal_job(key.job_id, "preempt", why)

    async def _reset(self) -> End:
        await self._begin_reset()
        self.note("all GPUs of the host are reset together")
        problem = await self._on_host(HostRepairActivities.reset_host, self.report.gpu_uuid, "Reset of all GPUs")
        return await self._finish(RepairStep.HOST_RESET, problem)

    async def _reboot(self, boot_id: str | None) -> End:
        await self._begin_reset()
        problem = await self._ask_to_reboot(boot_id)
        if problem is None:
            problem = await self._rebooted(boot_id)
        if problem is not None and self.policy.can_power_cycle:
            self.note(f"power cycle, since: {problem}")
            problem = await self._power_cycle() or await self._rebooted(boot_id)
        if problem is None:
            self.note("the host is up again, in another boot")
            problem = await self._on_host(
                HostRepairActivities.check_gpu, self.report.gpu_uuid, "Verification of the GPU"
            )
        return await self._finish(RepairStep.REBOOT, problem)

    async def _ask_to_reboot(self, boot_id: str | None) -> str | None:
        self.note("the host is ordered to reboot")
        await self._count_reboot("the host's own command")
        try:
            await workflow.execute_activity_method(
                HostRepairActivities.reboot_host,
                RebootRequest(host=self.report.host, boot_id=boot_id),
                task_queue=node_task_queue(self.report.host),
                summary=cut_summary(f"Reboot of {self.report.host}"),
                **ON_HOST,
            )
        except ActivityError as error:
            if isinstance(error.cause, ApplicationError):
                return _why(error)
            # No answer: the host may be going down already. Its boot id will show it.
            self.note(f"no answer from the host: {_why(error)}")
        return None

    async def _power_cycle(self) -> str | None:
        await self._count_reboot("remediation.power_command")
        try:
            await workflow.execute_activity_method(
                RepairActivities.power_cycle,
                self.report.host,
                summary=cut_summary(f"Power cycle of {self.report.host}"),
                **POWER,
            )
        except ActivityError as error:
            return _why(error)
        return None

    async def _count_reboot(self, how: str) -> None:
        request = RepairReference(host=self.report.host, gpu_uuid=self.report.gpu_uuid, how=how)
        await database_step(RepairActivities.note_reboot, request, summary=f"Count a reboot by {how}")

    async def _rebooted(self, boot_id: str | None) -> str | None:
        """Wait for a report with another boot id. Returns why none came, or None."""
        deadline = workflow.now() + timedelta(seconds=self.policy.reboot_timeout_s)
        pause = 0.2
        while workflow.now() < deadline:
            view = await self._look()
            if view.boot_id != boot_id and view.host_state is not HostState.LOST:
                return None
            await self._sleep(pause)
            pause = min(pause * 1.5, 5.0)
        return f"no report from a new boot within {self.policy.reboot_timeout_s:g} s"

    async def _check(self, step: RepairStep, *, ended: bool) -> End:
        await self._begin_reset()
        problem = await self._on_host(HostRepairActivities.check_gpu, self.report.gpu_uuid, "Verification of the GPU")
        return await self._finish(step, problem, ended=ended)

    async def _begin_reset(self) -> None:
        request = GpuReason(gpu_uuid=self.report.gpu_uuid, reason=self.problem)
        await database_step(RemediationActivities.begin_reset, request, summary="GPU becomes RESETTING")

    async def _finish(self, step: RepairStep, problem: str | None, *, ended: bool = False) -> End:
        result = ResetResult(
            gpu_uuid=self.report.gpu_uuid,
            ok=problem is None,
            max_failures=1,
            problem=problem,
            counts=not self.report.blameless,
        )
        state = await database_step(RemediationActivities.finish_reset, result, summary="Did the reset heal the GPU?")
        if not ended:
            await self._end(problem)
        if problem is not None:
            return self._failed(step, problem)
        self.note(f"{state}: {step.description} of the host done, the GPU is verified")
        return End.HEALED

    async def _over(self, step: RepairStep, problem: str) -> End:
        await self._end(problem)
        return self._failed(step, problem)

    def _failed(self, step: RepairStep, problem: str) -> End:
        self.tried.append(f"{step.description} of the host: {problem}")
        self.problem = f"{self.report.message}; {self.tried[-1]}"
        self.note(self.tried[-1])
        return End.FAILED

    async def _end(self, problem: str | None) -> None:
        request = RepairReference(host=self.report.host, gpu_uuid=self.report.gpu_uuid, problem=problem)
        await database_step(RepairActivities.end_repair, request, summary="The repair of the host ends")

    async def _look(self) -> RepairView:
        request = RepairReference(host=self.report.host, gpu_uuid=self.report.gpu_uuid)
        return await database_step(
            RepairActivities.look_at_repair, request, summary="State of the host and the jobs on it"
        )

    async def _on_host(self, step: Callable[..., Any], argument: Any, summary: str) -> str | None:
        """Run a step on the host. Returns why it failed, or None."""
        try:
            await workflow.execute_activity_method(
                step, argument, task_queue=node_task_queue(self.report.host), summary=cut_summary(summary), **ON_HOST
            )
        except ActivityError as error:
            return _why(error)
        return None

    async def _give_up(self) -> GpuState | None:
        tried = [*self.tried] or ["nothing: such a fault is not repaired by resets"]
        name = f"{self.report.host}:{self.report.gpu_index}"
        reason = f"{self.problem}; needs service: see `gpu-platform service-case {name}`"
        opened = await database_step(
            RepairActivities.open_service_case,
            ServiceCaseRequest(gpu_uuid=self.report.gpu_uuid, reason=reason, tried=tried),
            summary="Open a service case",
        )
        self.note(f"OFFLINE until an operator brings it back: {reason}")
        await self.free()
        return GpuState.OFFLINE if opened else None

    async def _sleep(self, seconds: float) -> None:
        await workflow.sleep(seconds)


def _why(error: ActivityError) -> str:
    cause = error.cause
    return cause.message if isinstance(cause, ApplicationError) else str(cause or error)
