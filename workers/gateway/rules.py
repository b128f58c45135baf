"""What a host may ask of Temporal, method by method. Everything else is refused.

A host polls its own task queue and answers the tasks that it was given: the token of a task is sealed for the host that
got it, so a token that another host saw, or that somebody made up, is worth nothing. Messages are rebuilt from the
fields that a node worker needs. Their payloads are passed through unread: the gateway has no key that opens them. So
what they say of other hosts is not seen here. Each message to a workflow gets the name of the host that sent it, in a
header that the host cannot write, and the workflow believes it for that host alone (``activities/senders.py``).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from google.protobuf.message import DecodeError, Message
from grpc import StatusCode
from temporalio.api.enums.v1 import WorkflowIdConflictPolicy, WorkflowIdReusePolicy
from temporalio.api.workflowservice.v1 import (
    DescribeNamespaceRequest,
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
    PollActivityTaskQueueRequest,
    PollActivityTaskQueueResponse,
    RecordActivityTaskHeartbeatRequest,
    RecordWorkerHeartbeatRequest,
    RespondActivityTaskCanceledRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedByIdRequest,
    RespondActivityTaskFailedRequest,
    ShutdownWorkerRequest,
    SignalWithStartWorkflowExecutionRequest,
    SignalWorkflowExecutionRequest,
    StartWorkflowExecutionRequest,
)

from activities.senders import HOST_HEADER, host_payload
from gpu_platform.domain.contracts import (
    CONTROL_TASK_QUEUE,
    gpu_of_remediation,
    host_report_id,
    is_watch_on,
    node_task_queue,
    remediation_id,
)
from gpu_platform.identity.key_ring import CannotOpen, KeyRing
from gpu_platform.temporal.job_signals import element_signal

M = TypeVar("M", bound=Message)
SERVICE = "/temporal.api.workflowservice.v1.WorkflowService/"
LARGEST_MESSAGE = 4 << 20
"""Bytes, of what has payloads. Temporal takes no larger payload than 2 MiB, nor a larger message than 4."""
LARGEST_WITHOUT_PAYLOADS = 64 << 10
REPORT_WITHIN_S = 60
"""Seconds in which a report through Temporal must be written. Node workers wait for a few seconds."""
LARGEST_SIGNAL = 64 << 10
"""Bytes. A fault has about 1 KiB, and its message at most 8 KiB."""
SIGNALS_PER_HOUR = 200
"""Of a host to one workflow. A GPU that fails this often is out of service long before."""
HEALTH = "/grpc.health.v1.Health/Check"
_OF_WORKFLOW = (
    "namespace",
    "workflow_id",
    "workflow_type",
    "task_queue",
    "input",
    "workflow_execution_timeout",
    "workflow_task_timeout",
    "identity",
    "request_id",
    "workflow_id_reuse_policy",
    "workflow_id_conflict_policy",
)


class RefusedCall(Exception):
    """The host may not do this."""

    def __init__(self, why: str, status: StatusCode = StatusCode.PERMISSION_DENIED) -> None:
        super().__init__(why)
        self.status = status


class _SignalCounts:
    """How many signals each host has sent to each workflow. Temporal takes 10,000 for a workflow, and a workflow may be
    that of an array whose other elements run elsewhere."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, call: HostCall, workflow_id: str) -> None:
        """Count a signal. Raises :class:`RefusedCall` if it is too large, or one too many."""
        if len(call.request) > LARGEST_SIGNAL:
            raise RefusedCall(f"its signal has more than {LARGEST_SIGNAL >> 10} KiB", StatusCode.INVALID_ARGUMENT)
        if time.monotonic() - self._since >= 3600.0:
            self._since, self._counts = time.monotonic(), Counter()
        self._counts[call.host, workflow_id] += 1
        if self._counts[call.host, workflow_id] > SIGNALS_PER_HOUR:
            why = f"it sent more than {SIGNALS_PER_HOUR} signals to {workflow_id!r} within an hour"
            raise RefusedCall(why, StatusCode.RESOURCE_EXHAUSTED)


class Size(NamedTuple):
    """What a call of a method costs."""

    most_bytes: int
    lasts: bool = False
    """It waits, up to a minute."""


class HostRights(Protocol):
    """What the database says of a host."""

    async def has_job(self, host: str, job_id: str) -> bool:
        """True if the job holds something on the host."""
        ...

    async def has_gpu(self, host: str, uuid: str) -> bool:
        """True if the GPU is of the host."""
        ...


@dataclass(frozen=True)
class HostCall:
    """A call of a host."""

    host: str
    request: bytes


Check = Callable[[HostCall], Awaitable[bytes]]
"""The request as it goes to Temporal. Raises :class:`RefusedCall`."""


class AllowedCalls:
    """The allow-list. ``tokens``: the key ring that seals tokens of tasks."""

    def __init__(self, namespace: str, tokens: KeyRing, rights: HostRights) -> None:
        self._namespace, self._tokens, self._rights = namespace, tokens, rights
        self._signals = _SignalCounts()
        self._checks: dict[str, Check] = {
            HEALTH: _as_it_is,
            SERVICE + "GetSystemInfo": _as_it_is,
            SERVICE + "DescribeNamespace": self._describe,
            SERVICE + "ShutdownWorker": self._shut_down,
            SERVICE + "RecordWorkerHeartbeat": self._worker_heartbeat,
            SERVICE + "PollActivityTaskQueue": self._poll,
            SERVICE + "RecordActivityTaskHeartbeat": self._of_task(RecordActivityTaskHeartbeatRequest, "details"),
            SERVICE + "RespondActivityTaskCompleted": self._of_task(RespondActivityTaskCompletedRequest, "result"),
            SERVICE + "RespondActivityTaskFailed": self._of_task(
                RespondActivityTaskFailedRequest, "failure", "last_heartbeat_details"
            ),
            SERVICE + "RespondActivityTaskFailedById": self._watch_again,
            SERVICE + "RespondActivityTaskCanceled": self._of_task(RespondActivityTaskCanceledRequest, "details"),
            SERVICE + "SignalWorkflowExecution": self._signal,
            SERVICE + "SignalWithStartWorkflowExecution": self._remediate,
            SERVICE + "StartWorkflowExecution": self._report,
            SERVICE + "GetWorkflowExecutionHistory": self._read_report,
        }

    def knows(self, method: str) -> bool:
        """True if a host may call the method at all."""
        return method in self._checks

    def size(self, method: str) -> Size:
        """How large the messages of the method are. Raises :class:`RefusedCall` for one that no host needs."""
        if not self.knows(method):
            raise RefusedCall("a host does not need this method")
        return _SIZES.get(method.removeprefix(SERVICE), Size(LARGEST_WITHOUT_PAYLOADS))

    async def check(self, method: str, call: HostCall) -> bytes:
        """The request that goes to Temporal. ``method``: one that hosts need. Raises :class:`RefusedCall`."""
        return await self._checks[method](call)

    def answer(self, method: str, host: str, response: bytes) -> bytes:
        """The answer that goes to the host."""
        if method == SERVICE + "GetWorkflowExecutionHistory":
            return self._page(host, response)
        if method != SERVICE + "PollActivityTaskQueue":
            return response
        task = PollActivityTaskQueueResponse.FromString(response)
        if not task.task_token:
            return response  # the poll ended without a task
        task.task_token = self._tokens.seal(task.task_token, associated=host.encode())
        return task.SerializeToString()

    def _page(self, host: str, response: bytes) -> bytes:
        """Temporal believes what the token of the next page says, and that is not only of this workflow."""
        page = GetWorkflowExecutionHistoryResponse.FromString(response)
        if page.next_page_token:
            page.next_page_token = self._tokens.seal(page.next_page_token, associated=_page_of(host))
        return page.SerializeToString()

    async def _describe(self, call: HostCall) -> bytes:
        asked = self._read(DescribeNamespaceRequest, call)
        return DescribeNamespaceRequest(namespace=asked.namespace).SerializeToString()

    async def _shut_down(self, call: HostCall) -> bytes:
        asked = self._read(ShutdownWorkerRequest, call)
        if asked.sticky_task_queue or asked.task_queue not in ("", node_task_queue(call.host)):
            raise RefusedCall("a host ends its own polls only")
        if asked.HasField("worker_heartbeat") and asked.worker_heartbeat.task_queue != node_task_queue(call.host):
            raise RefusedCall("a host speaks for its own worker only")
        fields = ("namespace", "identity", "reason", "worker_heartbeat", "task_queue", "task_queue_types")
        return _only(asked, *fields).SerializeToString()

    async def _worker_heartbeat(self, call: HostCall) -> bytes:
        asked = self._read(RecordWorkerHeartbeatRequest, call)
        if any(worker.task_queue != node_task_queue(call.host) for worker in asked.worker_heartbeat):
            raise RefusedCall("a host speaks for its own worker only")
        return _only(asked, "namespace", "identity", "worker_heartbeat").SerializeToString()

    async def _poll(self, call: HostCall) -> bytes:
        asked = self._read(PollActivityTaskQueueRequest, call)
        queue = asked.task_queue.name
        if queue != node_task_queue(call.host):
            raise RefusedCall(f"it polls {queue!r}, which is not its task queue")
        return _only(asked, "namespace", "task_queue", "identity", "task_queue_metadata").SerializeToString()

    def _of_task(self, kind: type[M], *fields: str) -> Check:
        async def check(call: HostCall) -> bytes:
            asked = self._read(kind, call)
            sent = _only(asked, "namespace", "identity", *fields)
            try:
                token = self._tokens.open(asked.task_token, associated=call.host.encode())  # type: ignore[attr-defined]
            except CannotOpen as error:
                raise RefusedCall("the task was not given to this host") from error
            sent.task_token = token  # type: ignore[attr-defined]
            return sent.SerializeToString()

        return check

    async def _watch_again(self, call: HostCall) -> bytes:
        """A host may only say that a watch of its own has failed. Then Temporal repeats it."""
        asked = self._read(RespondActivityTaskFailedByIdRequest, call)
        if not is_watch_on(call.host, asked.activity_id):
            raise RefusedCall(f"{asked.activity_id!r} is no watch of its own")
        fields = ("namespace", "workflow_id", "run_id", "activity_id", "failure", "identity")
        return _only(asked, *fields).SerializeToString()

    async def _signal(self, call: HostCall) -> bytes:
        asked = self._read(SignalWorkflowExecutionRequest, call)
        job_id = asked.workflow_execution.workflow_id
        if asked.signal_name not in ("gpu_fault", element_signal("gpu_fault")):
            raise RefusedCall(f"it sends the signal {asked.signal_name!r}")
        if not await self._rights.has_job(call.host, job_id):
            # NOT_FOUND, as for a job that has ended: the node worker then goes on to the remediation.
            raise RefusedCall(f"job {job_id!r} holds nothing on it", StatusCode.NOT_FOUND)
        self._signals.count(call, job_id)
        fields = ("namespace", "workflow_execution", "signal_name", "input", "identity", "request_id")
        return _sent_by(call, _only(asked, *fields))

    async def _remediate(self, call: HostCall) -> bytes:
        asked = self._read(SignalWithStartWorkflowExecutionRequest, call)
        self._check_start(asked, "RemediationWorkflow")
        uuid = gpu_of_remediation(asked.workflow_id)
        if asked.workflow_id != remediation_id(uuid) or not await self._rights.has_gpu(call.host, uuid):
            raise RefusedCall(f"{asked.workflow_id!r} is not the remediation of one of its GPUs")
        if asked.signal_name != "fault":
            raise RefusedCall(f"it sends the signal {asked.signal_name!r}")
        if asked.workflow_id_conflict_policy == WorkflowIdConflictPolicy.WORKFLOW_ID_CONFLICT_POLICY_TERMINATE_EXISTING:
            raise RefusedCall("it would end a remediation that is under way")
        self._signals.count(call, asked.workflow_id)
        return _sent_by(call, _only(asked, *_OF_WORKFLOW, "signal_name", "signal_input"))

    async def _report(self, call: HostCall) -> bytes:
        asked = self._read(StartWorkflowExecutionRequest, call)
        self._check_start(asked, "HostReportWorkflow")
        if asked.workflow_id != host_report_id(call.host):
            raise RefusedCall(f"{asked.workflow_id!r} is not its own report")
        sent = _only(asked, *_OF_WORKFLOW)
        # A report that nobody can read would stay under way for ever.
        sent.workflow_execution_timeout.FromSeconds(REPORT_WITHIN_S)
        return _sent_by(call, sent)

    async def _read_report(self, call: HostCall) -> bytes:
        asked = self._read(GetWorkflowExecutionHistoryRequest, call)
        if asked.execution.workflow_id != host_report_id(call.host):
            raise RefusedCall(f"it reads the history of {asked.execution.workflow_id!r}")
        sent = _only(
            asked, "namespace", "execution", "maximum_page_size", "wait_new_event", "history_event_filter_type"
        )
        if asked.next_page_token:
            try:
                sent.next_page_token = self._tokens.open(asked.next_page_token, associated=_page_of(call.host))
            except CannotOpen as error:
                raise RefusedCall("the page was not given to this host") from error
        return sent.SerializeToString()

    def _check_start(
        self, asked: StartWorkflowExecutionRequest | SignalWithStartWorkflowExecutionRequest, kind: str
    ) -> None:
        if asked.workflow_type.name != kind or asked.task_queue.name != CONTROL_TASK_QUEUE:
            raise RefusedCall(f"it starts a {asked.workflow_type.name!r} on {asked.task_queue.name!r}")
        if asked.workflow_id_reuse_policy == WorkflowIdReusePolicy.WORKFLOW_ID_REUSE_POLICY_TERMINATE_IF_RUNNING:
            raise RefusedCall("it would end a workflow that is under way")

    def _read(self, kind: type[M], call: HostCall) -> M:
        try:
            message = kind.FromString(call.request)
        except DecodeError as error:
            raise RefusedCall("its request cannot be read", StatusCode.INVALID_ARGUMENT) from error
        if message.namespace != self._namespace:  # type: ignore[attr-defined]
            raise RefusedCall(f"it asks for the namespace {message.namespace!r}")  # type: ignore[attr-defined]
        return message


def _sent_by(
    call: HostCall,
    sent: SignalWorkflowExecutionRequest | SignalWithStartWorkflowExecutionRequest | StartWorkflowExecutionRequest,
) -> bytes:
    """The message to a workflow, with the name of the host that sends it."""
    sent.header.fields[HOST_HEADER].CopyFrom(host_payload(call.host))
    return sent.SerializeToString()


_SIZES = {
    "PollActivityTaskQueue": Size(LARGEST_WITHOUT_PAYLOADS, lasts=True),
    "GetWorkflowExecutionHistory": Size(LARGEST_WITHOUT_PAYLOADS, lasts=True),
    "RecordActivityTaskHeartbeat": Size(LARGEST_MESSAGE),
    "RespondActivityTaskCompleted": Size(LARGEST_MESSAGE),
    "RespondActivityTaskFailed": Size(LARGEST_MESSAGE),
    "RespondActivityTaskFailedById": Size(LARGEST_MESSAGE),
    "RespondActivityTaskCanceled": Size(LARGEST_MESSAGE),
    "SignalWorkflowExecution": Size(LARGEST_MESSAGE),
    "SignalWithStartWorkflowExecution": Size(LARGEST_MESSAGE),
    "StartWorkflowExecution": Size(LARGEST_MESSAGE),
}


def _page_of(host: str) -> bytes:
    """What a page belongs to: no name of a host has a space, so it is no token of a task."""
    return f"page of {host}".encode()


async def _as_it_is(call: HostCall) -> bytes:
    return call.request


def _only(message: M, *fields: str) -> M:
    """The message with these fields alone, and without what this release does not know."""
    kept = type(message)()
    kept.CopyFrom(message)
    for field, _ in message.ListFields():
        if field.name not in fields:
            kept.ClearField(field.name)
    kept.DiscardUnknownFields()
    return kept
