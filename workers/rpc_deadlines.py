"""Deadlines for calls to Temporal: a connection that is cut can stay silent for ever."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol, TypeVar

from temporalio import client
from temporalio.client import OutboundInterceptor

RPC_TIMEOUT = timedelta(seconds=10)
"""The deadline of calls that have none. The caller tries again."""


class _RpcCall(Protocol):
    rpc_timeout: timedelta | None


C = TypeVar("C", bound=_RpcCall)


class RpcDeadlines(client.Interceptor):
    """Gives calls of a Temporal client a deadline. For ``Client.connect(interceptors=...)``.

    Long polls (waiting for a workflow's result) keep theirs.
    """

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Give each call of the client a deadline."""
        return _Bounded(next)


class _Bounded(OutboundInterceptor):
    async def start_workflow(self, input: client.StartWorkflowInput) -> client.WorkflowHandle[Any, Any]:
        return await super().start_workflow(_bounded(input))

    async def signal_workflow(self, input: client.SignalWorkflowInput) -> None:
        await super().signal_workflow(_bounded(input))

    async def query_workflow(self, input: client.QueryWorkflowInput) -> Any:
        return await super().query_workflow(_bounded(input))

    async def describe_workflow(self, input: client.DescribeWorkflowInput) -> client.WorkflowExecutionDescription:
        return await super().describe_workflow(_bounded(input))

    def list_workflows(self, input: client.ListWorkflowsInput) -> client.WorkflowExecutionAsyncIterator:
        return super().list_workflows(_bounded(input))

    async def complete_async_activity(self, input: client.CompleteAsyncActivityInput) -> None:
        await super().complete_async_activity(_bounded(input))


def _bounded(call: C) -> C:
    if call.rpc_timeout is None:
        call.rpc_timeout = RPC_TIMEOUT
    return call
