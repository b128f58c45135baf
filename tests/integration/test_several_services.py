"""A client that knows two services asks the other one when the first is away, and stays with who answers."""

from __future__ import annotations

import asyncio
import json

import pytest

from gpu_platform.cli.app import ask_only
from gpu_platform.client import AsyncClient, Client
from gpu_platform.client.credentials import read_note
from gpu_platform.domain.errors import InvalidRequest, NotFound, Unavailable
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from tests.support.api_server import application, keep_token, served
from tests.support.store_cluster import NOW, Cluster, spec
from tests.support.waiting import eventually

NO_TEMPORAL = "127.0.0.1:1"
NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def store(sqlite_store: Store) -> Store:
    Cluster(sqlite_store).host("a", gpus=1)
    jobs.submit_job(sqlite_store, "j-1", spec(), actor="ada", now=NOW, idempotency_key=None)
    return sqlite_store


async def test_the_next_service_is_asked_when_one_dies(store: Store) -> None:
    async with served(application(store, NO_TEMPORAL)) as second:
        async with served(application(store, NO_TEMPORAL)) as first:
            client = AsyncClient([first, second], retry_for_s=10)
            assert (await client.get("j-1")).id == "j-1"
            assert client._connection.current == first
        async with client:
            assert (await client.get("j-1")).id == "j-1"
            assert client._connection.current == second
            with pytest.raises(NotFound):  # an answer, though no good one
                await client.get("j-0")
            assert client._connection.current == second


async def test_a_follower_goes_on_at_the_next_service(store: Store) -> None:
    kinds: list[str] = []
    async with served(application(store, NO_TEMPORAL)) as second:

        async def follow(first: str) -> None:
            async with AsyncClient([first, second]) as client:
                async for event in client.events("j-1", follow=True):
                    kinds.append(event.kind)

        async with served(application(store, NO_TEMPORAL)) as first:
            following = asyncio.create_task(follow(first))
            await eventually(lambda: "job.submitted" in kinds, "the past")
        await asyncio.to_thread(jobs.admit_job, store, "j-1", NOW)
        await eventually(lambda: "job.queued" in kinds, "what came later")
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    assert len(kinds) == len(set(kinds))


async def test_a_service_that_is_unavailable_is_passed_over(store: Store) -> None:
    """It answers 503: its database is away."""
    gone = Store("postgresql://nobody@127.0.0.1:1/nothing")
    try:
        async with (
            served(application(gone, NO_TEMPORAL)) as first,
            served(application(store, NO_TEMPORAL)) as second,
            AsyncClient([first, second], retry_for_s=20) as client,
        ):
            assert (await client.get("j-1")).id == "j-1"
            assert client._connection.current == second
    finally:
        gone.close()


async def test_clients_find_the_services_in_the_environment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(application(store, NO_TEMPORAL)) as second:
        keep_token(NOBODY)
        assert read_note(NOBODY)
        monkeypatch.setenv("GPU_PLATFORM_API_URL", NOBODY)
        monkeypatch.setenv("GPU_PLATFORM_API_URLS", json.dumps([second]))

        def ask() -> str:
            with Client() as client:
                return client.get("j-1").id

        assert await asyncio.to_thread(ask) == "j-1"
        ask_only(NOBODY)  # as --api-url does
        with pytest.raises(Unavailable, match="no answer"), Client(retry_for_s=0.1) as client:
            client.get("j-1")


async def test_the_message_names_all_services() -> None:
    async with AsyncClient([NOBODY, f"{NOBODY}1"], retry_for_s=0.1) as client:
        with pytest.raises(Unavailable, match=r"at http://127\.0\.0\.1:1 or http://127\.0\.0\.1:11"):
            await client.get("j-1")


@pytest.mark.parametrize("text", ["http://second:8700", '"http://second:8700"', "[1]"])
def test_what_is_no_list_of_addresses_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("GPU_PLATFORM_API_URLS", text)
    with pytest.raises(InvalidRequest, match="JSON list"):
        Client()


def test_requests_that_fail_together_pass_over_one_service() -> None:
    """Two of three requests would otherwise come back to the service that has just failed."""
    connection = AsyncClient(["http://a", "http://b"])._connection
    for _ in range(2):
        connection.pass_over("http://a")
    assert connection.current == "http://b"
