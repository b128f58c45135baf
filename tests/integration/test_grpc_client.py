"""The client over gRPC: large answers and requests, streams that go on, newer tokens, and errors that are the same."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.client import AsyncClient, Client
from gpu_platform.client.archive import pack
from gpu_platform.client.calls import Call
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.errors import AnswerTooLarge, InvalidRequest, NotFound, NotSignedIn
from gpu_platform.rpc.channels import PORT_VARIABLE
from gpu_platform.store import Store
from gpu_platform.store.access import tokens
from service.grpc import handlers
from tests.support.api_server import ADMIN, sign_in
from tests.support.grpc_server import JOB, Running, running_with
from tests.support.store_cluster import NOW, Cluster
from tests.support.waiting import eventually

URL = "http://127.0.0.1:8700"


@pytest.fixture
async def running(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    async with running_with(sqlite_store) as found:
        monkeypatch.setenv(PORT_VARIABLE, str(found.grpc.port))
        yield found


@pytest.fixture
async def client(running: Running) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(URL, token=ADMIN, transport="grpc") as client:
        yield client


# -- large messages --------------------------------------------------------------------------------

COMMAND = ["x" * 120_000]


async def test_a_page_is_larger_than_grpc_takes_by_itself(running: Running, client: AsyncClient) -> None:
    cluster = Cluster(running.store)
    for number in range(40):
        cluster.queued(f"j-{number:013d}", command=COMMAND)
    found = [job async for job in client.list(page_size=1000) if job.spec.command == COMMAND]
    assert len(found) == 40
    assert sum(len(job.model_dump_json()) for job in found) > 4 * 1024 * 1024


async def test_an_answer_beyond_the_bound_says_what_to_do(
    running: Running, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handlers, "MAX_ANSWER_BYTES", 1000)
    with pytest.raises(AnswerTooLarge, match="with a smaller limit or a narrower filter, or over REST"):
        await anext(client.list())


async def test_code_is_uploaded_in_parts_of_the_largest_size(
    running: Running, client: AsyncClient, tmp_path: Path
) -> None:
    content = os.urandom(2_500_000)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "data").write_bytes(content)
    with pack(tmp_path / "code", 10_000_000) as archive:
        sent = await client.uploads.send("default", archive)
        assert sent.complete
        assert (await client.uploads.find("default", archive.sha256)).received == archive.size_bytes


async def test_parameters_of_an_array_may_be_as_many_as_over_rest(client: AsyncClient) -> None:
    rows = [["x" * 40_000]] * 100
    array = {"indices": "0-100", "parameters": {"names": ["a"], "rows": rows}}
    body = json.dumps({"job": {"command": ["true"], "gpus": {}}, "array": array}).encode()
    with pytest.raises(InvalidRequest, match="index 100 is out of range"):
        await client.answer(Call("POST", "/v1/arrays", body=body))


# -- streams ---------------------------------------------------------------------------------------


async def test_a_stream_goes_on_where_it_broke(
    running: Running, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.grpc.server.STOP_GRACE_S", 0.1)
    seen: list[int] = []

    async def follow() -> None:
        async for event in client.events(after=0, follow=True):
            seen.append(event.seq)
            if event.kind == "host.registered" and event.host == "late":
                return

    async with asyncio.timeout(30):
        following = asyncio.create_task(follow())
        await eventually(lambda: _some(seen), "the stream to begin")
        port = running.grpc.port
        await running.grpc.end()
        Cluster(running.store).host("late")
        running.grpc._port = port
        await running.grpc.begin()
        await following
    assert seen == [*range(1, len(seen) + 1)], "nothing is missing, and nothing comes twice"


async def _some(seen: list[int]) -> bool:
    return len(seen) > 0


async def test_a_stream_that_is_left_ends_at_the_service(running: Running, client: AsyncClient) -> None:
    follow = client.events(after=0, follow=True)
    await anext(follow)
    assert len(running.grpc._application._running) == 1
    await follow.aclose()  # type: ignore[attr-defined]
    await eventually(lambda: _is_idle(running), "the request to end")


async def _is_idle(running: Running) -> bool:
    return not running.grpc._application._running


async def test_the_output_of_a_rank_is_followed(running: Running, client: AsyncClient) -> None:
    running.logs.write(JOB, 1, 0, "one\nzwölf\n".encode())
    assert (await client.logs(JOB)) == "one\nzwölf\n"
    chunk = await anext(client.follow_logs(JOB))
    assert (chunk.text, chunk.rank) == ("one\nzwölf\n", 0)


# -- tokens and errors -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [Client, AsyncClient])
async def test_a_newer_token_is_looked_for_once(
    running: Running, make: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the one method that both transports and both clients use."""
    first, second = f"gpt_{'first000' * 5}", f"gpt_{'second00' * 5}"
    info = sign_in(running.store, first, "ada", {CLUSTER: Role.VIEWER})
    sign_in(running.store, second, "ada", {CLUSTER: Role.VIEWER})
    (tmp_path / "token").write_text(first)
    monkeypatch.setenv("GPU_PLATFORM_TOKEN_FILE", str(tmp_path / "token"))
    client = make(URL, transport="grpc")

    async def whoami() -> str:
        return (await (client.who_am_i() if make is AsyncClient else asyncio.to_thread(client.who_am_i))).name

    async def first_event() -> int:
        if make is AsyncClient:
            return (await anext(client.events(after=0, follow=True))).seq
        return (await asyncio.to_thread(lambda: next(iter(client.events(after=0, follow=True))))).seq

    assert await whoami() == "ada"
    tokens.revoke_token(running.store, info.id, actor="admin", now=NOW)
    with pytest.raises(NotSignedIn):
        await whoami()
    (tmp_path / "token").write_text(second)
    assert await first_event() == 1
    assert await whoami() == "ada"
    (tmp_path / "token").write_text(first)
    client._connection.token.newest()
    (tmp_path / "token").write_text(second)
    assert await whoami() == "ada"
    closed = client.close()
    if closed is not None:
        await closed


async def test_errors_are_those_of_rest_with_their_details(client: AsyncClient) -> None:
    with pytest.raises(NotFound, match="j-0000000000nobody"):
        await client.get("j-0000000000nobody")
    with pytest.raises(InvalidRequest) as wrong:
        await client.answer(Call("GET", "/v1/jobs", {"limit": 0}))
    assert wrong.value.details["errors"][0]["field"] == "limit"
    with pytest.raises(InvalidRequest, match="over REST"):
        await client.answer(Call("GET", "/metrics"))
