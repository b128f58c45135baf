"""RemediationWorkflow: brings one GPU back into service after a fault, or takes it out for good.

Its id is ``remediate-<gpu uuid>``, so one workflow gets all faults of a GPU: the node worker sends each
by signal-with-start. The job is stopped by its own workflow; this one waits until nobody holds the GPU.
"""

from __future__ import annotations

import asyncio
from collections import deque
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, FailureError

with workflow.unsafe.imports_passed_through():
    from activities.node.reset import RESET_NEEDS_OPERATOR, ResetActivities
    from activities.remediation import GpuHolderSince, GpuReason, RemediationActivities, ResetResult
    from activities.repair import RepairActivities
    from activities.senders import host_in, may_speak_for, sender_of_signal
    from gpu_platform.domain.contracts import REMEDIATION_WORKFLOW, gpu_of_remediation, node_task_queue
    from gpu_platform.domain.hosts.faults import FaultAction
    from gpu_platform.domain.hosts.remediation import (
        RemediationInput,
        RemediationOrder,
        RemediationPolicy,
        RemediationStatus,
        RepairStep,
    )
    from gpu_platform.domain.jobs.attempt import FaultReport, GpuFault
    from gpu_platform.domain.states import GpuState
    from gpu_platform.temporal.errors import HOST_REMOVED
    from workflows import policies
    from workflows.attempts.failures import is_of_a_removed_host
    from workflows.job_signals import signal_job
    from workflows.repair import HostRepair, Orders
    from workflows.steps import cut_summary, database_step, despite_cancel

RESET: dict[str, Any] = {
    "start_to_close_timeout": timedelta(minutes=5),
    "heartbeat_timeout": policies.HEARTBEAT_TIMEOUT,
    # The host may not answer. Its GPU stays RESETTING until it does.
    "retry_policy": RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)),
}


IDLE_PAUSE_S = 300.0
LATE_MS = 10_000
"""A job that took the GPU so long after a fault was not there when it came: the host was cut off, and the report late.
Who took it sooner was placed while the report was on its way, on a GPU that needs a reset."""
MOST_FAILURES, LONGEST_INTERVAL_S = 100, 3600.0


def _steps(action: FaultAction, policy: RemediationPolicy) -> list[RepairStep]:
    """The repair steps that may help against such a fault and that the policy allows."""
    if action is FaultAction.SERVICE:
        return []
    useless = {RepairStep.HOST_RESET} if action is FaultAction.REBOOT else set()
    return [step for step in policy.steps if step not in useless]


def _is_later(holder: GpuHolderSince, report: FaultReport) -> bool:
    """True if the attempt took the GPU when the fault was over."""
    return holder.since_ms > report.at_ms + LATE_MS


@workflow.defn(name=REMEDIATION_WORKFLOW)
class RemediationWorkflow:
    """Heals one GPU: resets it, and repairs its host if resets do not help."""

    @workflow.init
    def __init__(self, input: RemediationInput) -> None:
        self._gpu_uuid = gpu_of_remediation(workflow.info().workflow_id)
        self._host = host_in(workflow.info().headers) or input.host
        # Of the host's settings, so from the host.
        self._max_failures = min(max(input.max_failures, 1), MOST_FAILURES)
        self._retry_interval_s = min(max(input.retry_interval_s, 0.01), LONGEST_INTERVAL_S)
        self._was_refused = False
        """A report came that is not believed."""
        self._pending: deque[FaultReport] = deque()
        self._seen: set[str] = set()
        self._notes: list[str] = []
        self._orders = Orders()
        self._problem = ""
        """Why the last reset failed. Empty: it did not fail."""
        self._host_removed = False

    @workflow.signal
    def approve(self, order: RemediationOrder) -> None:
        """Signal: the next step may be taken."""
        self._orders.approved = order

    @workflow.signal
    def veto(self, order: RemediationOrder) -> None:
        """Signal: the next step may not be taken; try the one after it."""
        self._orders.vetoed = order

    @workflow.signal
    def overrule(self, order: RemediationOrder) -> None:
        """Signal: an operator put the GPU online, or removed its host, so nothing more is done."""
        self._orders.overruled = order
        self._host_removed = self._host_removed or order.host_removed

    @workflow.query
    def status(self) -> RemediationStatus:
        """Query: the state of the remediation."""
        return RemediationStatus(
            gpu_uuid=self._gpu_uuid,
            host=self._host,
            step=self._orders.step,
            waits_for_approval=self._orders.waiting,
            notes=self._notes,
        )

    @workflow.signal
    def fault(self, report: FaultReport) -> None:
        """Signal: the GPU had a fault. A fault id that came before is ignored.

        A host is believed for itself, and for the GPU of this workflow: the node gateway has looked whether it is one
        of the host's.
        """
        sender = sender_of_signal()
        if report.gpu_uuid != self._gpu_uuid or not may_speak_for(sender, report.host):
            self._was_refused = True
            found = {"host": report.host, "gpu": report.gpu_uuid, "sender": sender}
            workflow.logger.warning("fault.not_believed", extra=found)
        elif report.fault_id not in self._seen:
            self._seen.add(report.fault_id)
            self._pending.append(report)

    @workflow.query
    def notes(self) -> list[str]:
        """Query: what happened so far, oldest first."""
        return self._notes

    @workflow.run
    async def run(self, input: RemediationInput) -> GpuState | None:
        """Handle faults until none is pending. Returns the GPU's last state if it was taken out of service."""
        # A GPU that nobody heals would stay RESETTING. Operators end a remediation with `gpus online` or `offline`.
        return await despite_cancel(asyncio.create_task(self._work()))

    async def _work(self) -> GpuState | None:
        state: GpuState | None = None
        await workflow.wait_condition(lambda: bool(self._pending) or self._was_refused)
        while self._pending:
            report = self._pending.popleft()
            self._note(f"fault: {report.message} -> {report.action}")
            await database_step(RemediationActivities.record_fault, report, summary="Record the fault")
            self._host_removed = False
            try:
                state = await self._heal(report, state)
            except FailureError as error:
                if not is_of_a_removed_host(error):
                    raise
                self._note(f"an operator removed host {report.host}: nothing more is done")
                state, self._orders = None, Orders()
        return state

    async def _heal(self, report: FaultReport, state: GpuState | None) -> GpuState | None:
        """Heal the GPU and return its last state. Returns ``state`` if the fault does not take the GPU out of
        service."""
        action = report.action
        if action in (FaultAction.RESET, FaultAction.RESET_WHEN_IDLE):
            state = await self._reset(report)
            if self._problem and state is GpuState.OFFLINE:
                state = await self._repair_host(report, self._problem)
        elif action.takes_gpu:
            state = await self._repair_host(report, "")
        return state

    async def _repair_host(self, report: FaultReport, problem: str) -> GpuState | None:
        """Do more than reset the GPU alone; see ``workflows.repair``."""
        policy = await database_step(RepairActivities.remediation_policy, summary="Read the remediation policy")
        self._orders = Orders()
        repair = HostRepair(
            report=report,
            began=workflow.now(),
            policy=policy,
            orders=self._orders,
            note=self._note,
            free=lambda: self._wait_until_free(report),
            problem=f"{report.message}; {problem}" if problem else report.message,
            tried=[f"reset: {problem}"] if problem else [],
            # Not after a reset: an operator who put the GPU online since then has decided.
            first=not problem,
        )
        state = await repair.climb(_steps(report.action, policy))
        for later in [*self._pending]:
            # These faults have the same cause, so what heals one heals all of them.
            await database_step(RemediationActivities.record_fault, later, summary="Record the fault")
            self._pending.remove(later)
        return state

    async def _reset(self, report: FaultReport) -> GpuState:
        """Drain, reset and verify the GPU, until it is healed or has failed too often."""
        reason = GpuReason(gpu_uuid=report.gpu_uuid, reason=report.message)
        self._problem = ""
        while True:
            state = await database_step(RemediationActivities.begin_reset, reason, summary="GPU becomes RESETTING")
            if state is GpuState.OFFLINE:
                self._note("OFFLINE by an operator: left alone")
                return state
            self._note("RESETTING: waiting until nobody holds it")
            await self._wait_until_free(report)
            await self._absorb_pending()
            result = await self._try_reset(report)
            state = await database_step(
                RemediationActivities.finish_reset, result, summary="Did the reset heal the GPU?"
            )
            self._problem = result.problem or ("" if result.ok else "the reset failed")
            self._note(f"{state}: {result.problem or 'reset and verified'}")
            if state is not GpuState.DEGRADED:
                return state
            await workflow.sleep(self._retry_interval_s)

    async def _absorb_pending(self) -> None:
        """Record faults that arrived while the GPU was drained: the same reset heals them."""
        healed = (FaultAction.RESET, FaultAction.RESET_WHEN_IDLE)
        absorbed = [report for report in self._pending if report.action in healed]
        for report in absorbed:
            await database_step(RemediationActivities.record_fault, report, summary="Record the fault")
            self._pending.remove(report)

    async def _try_reset(self, report: FaultReport) -> ResetResult:
        result = ResetResult(
            gpu_uuid=report.gpu_uuid,
            ok=True,
            max_failures=self._max_failures,
            counts=not report.blameless,
        )
        reset = workflow.start_activity_method(
            ResetActivities.reset_gpu,
            report.gpu_uuid,
            task_queue=node_task_queue(report.host),
            summary=cut_summary(f"Reset of GPU {report.gpu_index} of {report.host}"),
            **RESET,
        )
        await workflow.wait_condition(lambda: reset.done() or self._host_removed)
        if not reset.done():
            reset.cancel()
            raise ApplicationError(f"host {report.host} was removed", type=HOST_REMOVED, non_retryable=True)
        try:
            await reset
        except ActivityError as error:
            cause = error.cause
            failed = {
                "ok": False,
                "problem": cause.message if isinstance(cause, ApplicationError) else str(cause or error),
            }
            if isinstance(cause, ApplicationError) and cause.type == RESET_NEEDS_OPERATOR:
                return result.model_copy(update={**failed, "max_failures": 1})
            return result.model_copy(update=failed)
        return result

    async def _wait_until_free(self, report: FaultReport) -> None:
        """Wait until no job holds the GPU. The node worker signalled the jobs that it knew; others that still hold
        the GPU at the second look get the signal here, unless they took it long after the fault: these go on."""
        seen: set[str] = set()
        signalled: set[str] = set()
        pause = 0.1
        while True:
            holders = await database_step(
                RemediationActivities.gpu_holders, report.gpu_uuid, summary="Which jobs hold the GPU?"
            )
            if not holders:
                return
            stopped = [key for key in holders if not _is_later(key, report)]
            for key in stopped:
                if str(key) in seen - signalled:
                    signalled.add(str(key))
                    # A job that ended meanwhile has released the GPU: the next look sees it.
                    await signal_job(key.job_id, "gpu_fault", GpuFault(attempt=key, report=report))
            seen.update(str(key) for key in holders)
            await workflow.sleep(pause)
            # A job that may end by itself can take days: look rarely, so that the workflow's history stays short.
            waits_for_idle = report.action is FaultAction.RESET_WHEN_IDLE or not stopped
            pause = min(pause * 1.5, IDLE_PAUSE_S if waits_for_idle else 10.0)

    def _note(self, text: str) -> None:
        self._notes.append(f"{workflow.now():%H:%M:%S.%f} {text}")
        workflow.set_current_details("\n".join(f"- {note}" for note in self._notes[-30:]))
