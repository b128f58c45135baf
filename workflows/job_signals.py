"""Signals to jobs, to a job's own workflow or to that of the array which drives it: sent by workflows, believed by
them."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.interrupts import ACTOR, CancelledInTemporal, InterruptActivities
from activities.senders import may_speak_for, sender_of_signal
from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.attempt import GpuFault, HostLost
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.temporal.job_signals import element_signal, of_element
from workflows.steps import database_step


async def signal_job(job_id: str, signal: str, argument: GpuFault | HostLost | Interrupt | None) -> bool:
    """Send a signal of JobWorkflow. False: the job has ended, and nobody drives it."""
    try:
        given = [] if argument is None else [argument]
        await workflow.get_external_workflow_handle(job_id).signal(signal, args=given)
    except ApplicationError:
        array_id = array_of(job_id)
        if array_id is None:
            return False
        try:
            array = workflow.get_external_workflow_handle(array_id)
            await array.signal(element_signal(signal), of_element(job_id, argument))
        except ApplicationError:
            return False
    return True


async def noted_cancel(key: AttemptKey, reason: str) -> Interrupt:
    """Temporal's own cancellation (the button of its UI) means the signal ``cancel``. Write it down, and return the
    argument of the signal."""
    asked = CancelledInTemporal(key=key, reason=reason)
    await database_step(InterruptActivities.note_cancel, asked, summary="Note that it is cancelled")
    return Interrupt(actor=ACTOR, reason=reason)


def is_fault_of(fault: GpuFault, attempt: AttemptKey, placement: Placement | None) -> bool:
    """In the handler of a signal: True if the fault is on a GPU that this attempt holds on the host which reports it.

    ``attempt``: the current one. ``placement``: what it holds.
    """
    host = fault.report.host
    if placement is None or fault.attempt != attempt or not tells_of_itself(fault):
        return False
    return fault.report.gpu_uuid in placement.gpu_uuids_on(host)


def tells_of_itself(fault: GpuFault) -> bool:
    """In the handler of a signal: False if one host tells of a fault of another."""
    host, sender = fault.report.host, sender_of_signal()
    if not may_speak_for(sender, host):
        workflow.logger.warning("fault.not_believed", extra={"host": host, "sender": sender})
        return False
    return True
