"""Reads the messages of callers. A message is whole in memory before anybody can look at it, may be as large as a body
of REST, and says itself what is asked. So it is read before the application can judge the request.

Handlers take it from a stream of requests, which is the same on the wire, and few messages of one caller are read at a
time. A caller is a token that was good lately; else an address. Whether the caller may do what it asks is judged by the
application, for every call.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from gpu_platform.client.wire import Problem
from gpu_platform.domain.access.rules import Reach
from gpu_platform.domain.errors import InvalidRequest, PlatformError
from gpu_platform.rpc.methods import HttpRequest, Rpc
from service.access.routes import ROUTES
from service.grpc.calls import abort, caller_of
from service.grpc.in_process import Caller, InProcess, Refused

KNOWN_FOR_S = 3600.0
"""How long a token counts as one that was good lately."""
READS_AT_ONCE = 8
"""Messages of one caller that are read at the same time."""
READ_WITHIN_S = 60.0
PROBE_WITHIN_S = 2.0
"""How long a probe of health may take to send its message."""
LARGE_BYTES = 64 * 1024
"""From this size on a message costs time to convert, so its caller must have signed in before."""
_MOST_CALLERS = 10_000
_WHO_AM_I = HttpRequest("GET", "/v1/whoami")

M = TypeVar("M", bound=Message)


@dataclass
class _Reader:
    """How many messages of one caller are read."""

    good_until: float = 0.0
    free: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(READS_AT_ONCE))


class Admission:
    """Remembers callers: tokens by their hashes, and addresses."""

    def __init__(self, application: InProcess, *, is_secure: bool) -> None:
        self._application = application
        self._is_secure = is_secure
        self._readers: OrderedDict[str | bytes, _Reader] = OrderedDict()

    async def message(self, rpc: Rpc, requests: AsyncIterable[Message], context: grpc.aio.ServicerContext) -> Message:
        """The one message of a call. Ends the call with an error if it does not come. A message without fields is not
        waited for: what anybody may ask has none."""
        if not rpc.request_type.DESCRIPTOR.fields:
            return rpc.request_type()
        caller = caller_of(context, is_secure=self._is_secure)
        key = _proof_of(caller)
        is_known = key in self._readers and self._readers[key].good_until > time.monotonic()
        async with self._read(key if is_known else _address_of(caller), requests, context, READ_WITHIN_S) as message:
            if not is_known and message.ByteSize() >= LARGE_BYTES:
                await self.signed_in(context)
            return message

    @asynccontextmanager
    async def probe(self, requests: AsyncIterable[M], context: grpc.aio.ServicerContext) -> AsyncIterator[M]:
        """The message of a probe, which needs no token."""
        address = _address_of(caller_of(context, is_secure=self._is_secure))
        async with self._read(address, requests, context, PROBE_WITHIN_S) as message:
            yield message

    def note_good(self, rpc: Rpc, context: grpc.aio.ServicerContext) -> None:
        """The application took the token of this call for a good one."""
        if ROUTES[rpc.route].reach is not Reach.PUBLIC:
            key = _proof_of(caller_of(context, is_secure=self._is_secure))
            self._reader(key).good_until = time.monotonic() + KNOWN_FOR_S

    async def signed_in(self, context: grpc.aio.ServicerContext) -> None:
        """End the call with an error unless its caller has signed in."""
        try:
            async with self._application.ask(_WHO_AM_I, caller_of(context, is_secure=self._is_secure)) as exchange:
                await exchange.body()
        except Refused as refused:
            if refused.problem.status != 403:  # a token for something else only is one that has signed in
                await abort(context, refused.problem, refused.headers)
        except PlatformError as error:
            await abort(context, Problem.of(error), {})

    @asynccontextmanager
    async def _read(
        self, key: str | bytes, requests: AsyncIterable[M], context: grpc.aio.ServicerContext, within_s: float
    ) -> AsyncIterator[M]:
        free, message = self._reader(key).free, None
        try:
            async with asyncio.timeout(within_s):
                await free.acquire()
        except TimeoutError:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "too many messages of this caller are being sent")
        try:
            try:
                async with asyncio.timeout(within_s):
                    message = await anext(aiter(requests), None)
            except TimeoutError:
                await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, f"no message came within {within_s:g} s")
            if message is None:
                await abort(context, Problem.of(InvalidRequest("the call has no message")), {})
            yield message
        finally:
            free.release()

    def _reader(self, key: str | bytes) -> _Reader:
        found = self._readers.setdefault(key, _Reader())
        self._readers.move_to_end(key)
        if len(self._readers) > _MOST_CALLERS:
            self._readers.popitem(last=False)
        return found


def one_message(handler: Any, kind: type[Message], answer: type[Message], *, streams: bool) -> grpc.RpcMethodHandler:
    """A method that takes one message, which ``handler`` reads from an iterator when it wants to."""
    make: Any = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    return make(handler, request_deserializer=kind.FromString, response_serializer=answer.SerializeToString)


def _proof_of(caller: Caller) -> bytes:
    given = "\n".join(value for name, value in caller.headers if name == "authorization")
    return hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()


def _address_of(caller: Caller) -> str:
    return "a local client" if caller.address is None else caller.address[0]
