"""A Temporal dev server for tests and benchmarks: one serves a whole test run, and each test has a namespace in it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.node.system.ports import free_port
from gpu_platform.temporal.search_attributes import register
from tests.support.postgres import die_with_parent
from tests.support.waiting import eventually

START_TIMEOUT_S = 30
DYNAMIC_CONFIG = (
    # One server: spreading a task queue over partitions only forwards between them.
    "matching.numTaskqueueReadPartitions=1",
    "matching.numTaskqueueWritePartitions=1",
    # Temporal's own workers in each namespace: only schedules need them.
    "worker.perNamespaceWorkerCount={own_workers}",
)


def temporal_binary() -> str:
    return shutil.which("temporal") or str(Path(sys.executable).with_name("temporal"))


@contextmanager
def running_temporal(*, has_schedules: bool = False) -> Iterator[str]:
    """Start a server that keeps everything in memory; yield its address, which answers a little later."""
    address = f"127.0.0.1:{free_port()}"
    host, port = address.split(":")
    values = [value.format(own_workers=int(has_schedules)) for value in DYNAMIC_CONFIG]
    options = [part for value in values for part in ("--dynamic-config-value", value)]
    server = subprocess.Popen(
        [*die_with_parent(), temporal_binary(), "server", "start-dev", "--headless", "--log-level", "error",
         "--ip", host, "--port", port, *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # The Go runtime collects garbage less often, which saves a fifth of its time for some memory.
        env={**os.environ, "GOGC": "300"},
    )  # fmt: skip
    try:
        yield address
    finally:
        server.kill()
        server.wait()


async def client_of_new_namespace(address: str, name: str | None = None) -> Client:
    """A client of a namespace with our search attributes. None: any name. It is made unless it is there."""
    name = name or f"test-{uuid.uuid4().hex[:12]}"
    client = await _connect(address, name)
    wanted = RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=Duration(seconds=86400))
    try:
        await client.workflow_service.register_namespace(wanted)
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            raise
    await eventually(lambda: _registered(client), "the namespace to be known", within_s=START_TIMEOUT_S)
    return client


async def _registered(client: Client) -> bool:
    """A server that was asked for the namespace before it was made says for some seconds that there is none."""
    try:
        await register(client)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return False
    return True


@asynccontextmanager
async def temporal_server() -> AsyncIterator[Client]:
    """A server for one caller alone."""
    with running_temporal() as address:
        yield await client_of_new_namespace(address)


async def _connect(address: str, namespace: str) -> Client:
    """Waits for a server that has just been started."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            return await Client.connect(address, namespace=namespace, data_converter=pydantic_data_converter)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.02)
