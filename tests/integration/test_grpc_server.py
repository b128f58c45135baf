"""What a gRPC server must do besides answering: deadlines, cancellation, streams, health, reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status
from prometheus_client.registry import REGISTRY

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.errors import CannotStart
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.access import tokens
from gpu_platform.store.jobs import jobs
from gpu_platform.store.reservations import attempts
from gpu_platform.v1 import (
    event_service_pb2,
    event_service_pb2_grpc,
    host_service_pb2,
    host_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
)
from service.grpc.in_process import InProcessRequest
from service.grpc.server import GrpcServer
from tests.support.api_server import sign_in
from tests.support.grpc_server import JOB, SIGNED_IN, Running, open_requests, refusal, running_with
from tests.support.store_cluster import NOW, key
from tests.support.waiting import eventually


@pytest.fixture
async def running(sqlite_store: Store) -> AsyncIterator[Running]:
    async with running_with(sqlite_store) as found:
        yield found


# -- streams ---------------------------------------------------------------------------------------


async def test_a_job_is_followed_to_its_end_and_again_from_the_middle(running: Running) -> None:
    events = event_service_pb2_grpc.EventServiceStub(running.channel)
    request = event_service_pb2.FollowJobEventsRequest(job_id=JOB)
    seen = []
    async for message in events.FollowJobEvents(request, metadata=SIGNED_IN):
        seen.append(message)
        if message.data.kind == "job.running":
            _end(running.store)
    kinds = [message.data.kind for message in seen]
    assert kinds[-1] == "job.completed"
    assert [message.id for message in seen] == [str(message.data.seq) for message in seen]
    request.last_event_id = seen[1].id
    again = [message async for message in events.FollowJobEvents(request, metadata=SIGNED_IN)]
    assert [message.data for message in again] == [message.data for message in seen[2:]]


def _end(store: Store) -> None:
    attempts.end_attempt(store, key(JOB), [JobState.COMPLETED], now=NOW + timedelta(seconds=5), actor="control")


async def test_logs_are_followed(running: Running) -> None:
    running.logs.write(JOB, 1, 0, "one\nzwölf\n".encode())
    events = event_service_pb2_grpc.EventServiceStub(running.channel)
    found = []
    async for message in events.FollowLogs(event_service_pb2.FollowLogsRequest(job_id=JOB), metadata=SIGNED_IN):
        found.append(message)
        if "zwölf" in message.data.text:
            running.logs.write(JOB, 1, 0, b"end\n")
            _end(running.store)
    assert "".join(message.data.text for message in found) == "one\nzwölf\nend\n"
    assert found[-1].id == f"1.{found[-1].data.next_offset}"


async def test_a_whole_log_comes_in_pieces(running: Running) -> None:
    data = bytes(range(256)) * 20_000  # more than one message may hold, and no UTF-8
    running.logs.write(JOB, 1, 0, data)
    events = event_service_pb2_grpc.EventServiceStub(running.channel)
    call = events.ReadLogs(event_service_pb2.ReadLogsRequest(job_id=JOB), metadata=SIGNED_IN)
    pieces = [one.text async for one in call]
    assert b"".join(pieces) == data
    assert len(pieces) > 1


async def test_a_stream_that_is_cancelled_ends_the_request(running: Running) -> None:
    events = event_service_pb2_grpc.EventServiceStub(running.channel)
    call = events.FollowEvents(event_service_pb2.FollowEventsRequest(after=0), metadata=SIGNED_IN)
    assert (await call.read()).data.seq == 1
    assert open_requests(running) == 1
    call.cancel()
    await eventually(lambda: _none_open(running), "the request to end")


async def test_the_deadline_ends_the_request(running: Running) -> None:
    events = event_service_pb2_grpc.EventServiceStub(running.channel)
    call = events.FollowEvents(event_service_pb2.FollowEventsRequest(), metadata=SIGNED_IN, timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call.read()
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    stub = job_service_pb2_grpc.JobServiceStub(running.channel)
    waiting = stub.GetJob(job_service_pb2.GetJobRequest(job_id=JOB, wait_s=60), metadata=SIGNED_IN, timeout=0.3)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await waiting
    assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: _none_open(running), "the requests to end")


async def _none_open(running: Running) -> bool:
    return open_requests(running) == 0


async def test_what_changes_something_goes_on_when_nobody_waits(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over HTTP: a change that is cut off in the middle is worse than one that nobody heard of."""
    begun, go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(*_: Any) -> Any:
        begun.set()
        await go_on.wait()
        done.set()
        return jobs.get_job(running.store, JOB)

    async def leave(exchange: InProcessRequest) -> None:
        await original(exchange)
        left.set()

    original, left = InProcessRequest._leave, asyncio.Event()
    monkeypatch.setattr(InProcessRequest, "_leave", leave)
    monkeypatch.setattr("service.operations.submission.interrupt", slow)
    stub = job_service_pb2_grpc.JobServiceStub(running.channel)
    call = stub.CancelJob(job_service_pb2.CancelJobRequest(job_id=JOB), metadata=SIGNED_IN)
    waiting = asyncio.ensure_future(call)
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(5):
        await left.wait()
        go_on.set()
        await done.wait()


async def test_a_revoked_token_ends_its_streams(running: Running) -> None:
    token = f"gpt_{'short' * 8}"
    info = sign_in(running.store, token, "ada", {CLUSTER: Role.VIEWER})
    events = event_service_pb2_grpc.EventServiceStub(running.channel)
    request = event_service_pb2.FollowEventsRequest(after=0)
    call = events.FollowEvents(request, metadata=(("authorization", f"Bearer {token}"),))
    assert (await call.read()).data.seq == 1
    tokens.revoke_token(running.store, info.id, actor="admin", now=NOW)
    assert await _end_of(call) is grpc.StatusCode.UNAUTHENTICATED


async def test_streams_end_when_the_service_stops_and_can_go_on_elsewhere(running: Running) -> None:
    events = event_service_pb2_grpc.EventServiceStub(running.channel)
    call = events.FollowEvents(event_service_pb2.FollowEventsRequest(after=0), metadata=SIGNED_IN)
    await call.read()
    running.server.should_exit = True
    assert await _end_of(call) is grpc.StatusCode.UNAVAILABLE


async def _end_of(call: Any) -> grpc.StatusCode:
    """The status with which the stream ends."""
    async with asyncio.timeout(20):
        with suppress(grpc.aio.AioRpcError):
            while await call.read() is not grpc.aio.EOF:
                pass
        return await call.code()


# -- errors and what is around -----------------------------------------------------------------------


async def test_details_say_which_fields_are_wrong(running: Running) -> None:
    stub = job_service_pb2_grpc.JobServiceStub(running.channel)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.ListJobs(job_service_pb2.ListJobsRequest(limit=0), metadata=SIGNED_IN)
    status = rpc_status.from_call(failed.value)
    found = error_details_pb2.BadRequest()
    assert any(detail.Unpack(found) for detail in status.details)
    assert [one.field for one in found.field_violations] == ["limit"]
    request = error_details_pb2.RequestInfo()
    assert any(detail.Unpack(request) for detail in status.details)
    assert request.request_id.startswith("r-")


async def test_an_error_of_ours_is_internal_and_says_under_which_id_it_is_logged(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr("gpu_platform.store.hosts.hosts.get_host", broken)
    stub = host_service_pb2_grpc.HostServiceStub(running.channel)
    code, problem = await refusal(stub.GetHost(host_service_pb2.GetHostRequest(name="a"), metadata=SIGNED_IN))
    assert (code, problem.code) == (grpc.StatusCode.INTERNAL, "internal")
    assert "planted" not in problem.detail


async def test_an_unknown_method_is_unimplemented(running: Running) -> None:
    call = running.channel.unary_unary("/gpu_platform.v1.JobService/Nothing")
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call(b"")
    assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_requests_are_measured_as_those_of_rest(running: Running) -> None:
    labels = {"method": "GET", "route": "/v1/jobs/{job_id}", "status": "200"}
    names = [f"{family.name}_count" for family in REGISTRY.collect() if "request_seconds" in family.name]
    before = sum(REGISTRY.get_sample_value(name, labels) or 0 for name in names)
    stub = job_service_pb2_grpc.JobServiceStub(running.channel)
    await stub.GetJob(job_service_pb2.GetJobRequest(job_id=JOB), metadata=SIGNED_IN)
    assert sum(REGISTRY.get_sample_value(name, labels) or 0 for name in names) == before + 1


async def test_health_says_what_readyz_says(running: Running) -> None:
    stub = health_pb2_grpc.HealthStub(running.channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service="gpu_platform.v1.JobService"))
    assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING, "there is no Temporal"
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.Check(health_pb2.HealthCheckRequest(service="nothing"))
    assert failed.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_change_of_health_is_watched(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    call = health_pb2_grpc.HealthStub(running.channel).Watch(health_pb2.HealthCheckRequest())
    assert (await call.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING

    async def none() -> dict[str, str]:
        return {}

    monkeypatch.setattr(running.context.readiness, "troubles", none)
    async with asyncio.timeout(10):
        assert (await call.read()).status == health_pb2.HealthCheckResponse.SERVING
    call.cancel()


async def test_reflection_lists_the_services_for_who_has_signed_in(running: Running) -> None:
    stub = reflection_pb2_grpc.ServerReflectionStub(running.channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    call = stub.ServerReflectionInfo(iter([asked]), metadata=SIGNED_IN)
    answer = await call.read()
    names = {one.name for one in answer.list_services_response.service}
    assert {"gpu_platform.v1.JobService", "grpc.health.v1.Health"} <= names
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.ServerReflectionInfo(iter([asked])).read()
    assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_port_in_use_is_an_error_and_not_shared(running: Running) -> None:
    other = GrpcServer(running.app, "127.0.0.1", running.grpc.port)
    with pytest.raises(CannotStart, match=r"service\.grpc_port"):
        await other.begin()
