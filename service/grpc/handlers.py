"""Answers every method of our services: the message becomes a request of REST, and its answer a message."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import grpc
import grpc.aio
import httpx
from google.protobuf.message import Message
from httpx_sse import EventSource
from starlette.concurrency import run_in_threadpool

from gpu_platform.client.wire import Problem
from gpu_platform.domain.errors import PlatformError
from gpu_platform.observability import get_logger
from gpu_platform.rpc.json_messages import to_message
from gpu_platform.rpc.limits import MAX_ANSWER_BYTES
from gpu_platform.rpc.methods import AnswerKind, Rpc, rpcs
from service.grpc.admission import Admission, one_message
from service.grpc.calls import REQUEST_ID, abort, caller_of
from service.grpc.in_process import BrokenOff, InProcess, InProcessRequest, RefusedRequest, answer_too_large
from service.http.body_limit import LARGE_BYTES

TAKEN_WITHIN_S = 120.0
"""So long a client may take for one answer. Until then it is in memory, and keeps the turn of its request."""
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
        # A stream may wait for its reader, as `service.rate_limits.at_once` says; one answer has to be taken.
        within_s = None if rpc.descriptor.server_streaming else TAKEN_WITHIN_S

        async def answer(_: object, context: grpc.aio.ServicerContext) -> None:
            async with self._asked(rpc, context) as exchange, aclosing(call(rpc, exchange)) as found:
                async for one in found:
                    data = one.SerializeToString()
                    with self._admission.not_taken(exchange.owner, len(data), context):
                        await _write(context, data, within_s)

        return one_message(answer)

    @asynccontextmanager
    async def _asked(self, rpc: Rpc, context: grpc.aio.ServicerContext) -> AsyncIterator[InProcessRequest]:
        """The request that the call's message stands for. Every error ends the call with the status of its problem."""
        headers: dict[str, str] = {}
        problem: Problem | None = None
        try:
            async with AsyncExitStack() as turn:
                asked = await self._admission.asked(rpc, context, turn)
                caller = caller_of(context, is_secure=self._is_secure)
                async with self._application.ask(asked.request, caller, has_turn=asked.has_turn) as exchange:
                    await turn.aclose()
                    headers = exchange.headers
                    self._admission.note_good(rpc, context, exchange)
                    if REQUEST_ID in headers:
                        await context.send_initial_metadata(((REQUEST_ID, headers[REQUEST_ID]),))
                    yield exchange
        except RefusedRequest as refused:
            problem, headers = refused.problem, refused.headers or headers
        except PlatformError as error:
            problem = Problem.of(error)
        if problem is not None:  # the error is gone by now, and the message with it
            await abort(context, problem, headers)


async def _write(context: grpc.aio.ServicerContext, data: bytes, within_s: float | None) -> None:
    try:
        async with asyncio.timeout(within_s):
            await context.write(data)
    except TimeoutError:
        late = f"the answer was not taken within {within_s:g} s"
        raise RefusedRequest(Problem.make(504, "http_error", late), {}) from None


async def _json(rpc: Rpc, exchange: InProcessRequest) -> AsyncGenerator[Message, None]:
    body = await exchange.body(MAX_ANSWER_BYTES)
    if len(body) < LARGE_BYTES:
        yield rpc.answer_of(body)
        return
    message = await run_in_threadpool(rpc.answer_of, body)
    if message.ByteSize() > MAX_ANSWER_BYTES:
        raise answer_too_large(MAX_ANSWER_BYTES)
    yield message


async def _nothing(rpc: Rpc, exchange: InProcessRequest) -> AsyncGenerator[Message, None]:
    await exchange.body()
    yield rpc.response_type()


async def _events(rpc: Rpc, exchange: InProcessRequest) -> AsyncGenerator[Message, None]:
    """The server-sent events as messages, until the event that says that nothing more comes."""
    source = EventSource(httpx.Response(200, headers=exchange.headers, content=exchange.pieces()))
    async for event in source.aiter_sse():
        if event.event == "end":
            return
        if event.event == "problem":
            raise RefusedRequest(Problem.model_validate_json(event.data), exchange.headers)
        if event.data:  # else it is a keep-alive: gRPC has its own
            value = {"id": event.id, "data": json.loads(event.data)}
            yield to_message(value, rpc.response_type, exact=False)
    raise BrokenOff


async def _pieces(rpc: Rpc, exchange: InProcessRequest) -> AsyncGenerator[Message, None]:
    async for piece in exchange.pieces():
        for at in range(0, len(piece), _TEXT_PIECE):
            yield rpc.response_type(text=piece[at : at + _TEXT_PIECE])


_BEHAVIOURS: dict[AnswerKind, Callable[[Rpc, InProcessRequest], AsyncGenerator[Message, None]]] = {
    AnswerKind.JSON: _json,
    AnswerKind.NOTHING: _nothing,
    AnswerKind.EVENTS: _events,
    AnswerKind.TEXT: _pieces,
}
