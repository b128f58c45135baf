"""Starts the workflows of jobs and arrays, for the service (new ones) and for the leader (late starts) alike.

So each of them can be found in the Temporal UI by namespace, user, state and GPUs.
"""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.contracts import ARRAY_WORKFLOW, CONTROL_TASK_QUEUE, JOB_WORKFLOW
from gpu_platform.domain.jobs.array_steps import ArrayInput, ElementInterrupt, ElementsInterrupt
from gpu_platform.domain.jobs.job import Interrupt, JobInput
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.texts import counted
from gpu_platform.observability import get_logger
from gpu_platform.temporal import search_attributes

TASK_TIMEOUT = timedelta(seconds=5)
"""If a control worker dies in the middle of a task, the job waits this long. Temporal's default is 10 s."""

ArraySignal = tuple[str, Interrupt | ElementInterrupt | ElementsInterrupt]
"""Name and argument of a signal for an array's workflow."""

log = get_logger(__name__)


def summary_of(spec: JobSpec) -> str:
    """What the Temporal UI shows of a job before one opens it."""
    return f"{spec.name}: {counted(spec.gpu_count, 'GPU')}"


class JobStarter:
    """Starts workflows of jobs and arrays, for the service and for the leader alike."""

    def __init__(self) -> None:
        self._registered = False

    def forget_registration(self) -> None:
        """Check the search attributes again before the next start: Temporal was away and may have another database
        now."""
        self._registered = False

    async def start_job(
        self,
        client: Client,
        given: JobInput,
        *,
        signal: tuple[str, Interrupt] | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> None:
        """Start the job's workflow. With a ``signal`` (name, argument) an open workflow gets the signal instead.

        Raises :class:`WorkflowAlreadyStartedError` if the job has an open workflow, or a closed one that Temporal
        knows, and :class:`RPCError` while Temporal is away.
        """
        await self._start(client, given.job_id, given, signal, summary_of(given.spec), rpc_timeout)

    async def start_array(
        self,
        client: Client,
        given: ArrayInput,
        *,
        signal: ArraySignal | None = None,
        rpc_timeout: timedelta | None = None,
    ) -> None:
        """Start the array's workflow. See :meth:`start_job`."""
        summary = f"{given.spec.name}: an array"
        await self._start(client, given.array_id, given, signal, summary, rpc_timeout)

    async def _start(
        self,
        client: Client,
        workflow_id: str,
        given: JobInput | ArrayInput,
        signal: ArraySignal | None,
        summary: str,
        rpc_timeout: timedelta | None,
    ) -> None:
        try:
            await self._register_once(client)
            await client.start_workflow(
                JOB_WORKFLOW if isinstance(given, JobInput) else ARRAY_WORKFLOW,
                given,
                id=workflow_id,
                task_queue=CONTROL_TASK_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.UNSPECIFIED
                if signal is None
                else WorkflowIDConflictPolicy.USE_EXISTING,
                search_attributes=search_attributes.of_submission(given.spec),
                start_signal=signal[0] if signal else None,
                start_signal_args=[signal[1]] if signal else [],
                static_summary=summary,
                task_timeout=TASK_TIMEOUT,
                rpc_timeout=rpc_timeout,
            )
        except RPCError:
            self.forget_registration()
            raise

    async def _register_once(self, client: Client) -> None:
        """Add our search attributes before the first start: a Temporal without them refuses the workflows."""
        if self._registered:
            return
        try:
            await search_attributes.register(client)
        except RPCError as error:
            if error.status is not RPCStatusCode.PERMISSION_DENIED:
                raise
            log.warning("temporal.search_attributes_missing", error=str(error), hint="an administrator must add them")
        self._registered = True
