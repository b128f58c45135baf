"""A service with REST and gRPC, on the parts of ``tests/support/api_server.py``."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest

from gpu_platform.client.wire import Problem
from gpu_platform.rpc import statuses
from gpu_platform.settings import ServiceSettings
from gpu_platform.settings.service import RateLimit, RateLimitSettings
from gpu_platform.store import Store
from service.grpc.server import GrpcServer
from service.server import Server
from tests.support.api_server import ADMIN, LogFiles, application
from tests.support.store_cluster import Cluster
from tests.support.waiting import eventually

NO_TEMPORAL = "127.0.0.1:1"
JOB = "j-1jrp3k2h0x4t7za"
SIGNED_IN = (("authorization", f"Bearer {ADMIN}"),)


@dataclass
class Running:
    """A service with REST and gRPC."""

    server: Server
    grpc: GrpcServer
    store: Store
    app: Any
    channel: grpc.aio.Channel
    logs: LogFiles

    @property
    def context(self) -> Any:
        return self.app.state.context


@asynccontextmanager
async def running_with(sqlite_store: Store, **settings: Any) -> AsyncIterator[Running]:
    logs = LogFiles("a")
    limits = RateLimitSettings(bad_tokens=RateLimit(per_s=0.01, burst=3), at_once=4)
    app = application(sqlite_store, NO_TEMPORAL, service=ServiceSettings(rate_limits=limits, **settings))
    async with logs.served() as worker_url:
        Cluster(sqlite_store).host("a", url=worker_url).running(JOB, {"a": [0]})
        server = GrpcServer(app, "127.0.0.1", 0)
        service = Server(app, "127.0.0.1", 0, grpc=server)
        task = asyncio.create_task(service._serve(sockets=[socket.create_server(("127.0.0.1", 0))]))
        await eventually(lambda: _has_begun(server, task), "the server to begin")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield Running(service, server, sqlite_store, app, channel, logs)
        service.should_exit = True
        await task


async def _has_begun(server: GrpcServer, task: asyncio.Task[None]) -> bool:
    assert not task.done(), "the server did not start"
    return server.port != 0


async def refusal(call: Any) -> tuple[grpc.StatusCode, Problem]:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code(), statuses.problem_of(failed.value)


def open_requests(running: Running) -> int:
    return sum(running.context.rate_limits._open.values())
