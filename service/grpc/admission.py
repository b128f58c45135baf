"""Reads the messages of callers. A message is whole in memory before anybody can look at it, may be as large as a body
of REST, and says itself what is asked. So it is read before the application can judge the request.

Handlers take it as bytes from a stream of requests, which is the same on the wire, by ``context.read()``: gRPC's
iterator would keep the message until the next garbage collection. Few messages of one caller are read at a time. A
caller is a user whose token was good lately; else an address. A large message waits for its caller's turn, as a large
body of REST does, and its values are counted before they are read. Whether the caller may do what it asks is judged by
the application, for every call.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, cast

import grpc
import grpc.aio
from anyio import CapacityLimiter, to_thread
from google.protobuf.message import DecodeError

from gpu_platform.client.wire import Problem
from gpu_platform.domain.access.rules import Reach
from gpu_platform.domain.errors import InvalidRequest, PlatformError, TooManyRequests, Unavailable
from gpu_platform.observability import get_logger
from gpu_platform.rpc.methods import HttpRequest, Rpc
from service.access.routes import ROUTES
from service.grpc import structure
from service.grpc.calls import caller_of
from service.grpc.in_process import Caller, InProcess, InProcessRequest, RefusedRequest
from service.http import body_limit
from service.http.body_limit import LARGE_BYTES, BodySize
from service.http.rate_limits import RateLimits

KNOWN_FOR_S = 3600.0
"""How long a token counts as one that was good lately."""
READS_AT_ONCE = 2
"""Messages of one caller that are read at the same time. While gRPC reads one, it takes up to three times its size."""
READ_WITHIN_S = 60.0
PROBE_WITHIN_S = 2.0
"""How long a probe of health may take to send its message."""
MOST_NOT_TAKEN_BYTES = 32 * 1024 * 1024
"""Of answers that a caller let lie: gRPC keeps them until the client ends the call or its connection."""
_MOST_CALLERS = 10_000
_LONGEST_HEAD = LARGE_BYTES
"""What path, query and headers of a request of REST have at most, in characters."""
_EOF: Any = vars(grpc.aio)["EOF"]
_WHO_AM_I = HttpRequest("GET", "/v1/whoami")

log = get_logger(__name__)


class _Known(NamedTuple):
    """A token that was good lately."""

    owner: str
    until: float


class TranslatedRequest(NamedTuple):
    """What a message asks for."""

    request: HttpRequest
    has_turn: bool = False
    """It is a large one, and its caller has the turn for it."""


class Admission:
    """Remembers callers: tokens by their hashes, and addresses."""

    def __init__(self, application: InProcess, limits: RateLimits, *, is_secure: bool) -> None:
        self._application = application
        self._limits = limits
        self._is_secure = is_secure
        self._tokens: OrderedDict[bytes, _Known] = OrderedDict()
        self._free: OrderedDict[str, asyncio.Semaphore] = OrderedDict()
        self._reading = CapacityLimiter(1)
        self._not_taken: Counter[str] = Counter()

    async def asked(self, rpc: Rpc, context: grpc.aio.ServicerContext, turn: AsyncExitStack) -> TranslatedRequest:
        """What the one message of a call asks for. A large one has its turn until ``turn`` is closed. A message without
        fields is not waited for: what anybody may ask has none. Raises :class:`PlatformError` and
        :class:`RefusedRequest`."""
        caller = caller_of(context, is_secure=self._is_secure)
        known = self._known(caller)
        if known is not None and self._not_taken[known.owner] > MOST_NOT_TAKEN_BYTES:
            raise TooManyRequests(
                f"{known.owner} did not take answers of {self._not_taken[known.owner]:,} bytes: end those calls",
                retry_after_s=5.0,
            )
        if not rpc.request_type.DESCRIPTOR.fields:
            return TranslatedRequest(rpc.request_of(rpc.request_type()))
        reader = _address_of(caller) if known is None else known.owner
        data = await turn.enter_async_context(self._read(reader, context, READ_WITHIN_S))
        is_large = len(data) >= LARGE_BYTES
        if is_large:
            owner = await self.signed_in(context) if known is None else known.owner
            most = _most(rpc)
            _check_size(rpc, len(data), most)
            await turn.enter_async_context(self._limits.large_body(owner, len(data)))
            request = await to_thread.run_sync(_large, rpc, data, most, limiter=self._reading)
            return TranslatedRequest(request, has_turn=True)
        await turn.aclose()
        try:
            return TranslatedRequest(_request_of(rpc, data))
        except PlatformError:
            if known is None and ROUTES[rpc.route].reach is not Reach.PUBLIC:
                await self.signed_in(context)  # what a stranger sends is counted, whatever is wrong with it
            raise

    @asynccontextmanager
    async def probe(self, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """The message of a probe, which needs no token. Raises :class:`PlatformError`."""
        address = _address_of(caller_of(context, is_secure=self._is_secure))
        async with self._read(f"probes of {address}", context, PROBE_WITHIN_S, at_once=1) as message:
            if len(message) >= LARGE_BYTES:
                raise InvalidRequest(f"a probe has less than {LARGE_BYTES:,} bytes")
            yield message

    async def question(self, context: grpc.aio.ServicerContext) -> AsyncGenerator[Any, None]:
        """The questions of a caller who asks one after the other, and signs in for each. Raises
        :class:`PlatformError` and :class:`RefusedRequest`."""
        while True:
            reader = f"questions of {await self.signed_in(context)}"
            async with self._free_place(reader, READ_WITHIN_S):
                try:
                    async with asyncio.timeout(READ_WITHIN_S):
                        question = await context.read()
                except TimeoutError:
                    return
            if question is _EOF:
                return
            yield question

    @contextmanager
    def not_taken(self, owner: str, size: int, context: grpc.aio.ServicerContext) -> Iterator[None]:
        """Send an answer of ``size`` bytes. If that ends with an error, gRPC has it until the call is over."""
        try:
            yield
        except RefusedRequest:
            self._not_taken[owner] += size

            def over(_: Any) -> None:
                self._not_taken[owner] -= size
                if not self._not_taken[owner]:
                    del self._not_taken[owner]

            cast(Any, context).add_done_callback(over)
            raise

    def note_good(self, rpc: Rpc, context: grpc.aio.ServicerContext, exchange: InProcessRequest) -> None:
        """The application took the token of this call for a good one."""
        if ROUTES[rpc.route].reach is not Reach.PUBLIC:
            proof = _proof_of(caller_of(context, is_secure=self._is_secure))
            self._tokens[proof] = _Known(exchange.owner, time.monotonic() + KNOWN_FOR_S)
            _forget_oldest(self._tokens, proof)

    async def signed_in(self, context: grpc.aio.ServicerContext) -> str:
        """Whose call it is. Raises :class:`RefusedRequest` and :class:`PlatformError` unless its caller has signed
        in."""
        exchange = self._application.ask(_WHO_AM_I, caller_of(context, is_secure=self._is_secure))
        try:
            async with exchange:
                await exchange.body()
        except RefusedRequest as refused:
            if refused.problem.status != 403:  # a token for something else only is one that has signed in
                raise
        return exchange.owner

    def _known(self, caller: Caller) -> _Known | None:
        found = self._tokens.get(_proof_of(caller))
        return found if found is not None and found.until > time.monotonic() else None

    @asynccontextmanager
    async def _read(
        self, reader: str, context: grpc.aio.ServicerContext, within_s: float, at_once: int = READS_AT_ONCE
    ) -> AsyncIterator[bytes]:
        async with self._free_place(reader, within_s, at_once):
            try:
                async with asyncio.timeout(within_s):
                    message = await context.read()
            except TimeoutError:
                late = Problem.make(504, "http_error", f"no message came within {within_s:g} s")
                raise RefusedRequest(late, {}) from None
            if not isinstance(message, bytes):  # the end of the call
                raise InvalidRequest("the call has no message")
            only = [message]
            del message  # it may be large, and this frame lasts
            yield only.pop()

    @asynccontextmanager
    async def _free_place(self, reader: str, within_s: float, at_once: int = READS_AT_ONCE) -> AsyncIterator[None]:
        free = self._free.setdefault(reader, asyncio.Semaphore(at_once))
        _forget_oldest(self._free, reader)
        try:
            async with asyncio.timeout(within_s):
                await free.acquire()
        except TimeoutError:
            raise Unavailable("too many messages of this caller are being sent") from None
        try:
            yield
        finally:
            free.release()


def one_message(handler: Any) -> grpc.RpcMethodHandler:
    """A method that takes one message, which ``handler(requests, context)`` reads from the context, as bytes, when it
    wants to. It writes its answers as bytes: so it knows when they were sent."""
    made: Any = grpc.stream_stream_rpc_method_handler(handler)
    return made


def _most(rpc: Rpc) -> BodySize:
    body = body_limit.LARGER.get((rpc.verb, rpc.template), body_limit.USUAL)
    return body if rpc.body is not None else BodySize(0, body.values)


def _check_size(rpc: Rpc, size: int, most: BodySize) -> None:
    if size <= most.most_bytes + _LONGEST_HEAD:
        return
    if rpc.body is not None:
        raise RefusedRequest(Problem.make(413, "body_too_large", body_limit.too_large(most)), {})
    raise InvalidRequest(f"{rpc.descriptor.input_type.name} has {size:,} bytes; at most {_LONGEST_HEAD:,} are allowed")


def _large(rpc: Rpc, data: bytes, most: BodySize) -> HttpRequest:
    try:
        if not structure.at_most(data, rpc.descriptor.input_type, most.values):
            raise RefusedRequest(Problem.make(413, "body_too_large", body_limit.too_many_values(most)), {})
    except structure.UnreadableMessage as error:
        raise _unreadable(rpc, error) from None
    if not rpc.is_raw and structure.escaped_bytes(data) > most.most_bytes + _LONGEST_HEAD:
        raise RefusedRequest(Problem.make(413, "body_too_large", body_limit.too_large(most)), {})
    request = _request_of(rpc, data)
    around = len(request.path) + len(request.query) + sum(len(value) for _, value in request.headers)
    if around > _LONGEST_HEAD:
        raise InvalidRequest(
            f"the fields of {rpc.descriptor.input_type.name} other than its body have {around:,} characters; at most "
            f"{_LONGEST_HEAD:,} are allowed"
        )
    return request


def _request_of(rpc: Rpc, data: bytes) -> HttpRequest:
    try:
        return rpc.request_of(rpc.request_type.FromString(data))
    except PlatformError:
        raise
    except DecodeError as error:
        raise _unreadable(rpc, error) from None
    except Exception as error:  # whatever it is, it is about what the caller sent
        log.warning("grpc.message_not_readable", method=rpc.path, error=repr(error)[:300])
        raise _unreadable(rpc, error) from None


def _unreadable(rpc: Rpc, error: Exception) -> InvalidRequest:
    return InvalidRequest(f"this is no {rpc.descriptor.input_type.name}: {str(error)[:200] or 'it cannot be read'}")


def _forget_oldest(found: OrderedDict[Any, Any], newest: object) -> None:
    found.move_to_end(newest)
    if len(found) > _MOST_CALLERS:
        found.popitem(last=False)


def _proof_of(caller: Caller) -> bytes:
    given = "\n".join(value for name, value in caller.headers if name == "authorization")
    return hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()


def _address_of(caller: Caller) -> str:
    return "a local client" if caller.address is None else caller.address[0]
