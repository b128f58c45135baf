"""The steps of PipelineWorkflow, and how it is started."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from pydantic import BaseModel
from temporalio import activity
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy

from activities.interrupts import ACTOR
from activities.submissions import Submissions
from gpu_platform.clock import utc_now
from gpu_platform.domain.array_ids import is_array_id
from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE, PIPELINE_WORKFLOW
from gpu_platform.domain.errors import IllegalTransition, NotFound, Unavailable
from gpu_platform.domain.jobs.array import Array
from gpu_platform.domain.jobs.artifacts import OutputRequest, StepOutput
from gpu_platform.domain.jobs.job import Interrupt, Job
from gpu_platform.domain.pipelines.pipeline import PipelineState, StepState
from gpu_platform.store import Store
from gpu_platform.store.jobs import pipelines
from gpu_platform.store.jobs.elements import LOST_AFTER_S

LOOK_AGAIN = "job_ended"
"""The signal: a job has ended, or somebody cancelled or retried the pipeline."""
PARALLEL_STARTS = 8


class ToRead(BaseModel):
    """An output that a later step needs, and the hosts that can read it."""

    request: OutputRequest
    hosts: list[str]


class PipelineAdvance(BaseModel):
    """Where a pipeline stands after a step of it, and what the workflow does next."""

    state: PipelineState
    steps: dict[str, StepState] = {}
    read: list[ToRead] = []
    more: bool = False
    """There is more to do at once."""
    is_lost: bool = False
    """The database does not know the pipeline: it was restored to a point before the submission."""


class ReadOutput(BaseModel):
    """What a job of a pipeline wrote."""

    pipeline_id: str
    job_id: str
    output: StepOutput


class PipelineCancel(BaseModel):
    """A pipeline whose workflow somebody cancelled in Temporal."""

    pipeline_id: str
    reason: str


async def start_pipeline(client: Client, store: Store, pipeline_id: str) -> None:
    """Start the workflow of a pipeline, or let an open one look again. It may be repeated: all it needs to know is in
    the database."""
    await client.start_workflow(
        PIPELINE_WORKFLOW,
        args=[pipeline_id, await asyncio.to_thread(pipelines.submitted, store, pipeline_id)],
        id=pipeline_id,
        task_queue=CONTROL_TASK_QUEUE,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        start_signal=LOOK_AGAIN,
    )


class PipelineActivities:
    """Brings pipelines forward."""

    def __init__(self, store: Store, submissions: Submissions) -> None:
        self._store, self._submissions = store, submissions
        self._unknown_since: dict[str, float] = {}

    @activity.defn
    def cancel_pipeline(self, asked: PipelineCancel) -> None:
        """Write down that the pipeline is cancelled, unless it has ended."""
        with suppress(IllegalTransition, NotFound):
            pipelines.cancel(self._store, asked.pipeline_id, ACTOR, asked.reason, utc_now())

    @activity.defn
    async def advance_pipeline(self, pipeline_id: str) -> PipelineAdvance:
        """Submit what is ready, and cancel what must end."""
        try:
            done = await asyncio.to_thread(pipelines.advance, self._store, pipeline_id, utc_now())
        except NotFound as error:  # the database was restored to a point before the submission
            now = time.monotonic()
            if now - self._unknown_since.setdefault(pipeline_id, now) < LOST_AFTER_S:
                raise Unavailable(f"{error.message}; waiting for it to be restored") from error
            return PipelineAdvance(state=PipelineState.CANCELLED, is_lost=True)
        self._unknown_since.pop(pipeline_id, None)
        limit = asyncio.Semaphore(PARALLEL_STARTS)

        async def start(one: Job | Array) -> None:
            async with limit:
                if isinstance(one, Array):
                    await self._submissions.start_array(one)
                else:
                    await self._submissions.start(one)

        await asyncio.gather(*[start(one) for one in done.start])
        request = Interrupt(actor="pipeline", reason=f"pipeline {pipeline_id} was cancelled")
        for name in done.cancel:
            await (self._submissions.cancel_array if is_array_id(name) else self._submissions.cancel)(name, request)
        read = [ToRead(request=one, hosts=hosts) for one, hosts in done.read]
        return PipelineAdvance(state=done.state, steps=done.steps, read=read, more=done.more)

    @activity.defn
    async def note_output(self, found: ReadOutput) -> None:
        """Write down what a job wrote."""
        await asyncio.to_thread(pipelines.note_output, self._store, found.pipeline_id, found.job_id, found.output)
