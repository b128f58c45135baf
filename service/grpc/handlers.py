"""Answers every method of our services: the message becomes a request of REST, and its answer a message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import httpx
from google.protobuf.message import Message
from httpx_sse import EventSource
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import Problem
from gpu_platform.domain.errors import InvalidRequest, PlatformError
from gpu_platform.observability import get_logger
from gpu_platform.rpc.json_messages import to_message
from gpu_platform.rpc.limits import MAX_ANSWER_BYTES
from gpu_platform.rpc.methods import Answer, HttpRequest, Rpc, rpcs
from service.grpc.admission import LARGE_BYTES, Admission, one_message
from service.grpc.calls import REQUEST_ID, abort, caller_of
from service.grpc.in_process import BrokenOff, Exchange, InProcess, Refused, answer_too_large

_LONGEST_HEAD = 64 * 1024
"""What path, query and headers of a request of REST have at most, in characters."""
_TEXT_PIECE = 1024 * 1024

log = get_logger(__name__)


class Handlers(grpc.GenericRpcHandler):
    """All RPCs."""

    def __init__(self, application: InProcess, admission: Admission, *, is_secure: bool) -> None:
        self._application = application
        self._admission = admission
        self._is_secure = is_secure

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Called by gRPC for each call. None: there is no such method."""
        rpc = rpcs().get(str(handler_call_details.method))
        if rpc is None:
            return None
        call = _BEHAVIOURS[rpc.answer]

        async def stream(requests: AsyncIterable[Message], context: grpc.aio.ServicerContext) -> AsyncIterator[Message]:
            message = await self._admission.message(rpc, requests, context)
            async with self._asked(rpc, message, context) as exchange, aclosing(call(rpc, exchange)) as found:
                async for one in found:
                    yield one

        async def answer(requests: AsyncIterable[Message], context: grpc.aio.ServicerContext) -> Message:
            message = await self._admission.message(rpc, requests, context)
            async with self._asked(rpc, message, context) as exchange:
                return await call(rpc, exchange)

        streams = rpc.descriptor.server_streaming
        return one_message(stream if streams else answer, rpc.request_type, rpc.response_type, streams=streams)

    @asynccontextmanager
    async def _asked(self, rpc: Rpc, message: Message, context: grpc.aio.ServicerContext) -> AsyncIterator[Exchange]:
        """The request that the message stands for. Every error ends the call with the status of its problem."""
        headers: dict[str, str] = {}
        try:
            request = await _request_of(rpc, message)
            async with self._application.ask(request, caller_of(context, is_secure=self._is_secure)) as exchange:
                headers = exchange.headers
                self._admission.note_good(rpc, context)
                if REQUEST_ID in headers:
                    await context.send_initial_metadata(((REQUEST_ID, headers[REQUEST_ID]),))
                yield exchange
        except Refused as refused:
            await abort(context, refused.problem, refused.headers or headers)
        except PlatformError as error:
            await abort(context, Problem.of(error), headers)


async def _request_of(rpc: Rpc, message: Message) -> HttpRequest:
    if message.ByteSize() < LARGE_BYTES:
        return rpc.request_of(message)
    request = await run_in_threadpool(rpc.request_of, message)
    around = len(request.path) + len(request.query) + sum(len(value) for _, value in request.headers)
    if around > _LONGEST_HEAD:
        raise InvalidRequest(
            f"the fields of {rpc.descriptor.input_type.name} other than its body have {around:,} characters; at most "
            f"{_LONGEST_HEAD:,} are allowed"
        )
    return request


async def _json(rpc: Rpc, exchange: Exchange) -> Message:
    body = await exchange.body(MAX_ANSWER_BYTES)
    if len(body) < LARGE_BYTES:
        return rpc.answer_of(body)
    message = await run_in_threadpool(rpc.answer_of, body)
    if message.ByteSize() > MAX_ANSWER_BYTES:
        raise answer_too_large(MAX_ANSWER_BYTES)
    return message


async def _nothing(rpc: Rpc, exchange: Exchange) -> Message:
    await exchange.body()
    return rpc.response_type()


async def _events(rpc: Rpc, exchange: Exchange) -> AsyncIterator[Message]:
    """The server-sent events as messages, until the event that says that nothing more comes."""
    source = EventSource(httpx.Response(200, headers=exchange.headers, content=exchange.pieces()))
    async for event in source.aiter_sse():
        if event.event == "end":
            return
        if event.event == "problem":
            raise Refused(Problem.model_validate_json(event.data), exchange.headers)
        if event.data:  # else it is a keep-alive: gRPC has its own
            value = {"id": event.id, "data": json.loads(event.data)}
            yield to_message(value, rpc.response_type, exact=False)
    raise BrokenOff


async def _pieces(rpc: Rpc, exchange: Exchange) -> AsyncIterator[Message]:
    async for piece in exchange.pieces():
        for at in range(0, len(piece), _TEXT_PIECE):
            yield rpc.response_type(text=piece[at : at + _TEXT_PIECE])


_BEHAVIOURS: dict[Answer, Callable[[Rpc, Exchange], Any]] = {
    Answer.JSON: _json,
    Answer.NOTHING: _nothing,
    Answer.EVENTS: _events,
    Answer.TEXT: _pieces,
}
