"""Calls to a Temporal that takes connections and then says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities import temporal_connection
from activities.temporal_connection import renewable


async def listed(client: Client) -> None:
    async for _ in client.list_workflows("WorkflowType = 'JobWorkflow'"):
        pass


CALLS: dict[str, Callable[[Client], Awaitable[object]]] = {
    "start": lambda client: client.start_workflow("W", id="w", task_queue="q"),
    "signal": lambda client: client.get_workflow_handle("w").signal("s"),
    "query": lambda client: client.get_workflow_handle("w").query("q"),
    "describe": lambda client: client.get_workflow_handle("w").describe(),
    "list": listed,
    "complete": lambda client: client.get_async_activity_handle(task_token=b"t").complete(),
    "heartbeat": lambda client: client.get_async_activity_handle(task_token=b"t").heartbeat(),
    "cancel": lambda client: client.get_workflow_handle("w").cancel(),
    "terminate": lambda client: client.get_workflow_handle("w").terminate(),
    "result": lambda client: client.get_workflow_handle("w").result(),
    "count": lambda client: client.count_workflows(),
    "schedule": lambda client: client.get_schedule_handle("s").trigger(),
    "search attributes": lambda client: client.operator_service.list_search_attributes(ListSearchAttributesRequest()),
    "task queue": lambda client: client.workflow_service.describe_task_queue(DescribeTaskQueueRequest()),
}


@pytest.mark.parametrize("connected_before", [True, False])
async def test_every_call_ends(temporal: Client, connected_before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal_connection, "ANSWER_WITHIN", timedelta(seconds=0.2))
    monkeypatch.setattr(temporal_connection, "NEXT_EVENT_WITHIN", timedelta(seconds=0.2))
    monkeypatch.setattr(temporal_connection, "_TO_CONNECT_S", 0.1)
    silent = False

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if not silent:
                writer.write(data)

    host, port = temporal.service_client.config.target_host.rsplit(":", 1)
    ends: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, int(port))
        ends.extend([writer, there_writer])
        await asyncio.gather(pipe(reader, there_writer), pipe(there_reader, writer))

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    client = renewable(await Client.connect(address, lazy=not connected_before))
    silent = True
    for call in CALLS.values():
        with pytest.raises(RPCError) as failed:
            await asyncio.wait_for(call(client), 30)
        assert failed.value.status in (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED)
    proxy.close()
    for end in ends:
        end.close()
        await end.wait_closed()
