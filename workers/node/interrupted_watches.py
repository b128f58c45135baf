"""Tells Temporal that nobody watches an attempt here, so that it gives this host the watch again at once.

The node worker before this one may have been killed while it watched, or when it had not yet said how the attempt
ended. Or a watch was lost on its way: Temporal gave it to a connection that had just broken. Temporal would notice by
itself, but only after the heartbeat timeout of a watch. That is long, because each heartbeat costs Temporal a write,
and thousands of jobs are watched at once.
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

from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.contracts import AttemptKey, elements_watch_id, watch_id

log = structlog.get_logger()

LOOK_S = 1.0
FINISHED_WITHIN_S = 75.0
"""A watch of an attempt that finished before has timed out: longer than the heartbeat timeout of a watch."""
TOLD_AT_ONCE = 32
"""Calls of Temporal at the same time."""
GRACE_S, LONGEST_S = 3.0, 60.0
"""Seconds that an attempt may be without a watch before Temporal is told. Each time it helps nothing (a gang whose
other hosts start still has no watch), the next one comes after twice as long, up to the longest."""


class Connection(Protocol):
    """Has the newest client of Temporal."""

    client: Client


class InterruptedWatches:
    """``open_attempts`` returns the attempts of this host, ``watched`` those that a step in this process waits for.

    ``finished``: attempts that ended here lately. Temporal may not know it from the node worker before this one.
    """

    def __init__(
        self,
        host: str,
        open_attempts: Callable[[], Sequence[AttemptKey]],
        watched: Callable[[], Collection[AttemptKey]],
        finished: Collection[AttemptKey] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host, self._open_attempts, self._watched, self._clock = host, open_attempts, watched, clock
        self._due = {key: (clock(), GRACE_S) for key in (*open_attempts(), *finished)}
        """Attempts without a watch: when Temporal is told, and how long after that once more. One that ends here
        without a watch (its lease has ended) stays until Temporal has answered."""

    async def run(self, connection: Connection) -> None:
        """Look, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look(connection.client)

    async def look(self, client: Client) -> None:
        """Tell Temporal of the attempts that are due."""
        now, watched, known = self._clock(), set(self._watched()), set(self._open_attempts())
        for key in known - watched:
            self._due.setdefault(key, (now + GRACE_S, GRACE_S))
        self._due = {key: when for key, when in self._due.items() if key not in watched}
        due = [key for key, (at, _) in self._due.items() if at <= now]
        turns = asyncio.Semaphore(TOLD_AT_ONCE)

        async def repeat(key: AttemptKey) -> bool:
            async with turns:
                return await self._repeat(client, key)

        answered = await asyncio.gather(*[repeat(key) for key in due])
        for key, is_told in zip(due, answered, strict=True):
            pause_s = min(2 * self._due[key][1], LONGEST_S)
            self._due[key] = (now + pause_s, pause_s)
            if is_told and key not in known:
                del self._due[key]

    async def _repeat(self, client: Client, key: AttemptKey) -> bool:
        """Returns whether Temporal has answered."""
        watches = [(key.job_id, watch_id(self._host, key.attempt))]
        if (array_id := array_of(key.job_id)) is not None:
            # The first of the elements that were watched together names their watch. So one of these finds it.
            watches.append((array_id, elements_watch_id(self._host, key)))
        try:
            for workflow_id, name in watches:
                if await self._fail(client, workflow_id, name):
                    log.warning("watch.repeated", job=key.job_id, attempt=key.attempt)
        except RPCError as error:
            log.warning("watch.not_repeated", job=key.job_id, attempt=key.attempt, error=str(error))
            return False
        return True

    async def _fail(self, client: Client, workflow_id: str, name: str) -> bool:
        """Returns whether the watch was under way. False: it waits for a worker, has ended, or never began."""
        watch = client.get_async_activity_handle(workflow_id=workflow_id, run_id=None, activity_id=name)
        try:
            await watch.fail(ApplicationError("no process watches the attempt on its host", type="NotWatched"))
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise
        return True
