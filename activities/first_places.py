"""Waits for the leader to reserve the first place of jobs: see ``gpu_platform.store.reservations.first_places``.

One thread looks for all jobs that wait here, and only when somebody has changed the database.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Executor

import structlog

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.store import Store, events
from gpu_platform.store.reservations import first_places

log = structlog.get_logger()

PATIENCE_S = 0.25
"""How long a job waits for its first place before it asks in the way that costs nothing while it waits. Short against
the time-out of a workflow task."""
LOOK_S = 0.003
AWAY_S = 0.1


class FirstPlaces:
    """Thread-safe. ``executor`` runs what blocks."""

    def __init__(self, store: Store, executor: Executor) -> None:
        self._store = store
        self._executor = executor
        self._changed = threading.Condition()
        self._waiting: dict[AttemptKey, tuple[asyncio.AbstractEventLoop, asyncio.Future[Reserved]]] = {}
        self._thread: threading.Thread | None = None

    async def wait(self, key: AttemptKey) -> Reserved | None:
        """The place that the leader reserved for a job that asks for it. None: it gave none soon, and the job
        must ask in the other way."""
        loop = asyncio.get_running_loop()
        place: asyncio.Future[Reserved] = loop.create_future()
        with self._changed:
            self._waiting[key] = loop, place
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="first-places", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await place
        except TimeoutError:
            return await loop.run_in_executor(self._executor, first_places.stop_asking, self._store, key)
        finally:
            with self._changed:
                self._waiting.pop(key, None)

    def _look(self) -> None:
        token: object = None
        known: set[AttemptKey] = set()
        while True:
            with self._changed:
                if not self._waiting and not self._changed.wait_for(lambda: self._waiting, timeout=5.0):
                    self._thread = None
                    return
                waiting = dict(self._waiting)
            try:
                seen = events.change_token(self._store)
                if seen != token or not known.issuperset(waiting):
                    found = first_places.reserved_places(self._store, list(waiting))
                    token, known = seen, set(waiting)
                    for key, place in found.items():
                        loop, future = waiting[key]
                        loop.call_soon_threadsafe(_settle, future, place)
            except PlatformError as error:
                log.warning("first_places.store_away", error=error.message)
                threading.Event().wait(AWAY_S)
            except RuntimeError:  # the loop of a worker that has ended
                known.clear()
            threading.Event().wait(LOOK_S)


def _settle(future: asyncio.Future[Reserved], place: Reserved) -> None:
    if not future.done():
        future.set_result(place)
