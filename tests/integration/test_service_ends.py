"""A service ends while requests wait for a Temporal that says nothing: they are answered, and may be sent again."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import grpc
import httpx
from google.protobuf.json_format import ParseDict

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.hosts.system.ports import free_port
from gpu_platform.store import Store
from gpu_platform.v1 import job_service_pb2, job_service_pb2_grpc
from tests.service_process import service_process
from tests.unit.service.api_server import ADMIN, bearer, sign_in
from tests.waiting import eventually

JOB = {"command": ["true"], "gpus": {"gpus_per_host": 1}}


async def test_what_waits_at_its_end_is_answered_with_a_503(sqlite_store: Store, tmp_path: Path) -> None:
    sign_in(sqlite_store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
    grpc_port = free_port()
    order = ParseDict({"body": JOB}, job_service_pb2.SubmitJobRequest())
    # Takes connections and never says a word, as a process does that stands still.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        variables = {
            "GPU_PLATFORM_TEMPORAL__ADDRESS": f"127.0.0.1:{silent.getsockname()[1]}",
            "GPU_PLATFORM_SERVICE__GRPC_PORT": str(grpc_port),
        }
        with service_process(str(sqlite_store.url), tmp_path, warm=False, **variables) as service:
            async with (
                httpx.AsyncClient(base_url=service.url, headers=bearer(), timeout=30) as http,
                grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel,
            ):
                stub = job_service_pb2_grpc.JobServiceStub(channel)
                over_rest = asyncio.create_task(http.post("/v1/jobs", json=JOB))
                over_grpc = asyncio.create_task(_code(stub.SubmitJob(order, metadata=_metadata())))

                async def both_wait() -> bool:
                    return len((await http.get("/v1/jobs")).json()["items"]) == 2

                await eventually(both_wait, "both to have a row")
                os.kill(service.pid, signal.SIGTERM)
                answer = await over_rest
                assert await over_grpc is grpc.StatusCode.UNAVAILABLE
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "retry-after" in answer.headers


def _metadata() -> list[tuple[str, str]]:
    return [(name.lower(), value) for name, value in bearer().items()]


async def _code(call: grpc.aio.UnaryUnaryCall) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
