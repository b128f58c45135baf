"""Turns: each caller has a queue of its own, so the work of one caller does not delay that of another.

Of each class of work only some runs at once, and only some of one caller. More work waits in the caller's own queue,
which is short; the queues take turns. So however much one caller sends, another one waits for at most one piece
of work of each caller before it.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from gpu_platform.domain.errors import TooManyRequests

TURN_WITHIN_S = 30.0
"""After so long the caller is told to try again: clients give up after a minute."""


class TurnShare(NamedTuple):
    """How much of one class of work runs at once."""

    of_one: int
    """Of one caller."""
    waiting_of_one: int
    """So many more of the same caller wait."""
    at_once: int
    """Of all callers."""


class Turns:
    """Turns of one class of work. Its methods are called in the event loop."""

    def __init__(self, what: str, share: TurnShare, within_s: float = TURN_WITHIN_S) -> None:
        """``what``: the work, for people."""
        self._what, self._share, self._within_s = what, share, within_s
        self._running: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        """Wait for the caller's turn, and keep it inside the block. Raises :class:`TooManyRequests`."""
        if self._is_free(caller):
            self._running[caller] += 1
        else:
            await self._wait(caller)
        try:
            yield
        finally:
            self._end(caller)

    def _is_free(self, caller: str) -> bool:
        share = self._share
        return (
            caller not in self._waiting
            and self._running[caller] < share.of_one
            and self._running.total() < share.at_once
        )

    async def _wait(self, caller: str) -> None:
        mine = self._waiting.get(caller, ())
        if len(mine) >= self._share.waiting_of_one:
            share = self._share
            raise TooManyRequests(
                f"{caller} asked for {self._running[caller] + len(mine) + 1} {self._what} at once; at most "
                f"{share.of_one} are done at the same time, and {share.waiting_of_one} more wait: wait for their "
                "answers, as long as Retry-After says",
                retry_after_s=1.0,
            )
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(granted)
        try:
            async with asyncio.timeout(self._within_s):
                await granted
        except BaseException as error:
            if granted.done() and not granted.cancelled():
                self._end(caller)  # it was granted in the same moment
            else:
                self._forget(caller, granted)
            if isinstance(error, TimeoutError):
                raise TooManyRequests(
                    f"no turn came within {self._within_s:g} s for {self._what} of {caller}: "
                    f"{self._running.total()} are being done, at most {self._share.at_once} at once; try again",
                    retry_after_s=5.0,
                ) from None
            raise

    def _forget(self, caller: str, granted: asyncio.Future[None]) -> None:
        mine = self._waiting.get(caller)
        if mine is not None and granted in mine:
            mine.remove(granted)
            if not mine:
                del self._waiting[caller]

    def _end(self, caller: str) -> None:
        self._running[caller] -= 1
        if not self._running[caller]:
            del self._running[caller]
        self._grant()

    def _grant(self) -> None:
        """Give free places to those that wait, one of each caller after the other."""
        share = self._share
        for caller in [*self._waiting]:
            if self._running.total() >= share.at_once:
                return
            if self._running[caller] >= share.of_one:
                continue
            mine = self._waiting[caller]
            granted = mine.popleft()
            if mine:
                self._waiting.move_to_end(caller)
            else:
                del self._waiting[caller]
            if not granted.done():
                self._running[caller] += 1
                granted.set_result(None)
