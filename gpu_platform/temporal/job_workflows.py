"""Jobs' workflows as the reconciler needs them: look, start, clean up, kill."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import Any, Protocol

from pydantic import BaseModel
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.converter import WorkflowSerializationContext
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.array_ids import array_of, is_array_id
from gpu_platform.domain.contracts import (
    CLEANUP_WORKFLOW,
    CONTROL_TASK_QUEUE,
    AttemptKey,
    cleanup_id,
)
from gpu_platform.domain.jobs.array_steps import ArrayInput
from gpu_platform.domain.jobs.job import Interrupt, JobInput
from gpu_platform.domain.states import JobState
from gpu_platform.store.restoring.orphans import HeldAttempt
from gpu_platform.temporal.job_signals import signal_job
from gpu_platform.temporal.job_start import JobStarter

PLACE = "place_gang"
"""The activity that waits for the scheduler's answer."""
InThread = Callable[..., Awaitable[Any]]
"""Runs a blocking call in a thread, as ``asyncio.to_thread`` does."""


class CleanupInput(BaseModel):
    """The argument of CleanupWorkflow: an attempt that no workflow drives, and how its job ends."""

    key: AttemptKey
    message: str
    """The reason, which becomes the job's failure."""
    state: JobState = JobState.FAILED
    """The job's last state. CANCELLED if a user asked for it meanwhile."""
    actor: str = "cleanup"


class WorkflowLife(Enum):
    """Whether a job's workflow is open, as far as Temporal knows."""

    OPEN = auto()
    CLOSED = auto()
    UNKNOWN = auto()
    """It was never started, is being started now, or was lost with Temporal's database. One answer does not show
    which."""


@dataclass(frozen=True, slots=True)
class WorkflowView:
    """The state of a job's workflow in Temporal."""

    life: WorkflowLife
    ended: str = ""
    """How it closed, e.g. ``terminated``."""
    waits_for_placement: bool = False
    """It waits for the scheduler's answer, so its job holds nothing."""


class JobWorkflowsView(Protocol):
    """What the reconciler and the cleanup need from Temporal. Tests replace it."""

    async def look(self, job_id: str) -> WorkflowView:
        """The state of the job's workflow."""
        ...

    async def start(self, given: JobInput) -> bool:
        """Start the job's workflow. False: one is open, or Temporal knows a closed one."""
        ...

    async def clean_up(self, given: CleanupInput) -> bool:
        """Start a cleanup. False: the cleanup of this attempt runs already."""
        ...

    async def kill(self, job_id: str, request: Interrupt) -> None:
        """Send the signal ``kill``. A workflow that has ended is left alone."""
        ...

    async def ask_again(self, job_id: str) -> None:
        """Send the signal ``place_again``, which only a workflow that waits for a placement obeys."""
        ...


class TemporalJobWorkflows:
    """Jobs' workflows in Temporal. Every method raises ``RPCError`` while Temporal is away."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._starter = JobStarter()

    async def look(self, job_id: str) -> WorkflowView:
        """See :meth:`JobWorkflowsView.look`. A workflow that continued as new counts as open. An element of an array
        that has no workflow of its own is driven by its array's."""
        try:
            described = await self._client.get_workflow_handle(job_id).describe()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
            array_id = array_of(job_id)
            return WorkflowView(WorkflowLife.UNKNOWN) if array_id is None else await self.look(array_id)
        status = described.status
        # A workflow that continued as new is closed, and its successor is open: the next look sees the successor.
        goes_on = status in (WorkflowExecutionStatus.RUNNING, WorkflowExecutionStatus.CONTINUED_AS_NEW)
        if goes_on or described.close_time is None:
            pending = described.raw_description.pending_activities
            return WorkflowView(WorkflowLife.OPEN, waits_for_placement=any(map(_waits_for_placement, pending)))
        return WorkflowView(WorkflowLife.CLOSED, status.name.lower() if status else "closed")

    async def start(self, given: JobInput) -> bool:
        """See :meth:`JobWorkflowsView.start`."""
        try:
            await self._starter.start_job(self._client, given)
        except WorkflowAlreadyStartedError:
            return False
        return True

    async def start_array(self, given: ArrayInput) -> bool:
        """Start the array's workflow. False: one is open, or Temporal knows a closed one."""
        try:
            await self._starter.start_array(self._client, given)
        except WorkflowAlreadyStartedError:
            return False
        return True

    async def clean_up(self, given: CleanupInput) -> bool:
        """See :meth:`JobWorkflowsView.clean_up`."""
        try:
            await self._client.start_workflow(
                CLEANUP_WORKFLOW, given, id=cleanup_id(given.key), task_queue=CONTROL_TASK_QUEUE
            )
        except WorkflowAlreadyStartedError:
            return False
        return True

    async def ask_again(self, job_id: str) -> None:
        """See :meth:`JobWorkflowsView.ask_again`. Does nothing if there is no workflow. An array looks for what it
        waits."""
        try:
            await signal_job(self._client, job_id, "look_again" if is_array_id(job_id) else "place_again")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise

    async def kill(self, job_id: str, request: Interrupt) -> None:
        """See :meth:`JobWorkflowsView.kill`."""
        try:
            await signal_job(self._client, job_id, "kill", request)
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise


def _waits_for_placement(activity: PendingActivityInfo) -> bool:
    """The workflow waits for its answer. One that was cancelled stays pending, as nobody answers it any more."""
    cancelled = PendingActivityState.PENDING_ACTIVITY_STATE_CANCEL_REQUESTED
    return activity.activity_type.name == PLACE and activity.state != cancelled


def cleanup_keys(job_id: str, attempt: int, held: Sequence[HeldAttempt]) -> list[AttemptKey]:
    """The attempts to clean up so that the job ends and holds nothing: its last one, and all that hold GPUs."""
    return list(dict.fromkeys([*(one.key for one in held), AttemptKey(job_id=job_id, attempt=attempt)]))


class NotOurs(Exception):
    """The arguments of a workflow were not written by this platform, or are other ones."""


async def arguments_of(client: Client, workflow_id: str, kinds: list[Any], within: timedelta) -> list[Any]:
    """The arguments of a workflow, from the first event of its history: one of each of ``kinds``. Raises ``RPCError``
    and :class:`NotOurs`."""
    request = GetWorkflowExecutionHistoryRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=workflow_id),
        maximum_page_size=1,
    )
    answer = await client.workflow_service.get_workflow_execution_history(request, timeout=within)
    payloads = list(answer.history.events[0].workflow_execution_started_event_attributes.input.payloads)
    if len(payloads) != len(kinds):
        raise NotOurs(f"workflow {workflow_id} has {len(payloads)} arguments, not {len(kinds)}")
    context = WorkflowSerializationContext(namespace=client.namespace, workflow_id=workflow_id)
    try:
        return await client.data_converter.with_context(context).decode(payloads, kinds)
    except (KeyError, RuntimeError) as error:  # the payload codec refused it
        raise NotOurs(f"the argument of workflow {workflow_id} was not written by this platform") from error
