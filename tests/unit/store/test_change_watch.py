"""Who follows the feed on PostgreSQL is told of each commit of events, also after its connection broke."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from gpu_platform.store import Store, change_watch, events
from gpu_platform.store.change_watch import ChangeWatch, Pacer
from service import feed as feed_module
from service.feed import EventFeed
from tests.support.store_cluster import NOW
from tests.support.waiting import eventually


class Told:
    """Counts the calls of a watch."""

    def __init__(self, store: Store) -> None:
        self.calls = 0
        self.watch = ChangeWatch(store, self._count)

    def _count(self) -> None:
        self.calls += 1


@pytest.fixture
def on_postgresql(postgres_databases: Any, postgres_template: str) -> Iterator[Store]:
    name = postgres_databases.create(postgres_template)
    store = Store(postgres_databases.url(name))
    yield store
    store.close()
    postgres_databases.drop(name)


@pytest.fixture
def told(on_postgresql: Store) -> Iterator[Told]:
    told = Told(on_postgresql)
    told.watch.start()
    yield told
    told.watch.stop()


def write_event(store: Store, *, fails: bool = False) -> None:
    with store.write() as session:
        events.append_event(session, "host.lost", "test", NOW, host="a")
        if fails:
            raise RuntimeError("rolled back")


async def test_each_commit_of_events_is_told_and_nothing_else(on_postgresql: Store, told: Told) -> None:
    await eventually(lambda: told.calls == 1, "the watch to listen")
    with pytest.raises(RuntimeError, match="rolled back"):
        write_event(on_postgresql, fails=True)
    with on_postgresql.write() as session:
        session.execute(text("UPDATE leader SET epoch = epoch"))
    write_event(on_postgresql)
    await eventually(lambda: told.calls >= 2, "the commit to be told")
    assert told.calls == 2


async def test_a_lost_connection_costs_only_time(on_postgresql: Store, told: Told) -> None:
    await eventually(lambda: told.calls == 1, "the watch to listen")
    with on_postgresql.read() as session:
        ends = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'gpu-platform feed'"
        )
        assert session.scalar(text(f"{ends} AND datname = current_database()")) == 1
    await eventually(lambda: not told.watch.listens, "the watch to see it")
    write_event(on_postgresql)  # of this one nobody is told
    await eventually(lambda: told.watch.listens and told.calls == 2, "the watch to listen again, and to say so")
    write_event(on_postgresql)
    await eventually(lambda: told.calls == 3, "the next commit to be told")


async def test_a_thread_that_follows_wakes_at_once_and_asks_while_it_is_not_told(
    on_postgresql: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_watch, "SAFETY_S", 1.0)
    pacer, stopped = Pacer(on_postgresql, poll_s=0.01), threading.Event()
    pauses: list[float] = []

    def pause() -> None:
        began = time.monotonic()
        pacer.pause(stopped, short=False)
        pauses.append(time.monotonic() - began)

    pause()
    assert pauses[-1] < 1.0, "nobody tells it anything yet"
    pacer.start()
    await eventually(lambda: pacer._watch.listens, "it to listen")
    pause()  # that it listens now
    thread = threading.Thread(target=pause)
    thread.start()
    pacer.wake()
    thread.join(5)
    pause()
    assert pauses[-2] < 0.9 < pauses[-1], "woken, and then not"
    pacer.stop()


def test_on_sqlite_nobody_is_told(sqlite_store: Store) -> None:
    told = Told(sqlite_store)
    told.watch.start()
    write_event(sqlite_store)
    assert (told.calls, told.watch.listens) == (0, False)
    told.watch.stop()


async def test_streams_get_events_at_once(on_postgresql: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "SAFETY_S", 60.0)
    feed = EventFeed(on_postgresql, poll_s=0.02)
    reading = asyncio.create_task(feed.run())
    seen: list[int] = []

    async def follow() -> None:
        async for event in feed.follow(0):
            seen.append(event.seq)

    following = asyncio.create_task(follow())
    for number in range(1, 6):
        await asyncio.to_thread(write_event, on_postgresql)
        await eventually(lambda: len(seen) == number, "the follower to see it", within_s=5)  # noqa: B023
    feed.close()
    await asyncio.gather(reading, following)
