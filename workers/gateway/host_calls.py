"""What one host may have under way at the gateway, so that it takes the gateway, or Temporal, from no other host.

A message is whole in memory while it is passed on. So it is read when its host may have one more.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from grpc import StatusCode

from workers.gateway.rules import RefusedCall, Size

POLLS_AT_ONCE = 32
"""Calls of one host that last: polls, and those that wait for the end of a report. A node worker has two, and while its
certificate is renewed four. Temporal takes about a thousand of a namespace."""
CALLS_AT_ONCE = 64
"""Other calls of one host. More wait."""
LARGE_AT_ONCE = 4
"""Messages of one host that are read at once, and large ones that are passed on."""
LARGE_BYTES = 64 << 10
WAIT_S = 20.0
"""So long a call waits for those before it, and then for its message."""
REFUSALS_PER_MINUTE = 60
"""So many refusals of one host are written down. More are counted."""


@dataclass
class _Host:
    polls: int = 0
    calls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS_AT_ONCE))
    large: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LARGE_AT_ONCE))


class HostCalls:
    """The calls of all hosts."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}

    @asynccontextmanager
    async def message(self, host: str, size: Size, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        """The message of a call, which is under way until the block ends. Raises :class:`RefusedCall`."""
        # Only hosts with a certificate get here, so there are not many.
        of_host = self._hosts.setdefault(host, _Host())
        async with _lasting(of_host) if size.lasts else _place(of_host.calls), AsyncExitStack() as reading:
            await reading.enter_async_context(_place(of_host.large))
            message = await _in_time(context.read)
            if not isinstance(message, bytes):
                raise RefusedCall("its call has no message", StatusCode.INVALID_ARGUMENT)
            if len(message) > size.most_bytes:
                raise RefusedCall(
                    f"its message has {len(message):,} bytes; at most {size.most_bytes:,} are allowed",
                    StatusCode.INVALID_ARGUMENT,
                )
            if len(message) < LARGE_BYTES:
                await reading.aclose()
            yield message


class Refusals:
    """How many refusals of each host were written down in this minute."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._since = now, now()
        self._counts: Counter[str] = Counter()

    def to_write(self, host: str) -> bool:
        """Count one. True: write it down."""
        if self._now() - self._since >= 60.0:
            self._since, self._counts = self._now(), Counter()
        self._counts[host] += 1
        return self._counts[host] <= REFUSALS_PER_MINUTE


@asynccontextmanager
async def _lasting(host: _Host) -> AsyncIterator[None]:
    if host.polls >= POLLS_AT_ONCE:
        raise RefusedCall(f"it has {POLLS_AT_ONCE} calls that wait already", StatusCode.RESOURCE_EXHAUSTED)
    host.polls += 1
    try:
        yield
    finally:
        host.polls -= 1


@asynccontextmanager
async def _place(places: asyncio.Semaphore) -> AsyncIterator[None]:
    await _in_time(places.acquire)
    try:
        yield
    finally:
        places.release()


async def _in_time(call: Callable[[], Any]) -> Any:
    try:
        async with asyncio.timeout(WAIT_S):
            return await call()
    except TimeoutError:
        raise RefusedCall(
            f"it sends too much, or no message came within {WAIT_S:g} s", StatusCode.RESOURCE_EXHAUSTED
        ) from None
