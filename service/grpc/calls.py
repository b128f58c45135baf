"""What handlers know of a call: who calls, and how it ends with an error."""

from __future__ import annotations

from typing import NoReturn
from urllib.parse import unquote

import grpc.aio

from gpu_platform.client.calls import BREAK_GLASS_HEADER, USER_HEADER
from gpu_platform.client.wire import Problem
from gpu_platform.rpc import statuses
from service.grpc.in_process import Caller

PASSED_ON = frozenset(
    {
        "authorization",
        USER_HEADER.lower(),
        BREAK_GLASS_HEADER.lower(),
        "x-forwarded-for",  # it counts only if a trusted proxy sends it: see service/app.py
        "x-forwarded-proto",
        "traceparent",
        "tracestate",
    }
)
"""Metadata of a call that become headers. Nothing else does: none of them is a node token."""
REQUEST_ID = "x-request-id"


async def abort(context: grpc.aio.ServicerContext, problem: Problem, headers: dict[str, str]) -> NoReturn:
    """End the call with the status of this problem."""
    after = headers.get("retry-after", "")
    status = statuses.status_of(
        problem, retry_after_s=float(after) if after.isdecimal() else None, request_id=headers.get(REQUEST_ID)
    )
    await context.abort(status.code, status.details, status.trailing_metadata)


def caller_of(context: grpc.aio.ServicerContext, *, is_secure: bool) -> Caller:
    """Who calls: the address of the other end, and what of the metadata becomes headers."""
    given = [(str(name), _text(value)) for name, value in context.invocation_metadata() or ()]
    return Caller(_address(context.peer()), [(name, value) for name, value in given if name in PASSED_ON], is_secure)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


def _address(peer: str) -> tuple[str, int] | None:
    """``ipv4:127.0.0.1:5`` and ``ipv6:[::1]:5`` as address and port."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (host.strip("[]"), int(port)) if family in ("ipv4", "ipv6") and port.isdecimal() else None
