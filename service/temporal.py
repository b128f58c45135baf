"""The service's side of Temporal: start a job's workflow, signal it, and say clearly when Temporal is away."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta

from temporalio.client import Client, WorkflowFailureError
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.alerting.group import AlertGroup
from gpu_platform.alerting.reports import AlertReports
from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.contracts import (
    ALERT_WORKFLOW,
    CONTROL_TASK_QUEUE,
    NOTIFICATION_TEST_WORKFLOW,
    alert_workflow_id,
)
from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.hosts.remediation import RemediationOrder, RemediationStatus
from gpu_platform.domain.jobs.array_steps import ArrayInput, ElementInterrupt, ElementsAgain
from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.job import Interrupt, Job, JobInput
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.notifications import Delivery, NotificationTest
from gpu_platform.domain.states import JobState
from gpu_platform.observability import get_logger
from gpu_platform.settings import Settings
from gpu_platform.store.restoring.orphans import HeldAttempt
from gpu_platform.temporal.job_signals import element_signal, signal_job
from gpu_platform.temporal.job_start import ArraySignal, JobStarter
from gpu_platform.temporal.job_workflows import CleanupInput, TemporalJobWorkflows, cleanup_keys
from gpu_platform.temporal.namespace import describe_namespace, how_to_make, is_missing
from gpu_platform.temporal.payloads.converter import converter_of
from gpu_platform.temporal.runtime import ProcessRuntime
from gpu_platform.temporal.tls import tls_of, versions_of
from gpu_platform.temporal.tracing import tracing_interceptors

RPC_TIMEOUT = timedelta(seconds=5)
PATIENCE_S = 6.0
"""Seconds for all tries of one call together: the SDK tries again by itself, and a user waits for the answer."""
TEST_PATIENCE_S = 90.0
"""Seconds for a test of all targets, each of which may need a minute."""
SUMMARY_BYTES = 100
"""Temporal refuses a summary of more than 400 bytes, and a character has up to four."""

ClientProvider = Callable[[], Awaitable[Client]]

log = get_logger(__name__)


class WorkflowGone(Exception):
    """There is no such workflow, or it has ended."""


def connect_lazily(settings: Settings) -> ClientProvider:
    """Returns a function that gives one client, and another one after its certificate was renewed. It connects at its
    first call, so the service may start before Temporal."""
    client: Client | None = None
    seen: object = None

    async def provide() -> Client:
        nonlocal client, seen
        found = versions_of(settings.temporal)
        if client is None or found != seen:
            client = await Client.connect(
                settings.temporal.address,
                namespace=settings.temporal.namespace,
                data_converter=converter_of(settings),
                tls=tls_of(settings.temporal),
                runtime=ProcessRuntime.get(),
                lazy=True,
                interceptors=tracing_interceptors(),
            )
            seen = found
        return client

    return provide


class JobWorkflows:
    """The service's access to the workflows of jobs and arrays. Every method raises :class:`Unavailable`."""

    def __init__(self, provide: ClientProvider) -> None:
        self._provide = provide
        self._starter = JobStarter()

    async def start(self, job_id: str, spec: JobSpec) -> None:
        """Start the workflow. It is no error if it was started already."""
        await self._start(job_id, spec, None)

    async def interrupt(self, job_id: str, spec: JobSpec, signal: str, interrupt: Interrupt, *, pending: bool) -> None:
        """Send ``cancel``, ``kill`` or ``preempt``. Raises :class:`WorkflowGone` if the workflow has ended.

        ``pending``: the workflow may not have been started. Then it is started with the signal. An element is driven
        by its array's workflow, unless it has one of its own.
        """
        if pending and array_of(job_id) is None:
            await self._start(job_id, spec, (signal, interrupt))
            return
        async with self.reaching() as client:
            with _telling_gone():
                await signal_job(client, job_id, signal, interrupt, rpc_timeout=RPC_TIMEOUT)

    async def ask_again(self, job_id: str) -> None:
        """Tell the workflow of a job or an array to look again for what it waits. It is no error if there is none."""
        async with self.reaching() as client:
            await TemporalJobWorkflows(client).ask_again(job_id)

    async def elements_ask_again(self, array_id: str, job_ids: Sequence[str]) -> None:
        """Tell who drives these elements to ask for placements again. It is no error if the array has just ended."""
        async with self.reaching() as client:
            try:
                await client.get_workflow_handle(array_id).signal(
                    "elements_place_again", ElementsAgain(job_ids=list(job_ids)), rpc_timeout=RPC_TIMEOUT
                )
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    async def change_limit(self, job_id: str, change: LimitChange) -> None:
        """Tell the workflow of a job that runs that it has another time limit. Raises :class:`Unavailable`. It is no
        error if the workflow has just ended."""
        async with self.reaching() as client:
            try:
                await client.get_workflow_handle(job_id).signal("change_limit", change)
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    async def interrupt_orphan(
        self,
        job: Job,
        held: Sequence[HeldAttempt],
        signal: str,
        interrupt: Interrupt,
        array: ArrayInput | None = None,
    ) -> None:
        """End a job whose workflow is gone although the job has not ended. ``array``: it is an element of this one.

        If Temporal does not know the workflow, a new one takes over the job, or its array, and gets the signal. If it
        is closed, the job is cleaned up.
        """
        try:
            if array is None:
                await self._start(job.id, job.spec, (signal, interrupt), takes_over=True)
            else:
                meant = ElementInterrupt(job_id=job.id, interrupt=interrupt)
                await self.start_array(array, (element_signal(signal), meant))
        except WorkflowGone:
            state = JobState.FAILED if signal == "preempt" else JobState.CANCELLED
            async with self.reaching() as client:
                workflows = TemporalJobWorkflows(client)
                for key in cleanup_keys(job.id, job.attempt, held):
                    message = "its workflow had ended before it"
                    given = CleanupInput(key=key, message=message, state=state, actor=interrupt.actor)
                    await workflows.clean_up(given)

    async def start_array(self, given: ArrayInput, signal: ArraySignal | None = None) -> None:
        """Start the workflow of an array; with a signal an open one gets the signal instead. It is no error if it was
        started already, but with a signal :class:`WorkflowGone` if it has ended."""
        async with self.reaching() as client:
            try:
                await self._starter.start_array(client, given, signal=signal, rpc_timeout=RPC_TIMEOUT)
            except WorkflowAlreadyStartedError as error:
                if signal is not None:
                    raise WorkflowGone from error

    async def order_remediation(self, workflow_id: str, signal: str, order: RemediationOrder) -> None:
        """Send ``approve``, ``veto`` or ``overrule``. Raises :class:`WorkflowGone` if there is no remediation."""
        async with self.reaching() as client:
            with _telling_gone():
                await client.get_workflow_handle(workflow_id).signal(signal, order, rpc_timeout=RPC_TIMEOUT)

    async def remediation_status(self, workflow_id: str) -> RemediationStatus:
        """The state of a remediation. Raises :class:`WorkflowGone` if there is none."""
        async with self.reaching() as client:
            handle = client.get_workflow_handle(workflow_id)
            with _telling_gone():
                if (await handle.describe(rpc_timeout=RPC_TIMEOUT)).close_time is not None:
                    raise WorkflowGone
                return await handle.query("status", result_type=RemediationStatus, rpc_timeout=RPC_TIMEOUT)

    async def report_alerts(self, name: str, reports: AlertReports) -> None:
        """Tell the workflow of alerts with this name, which is started if there is none."""
        async with self.reaching() as client:
            await client.start_workflow(
                ALERT_WORKFLOW,
                AlertGroup(name=name),
                id=alert_workflow_id(name),
                task_queue=CONTROL_TASK_QUEUE,
                start_signal="report",
                start_signal_args=[reports],
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=f"alert {name}"[:SUMMARY_BYTES],
                rpc_timeout=RPC_TIMEOUT,
            )

    async def test_notifications(self, test: NotificationTest) -> list[Delivery]:
        """Try one target, or all, and say what came of it."""
        async with self.reaching(TEST_PATIENCE_S) as client:
            try:
                return await client.execute_workflow(
                    NOTIFICATION_TEST_WORKFLOW,
                    test,
                    id=f"notification-test-{uuid.uuid4()}",
                    task_queue=CONTROL_TASK_QUEUE,
                    execution_timeout=timedelta(seconds=TEST_PATIENCE_S - PATIENCE_S),
                    result_type=list[Delivery],
                )
            except WorkflowFailureError as error:
                raise Unavailable("the test did not end: no control worker runs, or its log says why") from error

    async def ping(self) -> None:
        """Raise :class:`Unavailable` unless Temporal answers within two seconds and has the namespace."""
        async with self.reaching() as client:
            await describe_namespace(client, timedelta(seconds=2))

    async def _start(
        self, job_id: str, spec: JobSpec, signal: tuple[str, Interrupt] | None, *, takes_over: bool = False
    ) -> None:
        given = JobInput(job_id=job_id, spec=spec, takes_over=takes_over)
        async with self.reaching() as client:
            try:
                await self._starter.start_job(client, given, signal=signal, rpc_timeout=RPC_TIMEOUT)
            except WorkflowAlreadyStartedError as error:
                if signal is not None:
                    raise WorkflowGone from error

    @asynccontextmanager
    async def reaching(self, patience_s: float | None = None) -> AsyncIterator[Client]:
        """A client of Temporal. Inside the block its errors become :class:`Unavailable`."""
        client: Client | None = None
        try:
            async with asyncio.timeout(patience_s or PATIENCE_S):
                client = await self._provide()
                yield client
        except RPCError as error:
            # The request itself is valid, so trying again later can help, whatever Temporal answers.
            self._starter.forget_registration()
            log.warning("temporal.refused", status=error.status.name, error=error.message)
            if client is not None and is_missing(error):
                address = client.service_client.config.target_host
                raise Unavailable(how_to_make(address, client.namespace)) from error
            raise Unavailable(f"Temporal does not take requests ({error.status.name}: {error.message})") from error
        except (
            RuntimeError,
            TimeoutError,
            OSError,
        ) as error:  # the SDK raises these if it cannot connect or gets no answer
            self._starter.forget_registration()
            log.warning("temporal.no_answer", error=str(error))
            raise Unavailable(
                "Temporal does not answer; nothing was started, try again in a moment", cause=str(error)[:200]
            ) from error


@contextmanager
def _telling_gone() -> Iterator[None]:
    """Raises :class:`WorkflowGone` if Temporal does not know the workflow, or it has ended."""
    try:
        yield
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise WorkflowGone from error
        raise
