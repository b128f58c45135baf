"""PipelineWorkflow: drives a pipeline. Its jobs are ordinary ones.

What the pipeline does next is decided in the database, in one transaction (``advance_pipeline``), from what became of
its jobs. So the workflow remembers nothing, and a new one can go on where another stopped.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import FailureError

from workflows.attempts.answers import readable
from workflows.steps import despite_cancel, until

with workflow.unsafe.imports_passed_through():
    from activities.node.artifacts import ArtifactActivities
    from activities.pipelines import PipelineActivities, PipelineAdvance, PipelineCancel, ReadOutput, ToRead
    from gpu_platform.domain.contracts import PIPELINE_WORKFLOW, node_task_queue
    from gpu_platform.domain.jobs.artifacts import StepOutput
    from gpu_platform.domain.pipelines.pipeline import PipelineState, SubmittedPipeline
    from workflows.steps import cut_summary, database_step

LOOK_AGAIN = timedelta(hours=6)
"""The leader signals when a job has ended, and every minute anyway."""
READ_AT_ONCE = 16
LOST = "the database does not know this pipeline: it was restored to a point before its submission. Submit it again"
READ: dict[str, Any] = {
    "schedule_to_start_timeout": timedelta(seconds=10),
    "start_to_close_timeout": timedelta(seconds=30),
    "retry_policy": RetryPolicy(maximum_attempts=3),
}


@workflow.defn(name=PIPELINE_WORKFLOW)
class PipelineWorkflow:
    """Brings one pipeline to its end."""

    def __init__(self) -> None:
        self._told = False
        self._outputs: dict[str, StepOutput] = {}
        """What was read. A database that was restored asks for it again, and knows no more on which hosts it lies."""
        self._standing = PipelineAdvance(state=PipelineState.RUNNING)

    @workflow.signal
    def job_ended(self) -> None:
        """Signal: a job has ended, or the pipeline was cancelled or retried."""
        self._told = True

    @workflow.query
    def status(self) -> PipelineAdvance:
        """Query: the states of the steps, as the workflow saw them last."""
        return self._standing

    @workflow.run
    async def run(self, pipeline_id: str, submitted: SubmittedPipeline | None = None) -> PipelineState:
        """Returns how the pipeline ended. ``submitted``: for a database that was lost."""

        async def cancel(reason: str) -> None:
            """Temporal's own cancellation means what a cancel by the service means."""
            asked = PipelineCancel(pipeline_id=pipeline_id, reason=reason)
            await database_step(PipelineActivities.cancel_pipeline, asked, summary="Note that it is cancelled")
            self._told = True

        state = await despite_cancel(asyncio.create_task(self._work(pipeline_id, submitted)), cancel)
        if workflow.cancellation_reason() is not None and state is PipelineState.CANCELLED:
            raise asyncio.CancelledError
        return state

    async def _work(self, pipeline_id: str, submitted: SubmittedPipeline | None) -> PipelineState:
        while True:
            self._told = False
            self._standing = standing = await database_step(
                PipelineActivities.advance_pipeline, pipeline_id, summary="Submit what is ready"
            )
            if standing.is_lost:
                workflow.set_current_details(LOST)
            if standing.state is not PipelineState.RUNNING:
                if self._told:
                    continue  # it may have been retried meanwhile
                return standing.state
            for begin in range(0, len(standing.read), READ_AT_ONCE):
                some = standing.read[begin : begin + READ_AT_ONCE]
                await asyncio.gather(*[self._read(pipeline_id, one) for one in some])
            if workflow.info().is_continue_as_new_suggested():
                workflow.continue_as_new(args=[pipeline_id, submitted])
            if not (standing.read or standing.more):
                await until(lambda: self._told, LOOK_AGAIN)

    async def _read(self, pipeline_id: str, wanted: ToRead) -> None:
        """Let a host read an output: that of rank 0, or another host of the gang if it does not answer."""
        known = self._outputs.get(wanted.request.job_id)
        output = known or StepOutput(problem="no host could read its output: none that ran it answers")
        for host in wanted.hosts if known is None else []:
            try:
                answer = await workflow.execute_activity_method(
                    ArtifactActivities.read_output,
                    wanted.request,
                    task_queue=node_task_queue(host),
                    summary=cut_summary(f"Output of {wanted.request.job_id}"),
                    **READ,
                )
                output = readable(host, answer)
                break
            except FailureError as error:
                workflow.logger.warning("pipeline.output_not_read", extra={"host": host, "error": str(error)})
        if output.problem is None:
            self._outputs[wanted.request.job_id] = output
        found = ReadOutput(pipeline_id=pipeline_id, job_id=wanted.request.job_id, output=output)
        await database_step(PipelineActivities.note_output, found, summary="Note the output")
