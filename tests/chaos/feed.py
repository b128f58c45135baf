"""Follows a cluster's event log and promises while it runs, and stamps what it sees with CLOCK_BOOTTIME.

Clocks of the platform's processes are stepped by the tests, so the times that events carry are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.events import Event
from gpu_platform.store import Store, events
from gpu_platform.store.jobs.queue_view import list_queue
from tests.chaos.truth import boottime

if TYPE_CHECKING:
    from tests.chaos.audit import Audit

POLL_S = 0.05
PROMISES_S = 0.5


@dataclass(frozen=True)
class Seen:
    """An event was committed after ``after`` and before ``before``."""

    event: Event
    after: float
    before: float


@dataclass(frozen=True)
class Promise:
    """At ``seen`` the job was promised a start by ``due``."""

    job: str
    due: float
    seen: float


@dataclass
class Feed:
    audit: Audit
    seen: list[Seen] = field(default_factory=list)
    forgotten: list[Seen] = field(default_factory=list)
    """Events that were seen, and that a database which was restored to an older point does not have."""
    promises: list[Promise] = field(default_factory=list)
    _looked: float = field(default_factory=boottime)
    _task: asyncio.Task[None] | None = None
    _reading: threading.Lock = field(default_factory=threading.Lock)

    async def __aenter__(self) -> Feed:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._wait_for_read)

    async def catch_up(self) -> None:
        """Everything that was committed before this call is seen after it."""
        await asyncio.to_thread(self._read)

    def _wait_for_read(self) -> None:
        """A cancelled task leaves its thread behind, which has a connection open."""
        with self._reading:
            pass

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing of the database is open meanwhile: somebody changes its files."""
        with self._reading:
            self.audit.close()
            try:
                yield
            finally:
                self.audit.reopen()

    def rewind(self) -> None:
        """While it is paused: the database was replaced by an older one, and nobody has written to that yet."""
        store = Store(self.audit.database_url)
        last = events.last_seq(store)
        store.close()
        self.forgotten += [seen for seen in self.seen if seen.event.seq > last]
        self.seen = [seen for seen in self.seen if seen.event.seq <= last]

    async def _run(self) -> None:
        next_promises = 0.0
        while True:
            try:
                await asyncio.to_thread(self._read)
                if boottime() >= next_promises:
                    next_promises = boottime() + PROMISES_S
                    await asyncio.to_thread(self._read_promises)
            except (SQLAlchemyError, PlatformError):
                pass  # the database is away: that is what the tests do
            await asyncio.sleep(POLL_S)

    def _read(self) -> None:
        with self._reading:
            asked, more = boottime(), True
            while more:
                asked = boottime()
                batch = events.read_events(self.audit.store, self.seen[-1].event.seq if self.seen else 0)
                now = boottime()
                self.seen += [Seen(event, self._looked, now) for event in batch]
                more = len(batch) == 1000
            self._looked = asked

    def _read_promises(self) -> None:
        with self._reading:
            now, line = boottime(), list_queue(self.audit.store, 0, 20)
        offset = now - datetime.now(UTC).timestamp()
        for waiting in line:
            if waiting.reason is not None and waiting.reason.starts_by is not None:
                self.promises.append(Promise(waiting.job_id, waiting.reason.starts_by + offset, now))
