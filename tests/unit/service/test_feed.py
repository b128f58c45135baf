"""The change feed: every follower gets every event once, in order, also when it is slow or joins late."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpu_platform.domain.events import Event
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store import events as store_events
from gpu_platform.store.jobs import jobs
from service import feed as feed_module
from service.feed import EventFeed
from tests.support.store_cluster import NOW, set_job_state, spec
from tests.support.waiting import eventually


@pytest.fixture
def store(sqlite_store: Store) -> Store:
    return sqlite_store


@pytest.fixture
async def feed(store: Store) -> AsyncIterator[EventFeed]:
    feed = EventFeed(store, poll_s=0.005)
    reading = asyncio.create_task(feed.run())
    yield feed
    feed.close()
    await asyncio.wait_for(reading, 5)


def submit(store: Store, *job_ids: str) -> None:
    for job_id in job_ids:
        jobs.submit_job(store, job_id, spec(), actor="ada", now=NOW, idempotency_key=None)


async def take(feed: EventFeed, count: int, after: int = 0, job_id: str | None = None) -> list[int]:
    seqs: list[int] = []
    async for event in feed.follow(after, job_id):
        seqs.append(event.seq)
        if len(seqs) == count:
            break
    return seqs


async def _collect(feed: EventFeed, seen: list[int]) -> None:
    async for event in feed.follow(0):
        seen.append(event.seq)


async def test_past_and_present_without_a_gap(feed: EventFeed, store: Store) -> None:
    submit(store, "j-0", "j-1")
    following = asyncio.create_task(take(feed, 5, after=1))
    await asyncio.to_thread(submit, store, "j-2", "j-3", "j-4", "j-5")
    assert await asyncio.wait_for(following, 5) == [2, 3, 4, 5, 6]


async def test_a_slow_follower_falls_back_to_the_store(
    feed: EventFeed, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed_module, "MAX_BEHIND", 3)
    monkeypatch.setattr(feed_module, "PAGE", 4)
    read_events = store_events.read_events
    handed_out: list[int] = []
    looked_up: list[int] = []

    def read(*args: Any) -> list[Event]:
        found = read_events(*args)
        # A follower says whose events it wants; the shared task, which reads for all, does not.
        (looked_up if len(args) == 4 else handed_out).extend(event.seq for event in found)
        return found

    monkeypatch.setattr(store_events, "read_events", read)
    submit(store, "j-first")
    seqs: list[int] = []
    async for event in feed.follow(0):
        seqs.append(event.seq)
        if len(seqs) == 1:
            await asyncio.to_thread(submit, store, *(f"j-{number}" for number in range(20)))
            await eventually(lambda: 21 in handed_out, "every event to be handed out")
        if len(seqs) == 21:
            break
    assert seqs == list(range(1, 22))
    assert looked_up == list(range(1, 22)), "it fell behind, and read on in the store"


async def test_the_store_is_asked_only_while_somebody_follows(
    feed: EventFeed, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_token = store_events.change_token
    asked: list[int] = []
    monkeypatch.setattr(store_events, "change_token", lambda one: (asked.append(1), change_token(one))[1])
    submit(store, "j-1", "j-2")
    assert await asyncio.wait_for(take(feed, 1), 5) == [1]

    async def is_quiet() -> bool:
        before = len(asked)
        await asyncio.sleep(0.1)  # twenty polls
        return len(asked) == before

    await eventually(is_quiet, "the feed to stop asking after its last follower has gone")
    submit(store, "j-3")
    following = asyncio.create_task(take(feed, 3, after=1))
    await asyncio.to_thread(submit, store, "j-4")
    assert await asyncio.wait_for(following, 5) == [2, 3, 4], "events of the pause, and those after it"


async def test_a_job_is_followed_to_its_end_also_when_it_has_ended(feed: EventFeed, store: Store) -> None:
    submit(store, "j-1", "j-2")
    following = asyncio.create_task(take(feed, 100, job_id="j-1"))
    await asyncio.to_thread(jobs.admit_job, store, "j-1", NOW)
    await asyncio.to_thread(set_job_state, store, "j-1", JobState.CANCELLED, now=NOW, actor="ada")
    seqs = await asyncio.wait_for(following, 5)
    assert await asyncio.wait_for(take(feed, 100, job_id="j-1"), 5) == seqs
    # Whoever saw the last event and lost the connection must not wait for ever.
    assert await asyncio.wait_for(take(feed, 100, after=seqs[-1], job_id="j-1"), 5) == []


async def test_closing_ends_followers_and_watchers(feed: EventFeed, store: Store) -> None:
    submit(store, "j-1")
    seen: list[int] = []
    following = asyncio.create_task(_collect(feed, seen))
    with feed.watching("j-1") as news:
        await asyncio.to_thread(jobs.admit_job, store, "j-1", NOW)
        await asyncio.wait_for(news.wait(), 5)
        await eventually(lambda: seen == [1, 2], "the follower has seen both events", within_s=5)
        news.clear()
        feed.close()
        await asyncio.wait_for(news.wait(), 5)
    await asyncio.wait_for(following, 5)


async def test_a_database_that_comes_back_is_read_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(store.url.database)
    os.rename(path, f"{path}.away")
    os.mkdir(path)
    monkeypatch.setattr(feed_module, "RETRY_S", 0.01)
    last_seq = store_events.last_seq
    tries: list[Store] = []
    monkeypatch.setattr(store_events, "last_seq", lambda asked: (tries.append(asked), last_seq(asked))[1])
    feed = EventFeed(store, poll_s=0.005)
    reading = asyncio.create_task(feed.run())
    following = asyncio.create_task(take(feed, 1))
    await eventually(lambda: len(tries) >= 3, "the feed to try again and again")
    assert not following.done()
    os.rmdir(path)
    os.rename(f"{path}.away", path)
    await asyncio.to_thread(submit, store, "j-1")
    assert await asyncio.wait_for(following, 5) == [1]
    feed.close()
    await asyncio.wait_for(reading, 5)
