"""A service ends while requests wait for a Temporal that says nothing: they are answered, and may be sent again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import httpx
from google.protobuf.json_format import ParseDict

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.node.system.ports import free_port
from gpu_platform.store import Store
from gpu_platform.v1 import job_service_pb2, job_service_pb2_grpc
from tests.support.api_server import ADMIN, bearer, sign_in
from tests.support.service_process import ServiceProcess, service_process
from tests.support.waiting import eventually

JOB = {"command": ["true"], "gpus": {"gpus_per_host": 1}}


@contextmanager
def _without_answers(store: Store, state_dir: Path, **variables: str) -> Iterator[ServiceProcess]:
    """A service whose Temporal takes connections and never says a word, as a process does that stands still."""
    sign_in(store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        given = {"GPU_PLATFORM_TEMPORAL__ADDRESS": address, **variables}
        with service_process(str(store.url), state_dir, warm=False, **given) as service:
            yield service


def _client(service: ServiceProcess) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=service.url, headers=bearer(), timeout=30)


async def _end_once_it_waits(service: ServiceProcess, http: httpx.AsyncClient) -> None:
    async def waits() -> bool:
        return len((await http.get("/v1/jobs")).json()["items"]) == 1

    await eventually(waits, "the submission to have a row")
    os.kill(service.pid, signal.SIGTERM)


async def test_over_rest(sqlite_store: Store, tmp_path: Path) -> None:
    with _without_answers(sqlite_store, tmp_path) as service:
        async with _client(service) as http:
            waiting = asyncio.create_task(http.post("/v1/jobs", json=JOB))
            await _end_once_it_waits(service, http)
            answer = await waiting
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "this process of the service ends" in answer.json()["detail"]
    assert "retry-after" in answer.headers


async def test_over_grpc(sqlite_store: Store, tmp_path: Path) -> None:
    port = free_port()
    order = ParseDict({"body": JOB}, job_service_pb2.SubmitJobRequest())
    metadata = [(name.lower(), value) for name, value in bearer().items()]
    with _without_answers(sqlite_store, tmp_path, GPU_PLATFORM_SERVICE__GRPC_PORT=str(port)) as service:
        async with _client(service) as http, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            waiting = asyncio.create_task(_code(stub.SubmitJob(order, metadata=metadata)))
            await _end_once_it_waits(service, http)
            assert await waiting is grpc.StatusCode.UNAVAILABLE


async def _code(call: grpc.aio.UnaryUnaryCall) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
