"""The RPCs, and the request of REST that each of them stands for, as ``google.api.http`` says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode

import pydantic_core
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

import gpu_platform.v1
from gpu_platform.domain.errors import InvalidRequest, NotFound, PlatformError
from gpu_platform.rpc.json_messages import parse_query, query_texts, to_json, to_message
from gpu_platform.rpc.options import header_of, http_of, query_of

_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
"""RFC 9110, section 5.5."""
_EMPTY = "google.protobuf.Empty"


class AnswerKind(Enum):
    """What an RPC answers with."""

    JSON = "json"
    NOTHING = "nothing"
    EVENTS = "events"
    """A stream of messages with ``id`` and ``data``: the server-sent events."""
    TEXT = "text"
    """A stream of pieces of text."""


@dataclass(frozen=True)
class HttpRequest:
    """A request of REST."""

    method: str
    path: str
    """Not quoted."""
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    is_json: bool = True


@dataclass(frozen=True)
class Rpc:
    """One method of a service."""

    descriptor: MethodDescriptor
    verb: str
    template: str
    """The path, with its parameters in braces."""
    body: FieldDescriptor | None
    fixed_query: str
    answer: AnswerKind

    @property
    def path(self) -> str:
        """As gRPC names the method: ``/gpu_platform.v1.JobService/GetJob``."""
        return f"/{self.descriptor.containing_service.full_name}/{self.descriptor.name}"

    @property
    def route(self) -> str:
        """As the table of routes names it: ``GET /v1/jobs/{job_id}``."""
        return f"{self.verb} {self.template}"

    @property
    def request_type(self) -> type[Message]:
        """The class of its request."""
        return GetMessageClass(self.descriptor.input_type)

    @property
    def response_type(self) -> type[Message]:
        """The class of its answer, or of each message of its stream."""
        return GetMessageClass(self.descriptor.output_type)

    @property
    def path_fields(self) -> list[str]:
        """The fields that are parts of the path."""
        return re.findall(r"{(\w+)}", self.template)

    @property
    def is_raw(self) -> bool:
        """True if its body is bytes, and no JSON."""
        return self.body is not None and self.body.type == FieldDescriptor.TYPE_BYTES

    def request_of(self, message: Message) -> HttpRequest:
        """The request of REST that the message stands for. Raises :class:`NotFound` for a name that no path can
        hold."""
        given = to_json(message)
        path = self.template
        for name in self.path_fields:
            value = str(given[name])
            if not value or "/" in value:
                raise NotFound(f"{self.descriptor.name}: {name} is {value[:80]!r}; there is no such thing")
            path = path.replace(f"{{{name}}}", value)
        query = [(field.name, text) for field in self._query_fields() for text in query_texts(given, field)]
        headers = tuple((header, given[name]) for name, header in self._headers() if name in given)
        for name, value in headers:
            if not _HEADER_VALUE.fullmatch(value):
                raise InvalidRequest(f"{name}: {value[:80]!r} has control characters")
        texts = [self.fixed_query, urlencode(query)]
        return HttpRequest(
            self.verb, path, "&".join(filter(None, texts)), headers, self._body_of(message, given), not self.is_raw
        )

    def message_of(self, values: dict[str, str], query: str, headers: dict[str, str], body: bytes | None) -> Message:
        """The message for a request of REST. ``values``: those in the path. ``headers``: with lower-case names."""
        found: dict[str, Any] = dict(values)
        given: dict[str, list[str]] = {}
        for name, text in parse_qsl(query, keep_blank_values=True):
            given.setdefault(name, []).append(text)
        for field in self._query_fields():
            if texts := given.get(field.name):
                found[field.name] = parse_query(texts, field)
        found |= {name: headers[header.lower()] for name, header in self._headers() if header.lower() in headers}
        if not self.is_raw and self.body is not None and body:
            found[self.body.name] = json.loads(body)
        message = to_message(found, self.request_type)
        if self.is_raw:
            message.body = body or b""  # type: ignore[attr-defined]
        return message

    def answer_of(self, body: bytes) -> Message:
        """The answer as a message. ``body``: what REST answers with. Raises :class:`PlatformError` if it does not fit:
        then the .proto files are older than the service."""
        try:
            return to_message(json.loads(body), self.response_type, exact=False)
        except InvalidRequest as error:
            raise PlatformError(
                f"the answer to {self.route} is not a {self.response_type.DESCRIPTOR.name}: {error}"
            ) from error

    def _body_of(self, message: Message, given: dict[str, Any]) -> bytes | None:
        if self.body is None:
            return None
        if self.is_raw:
            return getattr(message, self.body.name)
        return pydantic_core.to_json(given[self.body.name]) if self.body.name in given else None

    def _headers(self) -> Iterator[tuple[str, str]]:
        for field in self.descriptor.input_type.fields:
            if header := header_of(field):
                yield field.name, header

    def _query_fields(self) -> Iterator[FieldDescriptor]:
        others = {*self.path_fields, *(name for name, _ in self._headers())}
        for field in self.descriptor.input_type.fields:
            if field.name not in others and field is not self.body:
                yield field


@cache
def services() -> dict[str, ServiceDescriptor]:
    """All services, by their full name."""
    found = {}
    for module in iter_modules(gpu_platform.v1.__path__):
        if module.name.endswith("_service_pb2"):
            file = import_module(f"gpu_platform.v1.{module.name}").DESCRIPTOR
            found |= {service.full_name: service for service in file.services_by_name.values()}
    return found


@cache
def rpcs() -> dict[str, Rpc]:
    """All methods, by the path that gRPC gives them."""
    every = [_rpc(method) for service in services().values() for method in service.methods]
    return {rpc.path: rpc for rpc in every}


def find(method: str, path: str, query: str) -> tuple[Rpc, dict[str, str]] | None:
    """The RPC of a request of REST, and the values in its path. ``path``: quoted. None: there is none."""
    follows = dict(parse_qsl(query)).get("follow", "false").lower()
    for rpc in rpcs().values():
        found = _pattern(rpc.template).fullmatch(path) if rpc.verb == method else None
        if found is not None and rpc.fixed_query in ("", f"follow={follows}"):
            return rpc, {name: unquote(value) for name, value in found.groupdict().items()}
    return None


@cache
def _pattern(template: str) -> re.Pattern[str]:
    parts = re.split(r"{(\w+)}", template)
    return re.compile("".join(f"(?P<{part}>[^/]+)" if at % 2 else re.escape(part) for at, part in enumerate(parts)))


def _rpc(method: MethodDescriptor) -> Rpc:
    http = http_of(method)
    verb = http.WhichOneof("pattern")
    body = method.input_type.fields_by_name[http.body] if http.body else None
    return Rpc(method, verb.upper(), getattr(http, verb), body, query_of(method), _answer(method))


def _answer(method: MethodDescriptor) -> AnswerKind:
    if method.server_streaming:
        return AnswerKind.EVENTS if "data" in method.output_type.fields_by_name else AnswerKind.TEXT
    return AnswerKind.NOTHING if method.output_type.full_name == _EMPTY else AnswerKind.JSON
