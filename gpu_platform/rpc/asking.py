"""A client's requests of REST as calls of gRPC, and what comes back as the answers that REST gives. It sends nothing.

So whoever sends requests of REST can send them over gRPC, and need not know of it. Who sends:
``gpu_platform/client/aio/rpc_sender.py``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message

from gpu_platform.client.answer import Answer, NoAnswer, ServerSentEvent
from gpu_platform.client.calls import BREAK_GLASS_HEADER, USER_HEADER, Call
from gpu_platform.client.wire import PROBLEM_JSON, Problem
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.rpc import methods, statuses
from gpu_platform.rpc.json_messages import to_json
from gpu_platform.rpc.methods import Rpc

_PASSED_ON = ("authorization", USER_HEADER.lower(), BREAK_GLASS_HEADER.lower(), "traceparent", "tracestate")
"""Headers that travel as metadata."""
_NOT_CONNECTED = "failed to connect to all addresses"
"""How gRPC begins to say that a call has not left this machine."""
END = ServerSentEvent("end", "{}", "")


@dataclass(frozen=True)
class RpcCall:
    """A request of REST as a call of gRPC."""

    rpc: Rpc
    message: Message
    metadata: list[tuple[str, str]]

    def on(self, channel: Any) -> Any:
        """The method to call, of a channel of ``grpc`` or of ``grpc.aio``."""
        make = channel.unary_stream if self.streams else channel.unary_unary
        serialize = self.rpc.request_type.SerializeToString
        return make(
            self.rpc.path, request_serializer=serialize, response_deserializer=self.rpc.response_type.FromString
        )

    @property
    def streams(self) -> bool:
        """True if several messages come."""
        return self.rpc.descriptor.server_streaming

    def answer(self, messages: Sequence[Any]) -> Answer:
        """The answer that REST would have given. ``messages``: all that came."""
        match self.rpc.answer:
            case methods.AnswerKind.NOTHING:
                return Answer(204, {}, b"")
            case methods.AnswerKind.TEXT:
                text = b"".join(message.text for message in messages)
                return Answer(200, {"content-type": "text/plain; charset=utf-8"}, text)
            case _:
                content = json.dumps(to_json(messages[0], complete=True)).encode()
                return Answer(200, {"content-type": "application/json"}, content)


def asked_of(call: Call, headers: Mapping[str, str]) -> RpcCall | Answer:
    """The call of gRPC for a request with these headers. An answer: gRPC cannot carry it, and the answer says why."""
    path, _, query = call.target.partition("?")
    found = methods.find(call.method, path, query)
    if found is None:
        return _refused(f"{call.method} {path} has no RPC: ask it over REST (GPU_PLATFORM_TRANSPORT=rest)")
    rpc, values = found
    given = {name.lower(): value for name, value in headers.items()}
    try:
        message = rpc.message_of(values, query, given, call.body)
    except InvalidRequest as error:
        return _refused(error.message)
    metadata = [(name, given[name]) for name in _PASSED_ON if name in given]
    if wrong := [name for name, value in metadata if not value.isascii()]:
        return _refused(f"{wrong[0]} must be ASCII, and is {given[wrong[0]]!r}")
    return RpcCall(rpc, message, metadata)


def failed(error: Any, address: str) -> Answer:
    """The answer for a call that failed. Raises :class:`NoAnswer` if the service did not end it."""
    if not statuses.is_ours(error):
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            raise _away(error.details() or "the connection broke", address) from error
        if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
            raise NoAnswer(TimeoutError("no answer in time"), was_sent=True) from error
    problem, after_s = statuses.problem_of(error), statuses.retry_after_s(error)
    return _problem(problem, {} if after_s is None else {"retry-after": str(math.ceil(after_s))})


def event_of(message: Message) -> ServerSentEvent:
    """The event that a message of a stream stands for."""
    value = to_json(message, complete=True)
    return ServerSentEvent("message", json.dumps(value["data"]), value["id"])


def last_event(error: Any, address: str) -> ServerSentEvent | None:
    """What comes last in a stream that the service ended with an error. None: the client is to ask again. Raises
    :class:`NoAnswer` if it was not the service that ended it."""
    if not statuses.is_ours(error) and error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
        raise _away(error.details() or "the stream broke", address) from error
    problem = statuses.problem_of(error)
    return None if problem.retryable else ServerSentEvent("problem", problem.model_dump_json(), "")


def _away(why: str, address: str) -> NoAnswer:
    if not why.startswith(_NOT_CONNECTED):
        return NoAnswer(ConnectionError(why), was_sent=True)
    hint = "does the service have service.grpc_port? GPU_PLATFORM_GRPC_PORT names the port"
    return NoAnswer(ConnectionError(f"no gRPC at {address}: {hint}; {why}"), was_sent=False)


def _refused(message: str) -> Answer:
    return _problem(Problem.of(InvalidRequest(message)), {})


def _problem(problem: Problem, headers: dict[str, str]) -> Answer:
    return Answer(problem.status, {"content-type": PROBLEM_JSON, **headers}, problem.model_dump_json().encode())
