"""A client's requests of REST over gRPC, where the service does not answer as it should: with asyncio, and without."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from gpu_platform.client import AsyncClient, Client
from gpu_platform.client.answer import Answer, NoAnswer, ServerSentEvent
from gpu_platform.client.calls import Call
from gpu_platform.client.wire import Problem
from gpu_platform.domain.errors import AnswerTooLarge, InvalidRequest, PlatformError
from gpu_platform.node.system.ports import free_port
from gpu_platform.rpc import channels
from gpu_platform.rpc.channels import PORT_VARIABLE
from gpu_platform.v1 import event_service_pb2, job_service_pb2, types_pb2

Behaviour = Callable[[bytes, grpc.ServicerContext], Any]
KINDS = ["sync", "asyncio"]
LIST, FOLLOW = Call("GET", "/v1/jobs"), Call("GET", "/v1/events", {"follow": "true"})
URL = "http://127.0.0.1:8700"


class Strange(grpc.GenericRpcHandler):
    """A server that does the same for every call."""

    def __init__(self, stream: Behaviour) -> None:
        self._stream = stream

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        unary: Behaviour = lambda request, context: b"".join(self._stream(request, context))  # noqa: E731
        if "Follow" in str(handler_call_details.method):
            return grpc.unary_stream_rpc_method_handler(self._stream)
        return grpc.unary_unary_rpc_method_handler(unary)


@contextmanager
def served(stream: Behaviour, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    server = grpc.server(ThreadPoolExecutor(2), handlers=[Strange(stream)])
    monkeypatch.setenv(PORT_VARIABLE, str(server.add_insecure_port("127.0.0.1:0")))
    server.start()
    yield
    server.stop(0).wait()


def ask(kind: str, call: Call, **who: Any) -> Answer | list[ServerSentEvent]:
    """Ask once: the answer, or of a stream what comes until it ends."""
    if kind == "asyncio":
        return asyncio.run(_ask(call, **who))
    with Client(URL, transport="grpc", token="t", **who) as client:
        if call is not FOLLOW:
            return client._http.send(URL, call, None)
        stream = client._http.open(URL, call, None, "")
        return stream if isinstance(stream, Answer) else [*stream.events()]


async def _ask(call: Call, **who: Any) -> Answer | list[ServerSentEvent]:
    async with AsyncClient(URL, transport="grpc", token="t", **who) as client:
        if call is not FOLLOW:
            return await client._http.send(URL, call, None)
        stream = await client._http.open(URL, call, None, "")
        return stream if isinstance(stream, Answer) else [one async for one in stream.events()]


def problem_of(answer: Answer | list[ServerSentEvent]) -> Problem:
    assert isinstance(answer, Answer)
    return Problem.model_validate_json(answer.content)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", [LIST, FOLLOW])
def test_a_service_that_says_nothing_is_given_up(kind: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        f"gpu_platform.client.{'aio' if kind == 'asyncio' else 'sync'}.rpc_sender.STREAM_TIMEOUT_S", 0.3
    )
    monkeypatch.setattr("gpu_platform.client.connection.ANSWER_WITHIN_S", 0.3)
    ended = threading.Event()

    def silent(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        ended.wait(10)
        yield b""

    with served(silent, monkeypatch):
        with pytest.raises(NoAnswer, match="no answer in time") as away:
            ask(kind, call)
        assert away.value.was_sent
        ended.set()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", [LIST, FOLLOW])
def test_a_proxy_that_refuses_is_a_problem(kind: str, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "not from here")
        yield b""

    with served(refuse, monkeypatch):
        problem = problem_of(ask(kind, call))
        assert problem.status == 403
        assert "not from here" in problem.detail


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_breaks_has_no_end(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_off(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        context.send_initial_metadata((("x-request-id", "r-1"),))
        yield event_service_pb2.FollowEventsResponse(id="5", data=types_pb2.Event(seq=5)).SerializeToString()
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")

    with served(break_off, monkeypatch), pytest.raises(NoAnswer, match="gone") as broken:
        ask(kind, FOLLOW)
    assert broken.value.was_sent


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_is_too_large_says_what_to_do(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is older and sends it anyway, or something between has a smaller bound."""
    small = [(name, 1000 if "receive" in name else value) for name, value in channels._OPTIONS]
    monkeypatch.setattr(channels, "_OPTIONS", small)

    def much(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield job_service_pb2.ListJobsRequest(cursor="x" * 2000).SerializeToString()

    with served(much, monkeypatch):
        error = problem_of(ask(kind, LIST)).error()
        assert type(error) is AnswerTooLarge
        assert "limit" in error.message


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_sent_is_refused_before(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORT_VARIABLE, str(free_port()))
    for call, text in (
        (Call("GET", "/metrics"), "has no RPC"),
        (Call("GET", "/v1/jobs", {"limit": "many"}), "limit"),
        (Call("GET", "/v1/usage", {"since": "now"}), "since: should be a date"),
    ):
        problem = problem_of(ask(kind, call))
        assert problem.status == 422
        assert text in problem.detail
    assert "must be ASCII" in problem_of(ask(kind, LIST, break_glass="für")).detail


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_never_left_may_be_sent_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PORT_VARIABLE, str(free_port()))
    for call in (LIST, FOLLOW):
        with pytest.raises(NoAnswer, match=r"service\.grpc_port") as away:
            ask(kind, call)
        assert not away.value.was_sent


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_transport_that_is_none_is_named(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match="transport is 'soap': write rest or grpc"):
        make(URL, transport="soap")
    monkeypatch.setenv("GPU_PLATFORM_TRANSPORT", "SOAP")
    with pytest.raises(InvalidRequest, match="GPU_PLATFORM_TRANSPORT is 'SOAP'"):
        make(URL)
    monkeypatch.setenv("GPU_PLATFORM_TRANSPORT", "grpc")
    monkeypatch.setenv(PORT_VARIABLE, "70000")
    with pytest.raises(PlatformError, match="GPU_PLATFORM_GRPC_PORT is '70000'"):
        make(URL)
