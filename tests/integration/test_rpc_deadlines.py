"""Calls to a Temporal that takes connections and then says nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from workers import rpc_deadlines
from workers.rpc_deadlines import RpcDeadlines


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
}


async def test_every_call_ends(temporal: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_deadlines, "RPC_TIMEOUT", timedelta(seconds=0.2))
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
    client = await Client.connect(address, interceptors=[RpcDeadlines()])
    silent = True
    for call in CALLS.values():
        with pytest.raises(RPCError):
            await asyncio.wait_for(call(client), 30)
    proxy.close()
    for end in ends:
        end.close()
        await end.wait_closed()
