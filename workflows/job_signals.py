"""Signals from a workflow to jobs: to a job's own workflow, or to that of the array which drives it."""

from __future__ import annotations

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.job_signals import element_signal, of_element
from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.jobs.attempt import GpuFault, HostLost
from gpu_platform.domain.jobs.job import Interrupt


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
