"""A client that connects at its first call, to a server that is just being started."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.temporal.connection import renewable


@pytest.mark.parametrize("listens", [False, True])
async def test_a_connection_that_fails_is_an_error_as_that_of_any_other_call(listens: bool) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with contextlib.AsyncExitStack() as stack:
        if listens:
            await stack.enter_async_context(server)
        else:
            server.close()
        client = renewable(await Client.connect(f"127.0.0.1:{port}", lazy=True))
        with pytest.raises(RPCError) as failed:
            await client.start_workflow("Any", id="any", task_queue="any")
    assert failed.value.status is RPCStatusCode.UNAVAILABLE
