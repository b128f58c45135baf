"""Tells Temporal that nobody watches an attempt here, so that it gives this host the watch again at once.

The node worker before this one may have been killed, or a watch may have been lost on its way: Temporal gave it to a
connection that had just broken. Temporal would notice by itself, but only after the heartbeat timeout of a watch. That
is long, because each heartbeat costs Temporal a write, and thousands of jobs are watched at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

import structlog
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.contracts import AttemptKey, watch_id

log = structlog.get_logger()

LOOK_S = 1.0
GRACE_S, LONGEST_S = 3.0, 60.0
"""Seconds that an attempt may be without a watch before Temporal is told. Each time it helps nothing (a gang whose
other hosts start still has no watch), the next one comes after twice as long, up to the longest."""


class Connection(Protocol):
    """Has the newest client of Temporal."""

    client: Client


class InterruptedWatches:
    """``open_attempts`` returns the attempts of this host, ``watched`` those that a step in this process waits for."""

    def __init__(
        self,
        host: str,
        open_attempts: Callable[[], Sequence[AttemptKey]],
        watched: Callable[[], Collection[AttemptKey]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._open_attempts, self._watched, self._clock = host, open_attempts, watched, clock
        self._due: dict[AttemptKey, tuple[float, float]] = {}
        """Attempts without a watch: when Temporal is told, and how long after that once more."""

    async def run(self, connection: Connection) -> None:
        """Look, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look(connection.client)

    async def look(self, client: Client, *, at_once: bool = False) -> None:
        """Tell Temporal of the attempts that are due. ``at_once``: of all, since this process has just started."""
        now, watched = self._clock(), self._watched()
        alone = [key for key in self._open_attempts() if key not in watched]
        first = now if at_once else now + GRACE_S
        self._due = {key: self._due.get(key, (first, GRACE_S)) for key in alone}
        due = [key for key, (at, _) in self._due.items() if at <= now]
        for key in due:
            pause_s = min(2 * self._due[key][1], LONGEST_S)
            self._due[key] = (now + pause_s, pause_s)
        await asyncio.gather(*[self._repeat(client, key) for key in due])

    async def _repeat(self, client: Client, key: AttemptKey) -> None:
        watch = client.get_async_activity_handle(
            workflow_id=key.job_id, run_id=None, activity_id=watch_id(self._host, key.attempt)
        )
        try:
            await watch.fail(ApplicationError("no process watches the attempt on its host", type="NotWatched"))
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:  # else it waits for a worker, has ended, or never began
                log.warning("watch.not_repeated", job=key.job_id, attempt=key.attempt, error=str(error))
        else:
            log.warning("watch.repeated", job=key.job_id, attempt=key.attempt)
