"""Elements that go on with workflows of their own: each is an ordinary job from then on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from temporalio import workflow
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import ChildWorkflowError, WorkflowAlreadyStartedError
from temporalio.workflow import ChildWorkflowCancellationType, ParentClosePolicy

from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE
from gpu_platform.domain.jobs.array_steps import OwnWorkflow
from gpu_platform.domain.jobs.job import JobInput
from gpu_platform.domain.states import JobState
from gpu_platform.temporal.job_start import TASK_TIMEOUT, summary_of
from gpu_platform.temporal.search_attributes import of_submission
from workflows.attempts.attempt import Stop
from workflows.job import JobResult, JobWorkflow
from workflows.job_signals import signal_job


class OwnWorkflows:
    """Starts workflows of elements. ``ended`` hears how each job ended."""

    def __init__(self, ended: Callable[[str, JobState], None]) -> None:
        self._ended = ended
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._starting = 0
        self.unheard: dict[str, None] = {}
        """Elements whose workflows somebody else started, or an earlier run of this workflow: nothing tells that they
        have ended."""

    def __len__(self) -> int:
        return len(self._tasks) + len(self.unheard)

    @property
    def is_starting(self) -> bool:
        """True while a workflow is being started: then this workflow cannot continue as new."""
        return self._starting > 0

    @property
    def job_ids(self) -> list[str]:
        """The jobs that have not ended."""
        return [*self._tasks, *self.unheard]

    def start(self, own: OwnWorkflow, stop: Stop | None = None) -> None:
        """Start the workflow of an element, unless it has one. ``stop``: what its user has asked for already."""
        if own.job_id not in self._tasks and own.job_id not in self.unheard:
            self._tasks[own.job_id] = asyncio.create_task(self._run(own, stop))

    def note_ended(self, ended: Iterable[tuple[str, JobState]]) -> None:
        """Jobs of ``unheard`` have ended."""
        for job_id, state in ended:
            if job_id in self.unheard:
                del self.unheard[job_id]
                self._ended(job_id, state)

    async def _run(self, own: OwnWorkflow, stop: Stop | None) -> None:
        given = JobInput(
            job_id=own.job_id,
            spec=own.spec,
            progress=own.progress,
            waits_s=own.waits_s,
            takes_over=own.takes_over,
        )
        self._starting += 1
        try:
            child = await workflow.start_child_workflow(
                JobWorkflow.run,
                given,
                id=own.job_id,
                task_queue=CONTROL_TASK_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=ParentClosePolicy.ABANDON,
                cancellation_type=ChildWorkflowCancellationType.ABANDON,
                search_attributes=of_submission(own.spec),
                static_summary=summary_of(own.spec),
                task_timeout=TASK_TIMEOUT,
            )
            await _pass_on(stop, own.job_id)
        except WorkflowAlreadyStartedError:
            del self._tasks[own.job_id]
            self.unheard[own.job_id] = None
            return
        finally:
            self._starting -= 1
        try:
            result: JobResult = await child
            state = result.state
        except ChildWorkflowError:
            state = JobState.FAILED
        del self._tasks[own.job_id]
        self._ended(own.job_id, state)


async def _pass_on(stop: Stop | None, job_id: str) -> None:
    if stop is None:
        return
    for verb, request in (("cancel", stop.cancel), ("kill", stop.kill)):
        if request is not None:
            await signal_job(job_id, verb, request)
