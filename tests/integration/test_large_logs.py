"""A large log streams: one request to its host, a bounded piece in memory at a time."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator

import httpx
import pytest

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.node.processes.logs import LogRead
from gpu_platform.store import Store
from tests.integration.test_api_streams import NO_TEMPORAL, Served
from tests.support.api_server import LogFiles, application, bearer, served
from tests.support.store_cluster import Cluster
from workers.node.logs import MAX_CHUNK

LOG = b"".join(b"line %7d of a log that is large\n" % number for number in range(300_000))


class CountedLogs(LogFiles):
    """``lose_at``: once so much was read, what comes before that much and a MiB is gone."""

    lose_at: int | None = None

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[int, int]] = []

    def read_log(self, key: AttemptKey, rank: int, offset: int, limit: int) -> LogRead:
        self.reads.append((offset, limit))
        if self.lose_at is not None and offset >= self.lose_at:
            self.first, self.lose_at = offset + (1 << 20), None
        return super().read_log(key, rank, offset, limit)


@pytest.fixture
async def api(sqlite_store: Store) -> AsyncIterator[Served]:
    logs = CountedLogs()
    async with logs.served() as worker_url, served(application(sqlite_store, NO_TEMPORAL)) as url:
        Cluster(sqlite_store).host("a", gpus=2, url=worker_url)
        running = Served(url, sqlite_store, logs)
        running.submitted("j-1")
        running.running("j-1")
        logs.write("j-1", 1, 0, LOG)
        yield running


async def read(api: Served) -> tuple[str, int, int]:
    """Hash, size and largest piece of what comes."""
    found, size, largest = hashlib.sha256(), 0, 0
    async with httpx.AsyncClient(headers=bearer()) as http, http.stream("GET", f"{api.url}/v1/jobs/j-1/logs") as answer:
        assert answer.status_code == 200
        async for piece in answer.aiter_raw():
            found.update(piece)
            size, largest = size + len(piece), max(largest, len(piece))
    return found.hexdigest(), size, largest


async def test_it_comes_whole_in_bounded_pieces(api: Served) -> None:
    digest, size, largest = await read(api)
    assert (digest, size) == (hashlib.sha256(LOG).hexdigest(), len(LOG))
    assert largest <= MAX_CHUNK
    assert isinstance(api.logs, CountedLogs)
    assert max(limit for _, limit in api.logs.reads) <= MAX_CHUNK
    assert len(api.logs.reads) <= len(LOG) // MAX_CHUNK + 2


async def test_what_is_removed_meanwhile_is_said_and_the_rest_follows(api: Served) -> None:
    assert isinstance(api.logs, CountedLogs)
    api.logs.lose_at = 4 << 20
    async with httpx.AsyncClient(headers=bearer()) as http:
        text = (await http.get(f"{api.url}/v1/jobs/j-1/logs")).content
    gone_from, gone_to = 4 << 20, 5 << 20
    assert text[:gone_from] == LOG[:gone_from]
    assert text[gone_from:].startswith(b"[gpu-platform: some is gone]\n")
    assert text.endswith(LOG[gone_to:])


async def test_a_client_that_leaves_stops_the_reading(api: Served) -> None:
    assert isinstance(api.logs, CountedLogs)
    api.logs.write("j-1", 1, 0, LOG * 20)
    async with httpx.AsyncClient(headers=bearer()) as http, http.stream("GET", f"{api.url}/v1/jobs/j-1/logs") as answer:
        async for _ in answer.aiter_raw():
            break
    assert len(api.logs.reads) < 20 * len(LOG) // MAX_CHUNK / 2
