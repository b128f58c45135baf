"""Connections whose request never comes whole are ended, and those that are used are not."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from gpu_platform.store import Store
from service.http import connections
from tests.integration.test_api_streams import NO_TEMPORAL
from tests.support.api_server import LogFiles, application, bearer, served

LIMIT_S = 0.5
UNFINISHED = {
    "nothing": b"",
    "half a head": b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n",
    "half a body": b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: %s\r\n"
    b"Content-Type: application/json\r\nContent-Length: 900\r\n\r\n{" % bearer()["Authorization"].encode(),
    "half a second request": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/jobs HT",
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", LIMIT_S)


@pytest.mark.parametrize("sent", UNFINISHED.values(), ids=UNFINISHED.keys())
async def test_the_service_ends_them(sqlite_store: Store, sent: bytes) -> None:
    async with served(application(sqlite_store, NO_TEMPORAL)) as url:
        await all_end(url, sent, connections=50)


async def test_the_node_worker_ends_them() -> None:
    async with LogFiles().served() as url:
        await all_end(url, UNFINISHED["half a head"], connections=50)


async def test_answers_that_take_longer_go_on(sqlite_store: Store) -> None:
    """The limit is for the request, not for what is answered; nor for a connection used again."""
    async with (
        served(application(sqlite_store, NO_TEMPORAL)) as url,
        httpx.AsyncClient(base_url=url, headers=bearer()) as http,
        http.stream("GET", "/v1/events") as following,
    ):
        reading = asyncio.create_task(anext(following.aiter_raw(), None))
        for _ in range(6):
            await asyncio.sleep(LIMIT_S / 3)
            assert (await http.get("/healthz")).status_code == 200
        assert not reading.done()  # silent, and open
        reading.cancel()


async def all_end(url: str, sent: bytes, connections: int) -> None:
    address = httpx.URL(url)

    async def one() -> bytes:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(sent)
        try:
            return await asyncio.wait_for(reader.read(), 10 * LIMIT_S)  # until it is closed
        finally:
            writer.close()

    answers = await asyncio.gather(*[one() for _ in range(connections)])
    if b"HTTP" in sent and b"healthz" not in sent:
        assert {answer.split(b"\r\n")[0] for answer in answers} == {b"HTTP/1.1 408 Request Timeout"}
