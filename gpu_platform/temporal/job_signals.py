"""Signals to jobs: to a job's own workflow, or to that of the array which drives it."""

from __future__ import annotations

from datetime import timedelta

from pydantic import BaseModel
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.jobs.array_steps import ElementAgain, ElementInterrupt
from gpu_platform.domain.jobs.attempt import GpuFault, HostLost
from gpu_platform.domain.jobs.job import Interrupt


async def signal_job(
    client: Client,
    job_id: str,
    signal: str,
    argument: Interrupt | GpuFault | HostLost | None = None,
    *,
    rpc_timeout: timedelta | None = None,
) -> None:
    """Send a signal of JobWorkflow. An element of an array has no workflow of its own while its array drives it.

    Raises :class:`RPCError`, with NOT_FOUND if neither workflow is open.
    """
    arguments = [] if argument is None else [argument]
    try:
        await client.get_workflow_handle(job_id).signal(signal, args=arguments, rpc_timeout=rpc_timeout)
    except RPCError as error:
        array_id = array_of(job_id)
        if error.status is not RPCStatusCode.NOT_FOUND or array_id is None:
            raise
        await client.get_workflow_handle(array_id).signal(
            element_signal(signal), of_element(job_id, argument), rpc_timeout=rpc_timeout
        )


def element_signal(signal: str) -> str:
    """The signal of ArrayWorkflow that means this signal of JobWorkflow."""
    return f"element_{signal}"


def of_element(job_id: str, argument: Interrupt | GpuFault | HostLost | None) -> BaseModel:
    """The argument of that signal."""
    match argument:
        case GpuFault() | HostLost():
            return argument
        case Interrupt():
            return ElementInterrupt(job_id=job_id, interrupt=argument)
        case None:
            return ElementAgain(job_id=job_id)
