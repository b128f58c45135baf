"""Which host sends a message to a workflow: it stands in a header that no host can write.

The node gateway reads the host's name in its certificate, and writes it over whatever the host wrote. Where hosts reach
Temporal without a gateway, all on one machine, a node worker writes its name itself. A message without the header comes
from the control plane. Workflows compare what a message says with the one who sent it: ``docs/explanation/
hosts-that-lie.md`` has the table of all messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import temporalio.client
import temporalio.worker
from temporalio.api.common.v1 import Payload
from temporalio.client import SignalWorkflowInput, StartWorkflowInput, WorkflowHandle
from temporalio.worker import HandleSignalInput, WorkflowInboundInterceptor, WorkflowInterceptorClassInput

HOST_HEADER = "gpu-platform-host"
_ENCODING = b"binary/plain"


def host_payload(host: str) -> Payload:
    """The value of the header that names this host."""
    return Payload(metadata={"encoding": _ENCODING}, data=host.encode())


def host_in(headers: Mapping[str, Payload]) -> str | None:
    """The host that the headers of a message name. None: the control plane sent it."""
    found = headers.get(HOST_HEADER)
    return None if found is None else found.data.decode(errors="replace")


def may_speak_for(sender: str | None, host: str) -> bool:
    """True if the sender of a message (None: the control plane) is believed when it speaks of this host."""
    return sender is None or sender == host


_sender: ContextVar[str | None] = ContextVar("sender", default=None)


def sender_of_signal() -> str | None:
    """The host that sent the signal which is being handled. None: the control plane sent it."""
    return _sender.get()


class NotingSenders(temporalio.worker.Interceptor):
    """Of the control worker: tells handlers of signals who sends them, by :func:`sender_of_signal`."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        """Called by Temporal's worker."""
        return _Noting


class _Noting(WorkflowInboundInterceptor):
    async def handle_signal(self, input: HandleSignalInput) -> None:
        # Temporal runs each signal in a task of its own, so nobody else reads this.
        _sender.set(host_in(input.headers))
        await super().handle_signal(input)


class NamingItself(temporalio.client.Interceptor):
    """Of a node worker: writes the header where no gateway does."""

    def __init__(self, host: str) -> None:
        self._header = {HOST_HEADER: host_payload(host)}

    def intercept_client(self, next: temporalio.client.OutboundInterceptor) -> temporalio.client.OutboundInterceptor:
        """Called by Temporal's client."""
        return _Naming(next, self._header)


class _Naming(temporalio.client.OutboundInterceptor):
    def __init__(self, next: temporalio.client.OutboundInterceptor, header: Mapping[str, Payload]) -> None:
        super().__init__(next)
        self._header = header

    async def start_workflow(self, input: StartWorkflowInput) -> WorkflowHandle[Any, Any]:
        input.headers = {**input.headers, **self._header}
        return await super().start_workflow(input)

    async def signal_workflow(self, input: SignalWorkflowInput) -> None:
        input.headers = {**input.headers, **self._header}
        await super().signal_workflow(input)
