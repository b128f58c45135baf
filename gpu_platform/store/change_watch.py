"""Wakes who follows the change feed. On PostgreSQL each transaction with events sends a NOTIFY, which arrives when it
has committed; on SQLite nobody can be told, and followers ask every few milliseconds.

A follower reads the feed whether it was told or not, at least every ``SAFETY_S``: a notification that was lost with its
connection costs that time and nothing else. While there is no connection, followers ask as on SQLite.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import structlog

from gpu_platform.store import engines
from gpu_platform.store.database import EVENT_CHANNEL, Store

SAFETY_S = 0.25
"""So often followers look although nobody told them anything."""
_RETRY_S = 1.0
_LOOK_S = 0.25
"""How long a read of the connection lasts at most, so that the thread can be ended."""

log = structlog.get_logger(__name__)


class ChangeWatch:
    """Calls ``changed`` in a thread of its own when events were committed, on PostgreSQL. On SQLite it does nothing.

    Start it, and stop it when nobody follows any more.
    """

    def __init__(self, store: Store, changed: Callable[[], None]) -> None:
        self._store = store
        self._changed = changed
        self._parameters = _parameters(store) if store.dialect == "postgresql" else {}
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._listens = False

    @property
    def listens(self) -> bool:
        """True while every commit of events is told. Otherwise the follower must ask."""
        return self._listens

    def start(self) -> None:
        """Begin to listen. A second call does nothing."""
        if self._store.dialect == "postgresql" and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="change-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread and its connection. One that is just connecting ends when it has."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(4 * _LOOK_S)
            self._thread = None

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except psycopg.Error as error:
                if self._listens:
                    log.warning("store.notifications_ended", error=str(error).strip())
            finally:
                self._listens = False
            self._stopped.wait(_RETRY_S)

    def _listen(self) -> None:
        with psycopg.connect(**self._parameters, autocommit=True) as connection:
            connection.execute(f"LISTEN {EVENT_CHANNEL}")
            self._listens = True
            self._changed()  # what was committed until now was told to nobody
            while not self._stopped.is_set():
                for _ in connection.notifies(timeout=_LOOK_S, stop_after=1):
                    self._changed()


class Pacer:
    """The pauses of a thread that follows the feed: until something was committed, but not more often than every
    ``poll_s``, and not longer than ``SAFETY_S``."""

    def __init__(self, store: Store, poll_s: float) -> None:
        self._news = threading.Event()
        self._watch = ChangeWatch(store, self._news.set)
        self._poll_s = poll_s
        self._looked_at = 0.0

    def start(self) -> None:
        """Begin to listen."""
        self._watch.start()

    def stop(self) -> None:
        """End listening."""
        self._watch.stop()

    def wake(self) -> None:
        """End the pause: there is something to do that is not in the feed. Thread-safe."""
        self._news.set()

    def pause(self, stopped: threading.Event, *, short: bool) -> None:
        """Wait. ``short``: only ``poll_s``, because there is more to do. Call it after each look at the feed."""
        if short or not self._watch.listens:
            stopped.wait(self._poll_s)
        elif self._news.wait(SAFETY_S):
            stopped.wait(max(0.0, self._looked_at + self._poll_s - time.monotonic()))
        self._news.clear()  # before the next look: what is told from now on makes one more
        self._looked_at = time.monotonic()


def _parameters(store: Store) -> dict[str, Any]:
    """How psycopg connects to the store's database."""
    _, given = store.url.get_dialect()().create_connect_args(store.url)
    return {**given, **engines.DEAD_LINK, "connect_timeout": 5, "application_name": "gpu-platform feed"}
