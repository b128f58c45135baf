"""The change feed: in order, complete, cheap to ask."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.store import Store, events
from tests.support.store_cluster import NOW, Cluster


def test_events_come_in_pages(store: Store) -> None:
    assert (events.last_seq(store), events.read_events(store, 0)) == (0, [])
    with store.write() as session:
        for number in range(5):
            events.append_event(session, "job.test", "test", NOW, job_id=f"j{number % 2}", data={"number": number})
    first = events.read_events(store, 0, limit=2)
    rest = events.read_events(store, first[-1].seq)
    assert [event.data["number"] for event in first + rest] == [0, 1, 2, 3, 4]
    assert events.last_seq(store) == rest[-1].seq
    assert [event.data["number"] for event in events.read_events(store, 0, job_id="j1")] == [1, 3]


def test_a_rolled_back_transaction_leaves_no_event(store: Store) -> None:
    with pytest.raises(RuntimeError), store.write() as session:  # noqa: PT012
        events.append_event(session, "job.test", "test", NOW)
        raise RuntimeError
    assert events.last_seq(store) == 0


def test_the_token_changes_with_every_commit_of_others_and_only_then(store: Store, store_url: str) -> None:
    other = Store(store_url)
    token = events.change_token(store)
    assert events.change_token(store) == token
    for number in range(3):
        Cluster(other).host(f"h{number}", gpus=1)
        changed = events.change_token(store)
        assert changed != token
        token = changed
        assert events.change_token(store) == token
    Cluster(store).host("own", gpus=1)
    assert events.change_token(store) != token
    other.close()


def test_a_reader_that_follows_misses_nothing(store: Store, store_url: str) -> None:
    """Sequence numbers become visible in order, also when transactions overlap."""
    writers, per_writer = 6, 40
    done = threading.Event()
    seen: list[int] = []

    def follow() -> None:
        last = 0
        while True:
            finished = done.is_set()
            batch = events.read_events(store, last, limit=7)
            seen.extend(event.seq for event in batch)
            last = batch[-1].seq if batch else last
            if finished and not batch:
                return

    def write(writer: int) -> None:
        for number in range(per_writer):
            with store.write() as session:
                for _ in range(1 + number % 3):
                    events.append_event(session, "job.test", f"writer-{writer}", NOW)

    reader = threading.Thread(target=follow)
    reader.start()
    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    done.set()
    reader.join()
    written = [event.seq for event in events.read_events(store, 0)]
    assert len(written) == sum(1 + number % 3 for number in range(per_writer)) * writers
    assert seen == written


def test_text_that_a_database_cannot_store_is_an_invalid_request(store: Store) -> None:
    if store.dialect == "sqlite":
        pytest.skip("SQLite stores every text")
    with pytest.raises(InvalidRequest, match="cannot store"), store.write() as session:
        events.append_event(session, "job.test", "NUL \0", NOW)
