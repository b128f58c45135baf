"""gRPC is as closed as REST: callers are limited, names are no paths, browsers cannot call, TLS is TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from gpu_platform.domain.audit import AuditRecord
from gpu_platform.identity import names
from gpu_platform.identity.certificates import CertificateFiles
from gpu_platform.rpc.limits import MAX_REQUEST_BYTES
from gpu_platform.store import Store, audit
from gpu_platform.v1 import (
    access_service_pb2,
    access_service_pb2_grpc,
    array_service_pb2,
    array_service_pb2_grpc,
    event_service_pb2,
    event_service_pb2_grpc,
    host_service_pb2,
    host_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
    types_pb2,
)
from service.grpc.server import GrpcServer
from tests.support.api_server import application
from tests.support.gateway import Certificates
from tests.support.grpc_server import NO_TEMPORAL, SIGNED_IN, Running, refusal, running_with
from tests.support.store_cluster import Cluster
from tests.support.waiting import eventually


@pytest.fixture
async def running(sqlite_store: Store) -> AsyncIterator[Running]:
    async with running_with(sqlite_store) as found:
        yield found


# -- who may do what -------------------------------------------------------------------------------


async def test_too_many_streams_of_one_caller_are_refused(running: Running) -> None:
    events = event_service_pb2_grpc.EventServiceStub(running.channel)
    request = event_service_pb2.FollowEventsRequest(after=0)
    open_calls = [events.FollowEvents(request, metadata=SIGNED_IN) for _ in range(4)]
    for call in open_calls:
        await call.read()
    code, problem = await refusal(events.FollowEvents(request, metadata=SIGNED_IN).read())
    assert (code, problem.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many_requests")
    for call in open_calls:
        call.cancel()


async def test_guessing_tokens_is_slowed_down_by_address(running: Running) -> None:
    stub = job_service_pb2_grpc.JobServiceStub(running.channel)
    found = []
    for number in range(6):
        metadata = (("authorization", f"Bearer gpt_guess{number}"),)
        found.append((await refusal(stub.ListJobs(job_service_pb2.ListJobsRequest(), metadata=metadata)))[0].name)
    assert found[0] == "UNAUTHENTICATED"
    assert found[-1] == "RESOURCE_EXHAUSTED"
    assert await stub.ListJobs(job_service_pb2.ListJobsRequest(), metadata=SIGNED_IN)


async def test_two_tokens_are_refused(running: Running) -> None:
    stub = job_service_pb2_grpc.JobServiceStub(running.channel)
    metadata = (*SIGNED_IN, ("authorization", "Bearer gpt_other"))
    code, _ = await refusal(stub.ListJobs(job_service_pb2.ListJobsRequest(), metadata=metadata))
    assert code is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(("trusted", "peer"), [([], "127.0.0.1"), (["127.0.0.1"], "203.0.113.9")])
async def test_only_a_trusted_proxy_says_who_calls(sqlite_store: Store, trusted: list[str], peer: str) -> None:
    async with running_with(sqlite_store, trusted_proxies=trusted) as running:
        stub = access_service_pb2_grpc.AccessServiceStub(running.channel)
        told = (("x-forwarded-for", "203.0.113.9"), ("host", "evil.example"))
        code, _ = await refusal(stub.GetWhoAmI(access_service_pb2.GetWhoAmIRequest(), metadata=told))
        assert code is grpc.StatusCode.UNAUTHENTICATED
        records = await eventually(lambda: _refusals(running), "the refusal to be recorded")
        assert {json.loads(record.entry)["peer"] for record in records} == {peer}


def _refusals(running: Running) -> list[AuditRecord]:
    return [record for record in audit.read_records(running.store, 0, 100) if "not_signed_in" in record.entry]


@pytest.mark.parametrize("name", ["", "..", "a/heartbeat", "a/drain?x=1"])
async def test_a_name_is_never_a_part_of_a_path(running: Running, name: str) -> None:
    stub = host_service_pb2_grpc.HostServiceStub(running.channel)
    code, _ = await refusal(stub.GetHost(host_service_pb2.GetHostRequest(name=name), metadata=SIGNED_IN))
    assert code is grpc.StatusCode.NOT_FOUND
    assert Cluster(running.store).host_state("a") == "READY"


ANSWERED, RESET = 1, 3
"""Types of frames (RFC 9113, section 6)."""


@pytest.mark.parametrize(("headers", "frame"), [({"te": "trailers"}, ANSWERED), ({}, RESET)])
async def test_no_page_of_a_browser_calls(running: Running, headers: dict[str, str], frame: int) -> None:
    """No page can send ``te`` (Fetch standard, "forbidden request-header"). Without it nothing is done."""
    path = "/gpu_platform.v1.AccessService/GetLogin"
    sent = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "evil.example", **headers}
    fields = b"".join(_literal(name, value) for name, value in {**sent, "content-type": "text/plain"}.items())
    reader, writer = await asyncio.open_connection("127.0.0.1", running.grpc.port)
    writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
    writer.write(_frame(1, 4, 1, fields) + _frame(0, 1, 1, bytes(5)))
    found = -1
    async with asyncio.timeout(5):
        while found not in (ANSWERED, RESET):
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            found = head[3]
    writer.close()
    await writer.wait_closed()
    assert found == frame


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(name: str, value: str) -> bytes:
    """A header field as HPACK writes it without a table (RFC 7541, section 6.2.2)."""
    return b"".join((b"\0", bytes([len(name)]), name.encode(), bytes([len(value)]), value.encode()))


async def test_a_message_that_is_too_large_is_refused(running: Running) -> None:
    stub = array_service_pb2_grpc.ArrayServiceStub(running.channel)
    body = types_pb2.ArraySubmission(job=types_pb2.JobSpec(command=["x" * (MAX_REQUEST_BYTES + 1)]))
    code, problem = await refusal(stub.SubmitArray(array_service_pb2.SubmitArrayRequest(body=body), metadata=SIGNED_IN))
    assert (code, problem.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "body_too_large")
    jobs_stub = job_service_pb2_grpc.JobServiceStub(running.channel)
    job = types_pb2.JobSpec(command=["x" * 1_100_000])
    code, problem = await refusal(jobs_stub.SubmitJob(job_service_pb2.SubmitJobRequest(body=job), metadata=SIGNED_IN))
    assert (code, problem.code) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "body_too_large")
    asked = job_service_pb2.GetJobRequest(job_id="j" * 1_100_000)
    code, problem = await refusal(jobs_stub.GetJob(asked, metadata=SIGNED_IN))
    assert (code, problem.code) == (grpc.StatusCode.INVALID_ARGUMENT, "invalid_request")


# -- TLS -----------------------------------------------------------------------------------------------


@pytest.fixture
async def secured(sqlite_store: Store, tmp_path: Path) -> AsyncIterator[tuple[str, CertificateFiles, Certificates]]:
    """Address and certificate of a server with TLS, and the authority behind it."""
    app = application(sqlite_store, NO_TEMPORAL)
    certificates = Certificates(tmp_path)
    files = certificates.files(names.SERVICE)
    server = GrpcServer(app, "127.0.0.1", 0, files)
    async with app.router.lifespan_context(app):
        await server.begin()
        yield f"127.0.0.1:{server.port}", files, certificates
        await server.end()


async def _reached(address: str, trusted: bytes | None) -> bool:
    credentials = grpc.ssl_channel_credentials(trusted)
    name = names.dns_name(names.SERVICE, names.DEFAULT_DOMAIN)
    options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(address, credentials, options) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)
        try:
            await stub.ListJobs(job_service_pb2.ListJobsRequest(), metadata=SIGNED_IN, timeout=5)
        except grpc.aio.AioRpcError:
            return False
        return True


async def test_a_renewed_certificate_is_used_without_a_restart(
    secured: tuple[str, CertificateFiles, Certificates], tmp_path: Path
) -> None:
    address, files, _ = secured
    old = files.trusted.read_bytes()
    assert await _reached(address, old)
    assert not await _reached(address, None), "an authority of ours is no authority of the world"
    of_another_authority = Certificates(tmp_path / "other").files(names.SERVICE)
    for name in ("certificate", "key", "trusted"):
        getattr(files, name).write_bytes(getattr(of_another_authority, name).read_bytes())
    assert await _reached(address, of_another_authority.trusted.read_bytes())
    assert not await _reached(address, old)


async def test_who_does_not_shake_hands_is_cut_off(
    secured: tuple[str, CertificateFiles, Certificates],
) -> None:
    host, port = secured[0].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"\x16")
    async with asyncio.timeout(30):  # by itself gRPC waits for two minutes
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


async def test_plain_text_is_not_answered_where_there_is_tls(
    secured: tuple[str, CertificateFiles, Certificates],
) -> None:
    async with grpc.aio.insecure_channel(secured[0]) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await job_service_pb2_grpc.JobServiceStub(channel).ListJobs(
                job_service_pb2.ListJobsRequest(), metadata=SIGNED_IN, timeout=5
            )
