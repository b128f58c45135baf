"""One reader of the change feed per process, any number of followers.

While anybody follows, the shared task waits for changes (``store/change_watch.py``): on PostgreSQL until it is told, on
SQLite for ``poll_s``. Only if the change token is another one, it reads the new events, once, and gives each to the
followers of its job and of everything. A follower reads earlier events from the store, then takes those that the task
gives it. If it falls behind, it reads from the store again. Nothing is skipped, because sequence numbers become visible
in order.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.events import Event
from gpu_platform.observability import get_logger
from gpu_platform.store import events as store_events
from gpu_platform.store.change_watch import SAFETY_S, ChangeWatch
from gpu_platform.store.database import Store
from gpu_platform.store.jobs import jobs

PAGE = 500
MAX_BEHIND = 2000
LEAST_PAUSE_S = 0.02
"""So long after one read of the feed the next one is, however much happens: many events are read at once."""
RETRY_S = 1.0
"""Seconds between two tries while the database is away."""
TERMINAL_KINDS = frozenset({"job.completed", "job.failed", "job.cancelled", "job.withdrawn"})

log = get_logger(__name__)


@dataclass(eq=False)
class _Follower:
    job_id: str | None
    waiting: list[Event] = field(default_factory=list)
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)
    lost_some: bool = False

    def hand(self, event: Event) -> None:
        if len(self.waiting) >= MAX_BEHIND:
            self.waiting.clear()
            self.lost_some = True
        if not self.lost_some:
            self.waiting.append(event)
        self.wakeup.set()

    def take(self) -> list[Event]:
        taken, self.waiting = self.waiting, []
        self.wakeup.clear()
        return taken


class EventFeed:
    """Gives the events of the database to all streams. One task reads them for all."""

    def __init__(self, store: Store, poll_s: float = 0.1) -> None:
        self._store = store
        self._poll_s = poll_s
        self._followers: dict[str | None, set[_Follower]] = {}
        self._ready = asyncio.Event()
        self._wanted = asyncio.Event()
        self._closed = asyncio.Event()
        self._news = asyncio.Event()

    @property
    def closed(self) -> bool:
        """True after :meth:`close`."""
        return self._closed.is_set()

    def close(self) -> None:
        """End every stream: the service is about to stop, and clients will connect to another one."""
        self._closed.set()
        self._news.set()
        self._wanted.set()
        self._ready.set()
        self._wake_all()

    async def run(self) -> None:
        """Read new events for all streams, while there are any. While the database is away, it tries again."""
        loop = asyncio.get_running_loop()

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: a service that ends does not wait for this
                loop.call_soon_threadsafe(self._news.set)

        watch = ChangeWatch(self._store, changed)
        try:
            await self._run(watch)
        finally:
            await run_in_threadpool(watch.stop)

    async def _run(self, watch: ChangeWatch) -> None:
        seq: int | None = None
        token: object = None
        while not self.closed:
            try:
                if not self._followers:
                    seq = token = None
                    self._ready.clear()
                    await self._wanted.wait()
                    watch.start()
                    continue
                if seq is None:
                    seq = await run_in_threadpool(store_events.last_seq, self._store)
                    self._ready.set()
                    self._wake_all()  # nobody waits for events before this number, but a follower may have missed some
                self._news.clear()
                # The token is read first: a commit between the two reads is then found in the next round.
                now = await run_in_threadpool(store_events.change_token, self._store)
                if now != token:
                    while events := await run_in_threadpool(store_events.read_events, self._store, seq, PAGE):
                        for event in events:
                            self._hand_out(event)
                        seq = events[-1].seq
                    token = now
                await self._pause(watch)
            except PlatformError as error:
                log.warning("feed.not_read", error=error.message)
                await asyncio.sleep(RETRY_S)

    async def _pause(self, watch: ChangeWatch) -> None:
        if not watch.listens:
            await asyncio.sleep(self._poll_s)
            return
        await asyncio.sleep(LEAST_PAUSE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SAFETY_S):
                await self._news.wait()

    async def last_seq(self) -> int:
        """The sequence number of the newest event."""
        return await run_in_threadpool(store_events.last_seq, self._store)

    async def follow(self, after: int, job_id: str | None = None) -> AsyncGenerator[Event, None]:
        """Events after the number ``after``: of one job until it has ended, or of everything. It ends when the
        service stops."""
        with self._following(job_id) as follower:
            await self._ready.wait()
            follower.lost_some = True  # earlier events are in the store
            while not self.closed:
                ended = False
                if follower.lost_some:
                    follower.take()
                    follower.lost_some = False
                    # Ask first whether it has ended: then its last event is among those that are read.
                    ended = job_id is not None and await run_in_threadpool(_has_ended, self._store, job_id)
                    events = await run_in_threadpool(store_events.read_events, self._store, after, PAGE, job_id)
                    follower.lost_some = follower.lost_some or len(events) == PAGE
                    ended = ended and len(events) < PAGE
                else:
                    await follower.wakeup.wait()
                    events = follower.take()
                for event in events:
                    if event.seq > after:
                        after = event.seq
                        yield event
                        if job_id is not None and event.kind in TERMINAL_KINDS:
                            return
                if ended:
                    return

    @contextlib.contextmanager
    def watching(self, job_id: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever something happens to the job, and when the feed closes."""
        with self._following(job_id) as follower:
            follower.lost_some = True  # keep no events, only wake
            yield follower.wakeup

    def _wake_all(self) -> None:
        for followers in self._followers.values():
            for follower in followers:
                follower.wakeup.set()

    def _hand_out(self, event: Event) -> None:
        for follower in self._followers.get(None, ()):
            follower.hand(event)
        if event.job_id is not None:
            for follower in self._followers.get(event.job_id, ()):
                follower.hand(event)

    @contextlib.contextmanager
    def _following(self, job_id: str | None) -> Iterator[_Follower]:
        follower = _Follower(job_id)
        self._followers.setdefault(job_id, set()).add(follower)
        self._wanted.set()
        try:
            yield follower
        finally:
            group = self._followers[job_id]
            group.discard(follower)
            if not group:
                del self._followers[job_id]
            if not self._followers and not self.closed:
                self._wanted.clear()


def _has_ended(store: Store, job_id: str) -> bool:
    return jobs.get_job(store, job_id).state.is_terminal
