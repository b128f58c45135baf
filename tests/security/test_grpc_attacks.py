"""What strangers and careless clients send to the port of gRPC costs nobody else anything."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.store import Store
from gpu_platform.store.access import tokens
from gpu_platform.v1 import (
    event_service_pb2,
    event_service_pb2_grpc,
    host_service_pb2,
    host_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
)
from service.grpc import admission
from tests.support.api_server import sign_in
from tests.support.grpc_server import JOB, SIGNED_IN, Running, open_requests, refusal, running_with
from tests.support.waiting import eventually

BOB = f"gpt_{'bob00000' * 5}"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, HEADERS, CONTINUATION = 4, 1, 9
"""Types of frames (RFC 9113, section 6)."""


@pytest.fixture
async def running(sqlite_store: Store) -> AsyncIterator[Running]:
    async with running_with(sqlite_store) as found:
        yield found


async def answers(running: Running, metadata: Any = SIGNED_IN) -> None:
    """The service answers others as before."""
    stub = host_service_pb2_grpc.HostServiceStub(running.channel)
    assert (await stub.GetHost(host_service_pb2.GetHostRequest(name="a"), metadata=metadata, timeout=10)).name == "a"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


# -- what is no gRPC -------------------------------------------------------------------------------

GARBAGE = {
    "bytes": bytes(range(256)) * 400,
    "HTTP/1.1": b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "a frame that is too large": PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01" + bytes(100_000),
}
ENDLESS = {
    "small headers": PREFACE
    + frame(SETTINGS, 0, 0, b"")
    + frame(HEADERS, 0, 1, b"\x00\x01a\x7f\x80\x7f" + bytes(16_000))
    + frame(CONTINUATION, 0, 1, bytes(16_000)) * 60,
    "one header": PREFACE
    + frame(SETTINGS, 0, 0, b"")
    + frame(HEADERS, 0, 1, b"\x00\x01a\x7f\x81\xff\x7f" + b"x" * 16_000)
    + frame(CONTINUATION, 0, 1, b"x" * 16_000) * 125,
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_a_connection_that_speaks_no_grpc_is_closed(running: Running, what: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", running.grpc.port)
    async with asyncio.timeout(10):
        with suppress(ConnectionError):
            writer.write(GARBAGE[what])
            await writer.drain()
            while await reader.read(65536):
                pass
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    await answers(running)


@pytest.mark.parametrize("what", ENDLESS)
async def test_headers_without_an_end_are_not_kept(running: Running, what: str) -> None:
    """By hand: 80 MB of them, and the memory of the service grew by 20 MB. A gigantic one ends the connection."""
    _, writer = await asyncio.open_connection("127.0.0.1", running.grpc.port)
    with suppress(ConnectionError):
        writer.write(ENDLESS[what])
        await writer.drain()
    await answers(running)
    assert not running.grpc._application._running
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_enormous_metadata_are_refused(running: Running) -> None:
    stub = host_service_pb2_grpc.HostServiceStub(running.channel)
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await stub.GetHost(host_service_pb2.GetHostRequest(name="a"), metadata=(("x-large", "x" * 1_000_000),))
    assert failed.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
    await answers(running)


# -- who asks, and does not go on ------------------------------------------------------------------


@pytest.mark.long
async def test_streams_that_nobody_reads_wait_and_are_freed_with_their_connection(running: Running) -> None:
    """One with a large output that does not fit into what is sent ahead; the others follow all events."""
    running.logs.write(JOB, 1, 0, b"x" * 5_000_000)
    sign_in(running.store, BOB, "bob", {CLUSTER: Role.OPERATOR})
    running.context.rate_limits._at_once = 1000
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.grpc.port}", options) as channel:
        events = event_service_pb2_grpc.EventServiceStub(channel)
        large = events.ReadLogs(event_service_pb2.ReadLogsRequest(job_id=JOB), metadata=SIGNED_IN)
        await large.read()
        request = event_service_pb2.FollowEventsRequest(after=0)
        calls = [events.FollowEvents(request, metadata=SIGNED_IN) for _ in range(300)]
        await eventually(lambda: _at_least(running, 250), "the streams to be open")
        assert len(running.grpc._application._running) <= 256, "more of one connection wait there"
        await answers(running, (("authorization", f"Bearer {BOB}"),))
    for call in calls:
        call.cancel()
    await eventually(lambda: _is_idle(running), "the requests to end")
    assert open_requests(running) == 0


async def _at_least(running: Running, count: int) -> bool:
    return len(running.grpc._application._running) >= count


async def _is_idle(running: Running) -> bool:
    return not running.grpc._application._running


async def test_a_deadline_in_the_past_asks_nothing(running: Running) -> None:
    stub = job_service_pb2_grpc.JobServiceStub(running.channel)
    events = event_service_pb2_grpc.EventServiceStub(running.channel)
    for timeout_s in (-1.0, 0.0, 1e-9):
        for call in (
            stub.GetJob(job_service_pb2.GetJobRequest(job_id=JOB, wait_s=60), metadata=SIGNED_IN, timeout=timeout_s),
            events.FollowEvents(
                event_service_pb2.FollowEventsRequest(after=0), metadata=SIGNED_IN, timeout=timeout_s
            ).read(),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call
            assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: _is_idle(running), "no request to be left")


async def test_messages_that_never_come_hold_up_only_their_sender(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    sign_in(running.store, BOB, "bob", {CLUSTER: Role.VIEWER})
    await answers(running)
    await answers(running, (("authorization", f"Bearer {BOB}"),))
    monkeypatch.setattr(admission, "READ_WITHIN_S", 1.0)
    monkeypatch.setattr(admission, "PROBE_WITHIN_S", 0.2)

    over = asyncio.Event()

    async def never() -> AsyncIterator[bytes]:
        await over.wait()
        yield b""

    ask = running.channel.stream_unary("/gpu_platform.v1.JobService/GetJob")
    calls = [ask(never(), metadata=SIGNED_IN) for _ in range(admission.READS_AT_ONCE)]
    calls += [ask(never()) for _ in range(admission.READS_AT_ONCE)]
    await asyncio.gather(*[call.wait_for_connection() for call in calls])
    await answers(running, (("authorization", f"Bearer {BOB}"),))
    ended = {(await call.code(), await call.details()) for call in calls}
    assert ended == {(grpc.StatusCode.DEADLINE_EXCEEDED, "no message came within 1 s")}
    probe = running.channel.stream_unary("/grpc.health.v1.Health/Check")(never())
    assert await probe.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await answers(running)
    over.set()


async def test_a_large_message_is_not_converted_for_a_stranger(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted = []
    monkeypatch.setattr("service.grpc.admission._large", lambda *asked: converted.append(asked))
    stub = job_service_pb2_grpc.JobServiceStub(running.channel)
    large = job_service_pb2.GetJobRequest(job_id="x" * 1_000_000)
    for metadata in ((), (("authorization", "Bearer gpt_wrong"),)):
        code, problem = await refusal(stub.GetJob(large, metadata=metadata))
        assert (code, problem.code) == (grpc.StatusCode.UNAUTHENTICATED, "not_signed_in")
    assert not converted


# -- tokens ----------------------------------------------------------------------------------------


async def test_a_token_that_was_good_is_judged_again_at_each_call(running: Running) -> None:
    metadata = (("authorization", f"Bearer {BOB}"),)
    info = sign_in(running.store, BOB, "bob", {CLUSTER: Role.VIEWER})
    await answers(running, metadata)
    tokens.revoke_token(running.store, info.id, actor="admin", now=datetime.now(UTC))
    stub = host_service_pb2_grpc.HostServiceStub(running.channel)
    code, _ = await refusal(stub.GetHost(host_service_pb2.GetHostRequest(name="a"), metadata=metadata))
    assert code is grpc.StatusCode.UNAUTHENTICATED


async def test_another_tenant_sees_nothing_of_a_job(running: Running) -> None:
    running.logs.write(JOB, 1, 0, b"a secret\n")
    sign_in(running.store, BOB, "bob", {"team-b": Role.USER})
    metadata = (("authorization", f"Bearer {BOB}"),)
    jobs = job_service_pb2_grpc.JobServiceStub(running.channel)
    events = event_service_pb2_grpc.EventServiceStub(running.channel)
    for call in (
        jobs.GetJob(job_service_pb2.GetJobRequest(job_id=JOB), metadata=metadata),
        jobs.KillJob(job_service_pb2.KillJobRequest(job_id=JOB), metadata=metadata),
        events.FollowJobEvents(event_service_pb2.FollowJobEventsRequest(job_id=JOB), metadata=metadata).read(),
        events.FollowLogs(event_service_pb2.FollowLogsRequest(job_id=JOB), metadata=metadata).read(),
        events.ReadLogs(event_service_pb2.ReadLogsRequest(job_id=JOB), metadata=metadata).read(),
    ):
        code, problem = await refusal(call)
        assert (code, problem.code) == (grpc.StatusCode.NOT_FOUND, "not_found")
        assert problem.detail.startswith(f"there is no job {JOB!r}")
    assert [one.id for one in (await jobs.ListJobs(job_service_pb2.ListJobsRequest(), metadata=metadata)).items] == []


async def test_reflection_tells_only_what_the_package_has(running: Running) -> None:
    """Names and descriptors, which everybody has who has the product; and those only to who has signed in."""
    sign_in(running.store, BOB, "bob", {"team-b": Role.VIEWER})
    stub = reflection_pb2_grpc.ServerReflectionStub(running.channel)
    symbols = ["gpu_platform.v1.JobService", "gpu_platform.v1.Nothing", "gpu_platform.store.jobs", JOB, "../../etc"]
    asked = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in symbols]
    call = stub.ServerReflectionInfo(iter(asked), metadata=(("authorization", f"Bearer {BOB}"),))
    found = [answer.WhichOneof("message_response") async for answer in call]
    assert found == ["file_descriptor_response", *["error_response"] * 4]
    for metadata in ((), (("authorization", "Bearer gpt_wrong"),)):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await stub.ServerReflectionInfo(iter(asked[:1]), metadata=metadata).read()
        assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_probes_need_no_token_and_learn_only_whether_it_is_ready(running: Running) -> None:
    call = running.channel.unary_unary("/grpc.health.v1.Health/Check")
    answer = await call(health_pb2.HealthCheckRequest(service="").SerializeToString())
    assert len(answer) == 2, "one number"
    with socket.create_connection(("127.0.0.1", running.grpc.port)):
        await answers(running)
