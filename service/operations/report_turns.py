"""In which order hosts' reports are written if they come faster than the database takes them: the newest first.

A host waits a few seconds for its answer, then it reports again. A service that works through old reports in their
order answers nobody in time: each host that gave up sends one more, and the service never catches up. So a newer
report of the same host takes the place of the older one, and a report that has waited for too long is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from gpu_platform.domain.errors import Unavailable


class ReportTurns:
    """Lets ``at_once`` reports through at a time. ``patience_s``: how long a host waits for its answer. For one event
    loop."""

    def __init__(self, at_once: int, patience_s: float) -> None:
        self._free = at_once
        self._patience_s = patience_s
        self._waiting: dict[str, asyncio.Future[None]] = {}
        """Host -> its newest report that waits. The last one came last."""

    @property
    def waiting(self) -> int:
        """How many reports wait for their turns."""
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncGenerator[None]:
        """The turn of a report of this host. Raises :class:`Unavailable` if it does not come in time."""
        if self._free > 0:
            self._free -= 1
        else:
            await self._wait(host)
        try:
            yield
        finally:
            self._pass_on()

    async def _wait(self, host: str) -> None:
        older = self._waiting.pop(host, None)
        if older is not None:
            refuse(older, superseded(host))
        self._waiting[host] = mine = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait([mine], timeout=self._patience_s)
        except asyncio.CancelledError:
            if mine.done() and mine.exception() is None:
                self._pass_on()
            raise
        finally:
            if self._waiting.get(host) is mine:
                del self._waiting[host]
        if not mine.done():
            raise too_late(host, self._patience_s)
        mine.result()

    def _pass_on(self) -> None:
        """Give the turn to the report that came last."""
        while self._waiting:
            _, future = self._waiting.popitem()
            if not future.done():
                future.set_result(None)
                return
        self._free += 1


def refuse(waiting: asyncio.Future[Any], why: Unavailable) -> None:
    """Let whoever waits raise this error."""
    if not waiting.done():
        waiting.set_exception(why)


def superseded(host: str) -> Unavailable:
    """The error for a report that came before another one of the same host."""
    return Unavailable(f"host {host} has sent a newer report meanwhile")


def too_late(host: str, waited_s: float) -> Unavailable:
    """The error for a report whose host has given up by now."""
    return Unavailable(
        f"the report of host {host} has waited for {waited_s:.1f} s: more reports come than this service can write",
        retry_after_s=1.0,
    )
