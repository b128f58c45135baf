"""Clients that take no answer, and requests that two servers would read as two: over REST."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.store import Store
from service.http import connections
from service.http.connections import MOST_WAITING
from service.http.costs import SHARES, Cost
from tests.security.tls_cluster import TlsCluster
from tests.support.api_server import ADMIN, application, bearer, served, sign_in
from tests.support.service_process import ServiceProcess, noticed, service_process
from tests.support.store_cluster import Cluster
from tests.support.waiting import eventually

MALLORY, ALICE = f"gpt_{'mallory1' * 5}", f"gpt_{'alice123' * 5}"
NO_TEMPORAL = "127.0.0.1:1"
_ESTABLISHED = "01"
"""A state of /proc/net/tcp (Linux, proc_net_tcp.txt)."""
MOST_GROWN_MIB = 200


def large_jobs(store: Store) -> None:
    """A page of them has 4 MB: more than the kernel keeps of a connection, which is 2.8 MB."""
    cluster = Cluster(store).host("a")
    for number in range(80):
        cluster.queued(f"j-{number:016}", namespace="evil", user="mallory", command=["x" * 100_000])


@contextmanager
def not_taking(url: str, token: str, path: str = "/v1/jobs?limit=1000") -> Iterator[socket.socket]:
    """A connection whose client asked, and reads nothing."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", httpx.URL(url).port))
        lines = (f"GET {path} HTTP/1.1", "Host: localhost", f"Authorization: Bearer {token}", "", "")
        connection.sendall("\r\n".join(lines).encode())
        yield connection


@pytest.fixture
def service(sqlite_store: Store, tmp_path: Path) -> Iterator[ServiceProcess]:
    sign_in(sqlite_store, MALLORY, "mallory", {"evil": Role.USER})
    sign_in(sqlite_store, ALICE, "alice", {"good": Role.USER, CLUSTER: Role.VIEWER})
    large_jobs(sqlite_store)
    with service_process(
        str(sqlite_store.url),
        tmp_path,
        GPU_PLATFORM_ACCESS__NAMESPACES='["evil", "good"]',
        GPU_PLATFORM_SERVICE__RATE_LIMITS__REQUESTS="null",
    ) as running:
        yield running


@pytest.mark.long
async def test_answers_that_nobody_takes_are_bounded(service: ServiceProcess) -> None:
    """By hand sixty were 420 MiB, for as long as their clients liked."""
    with noticed(service, bearer(ALICE)) as others, ExitStack() as waiting:
        for _ in range(60):
            waiting.enter_context(not_taking(service.url, MALLORY))
        await asyncio.sleep(3)
    assert others.grown_mib < MOST_GROWN_MIB


@pytest.fixture
async def url(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    monkeypatch.setattr(connections, "TAKEN_WITHIN_S", 1.0)
    large_jobs(sqlite_store)
    async with served(application(sqlite_store, NO_TEMPORAL)) as url:
        yield url


async def test_a_request_lasts_until_its_answer_was_taken_and_not_for_ever(url: str) -> None:
    async with httpx.AsyncClient(base_url=url, headers=bearer(ADMIN), timeout=20) as http:
        with ExitStack() as waiting:
            connected = [waiting.enter_context(not_taking(url, ADMIN)) for _ in range(SHARES[Cost.LIST].of_one)]

            async def is_held() -> bool:
                try:
                    await http.get("/v1/jobs?limit=1", timeout=0.3)
                except httpx.ReadTimeout:
                    return True
                return False

            await eventually(is_held, "the turns of lists to be taken")
            assert (await http.get("/v1/whoami")).status_code == 200
            assert (await http.get("/v1/jobs?limit=1")).status_code == 200, "the others were cut off"
            await eventually(lambda: all(map(_was_cut_off, connected)), "all of them to be cut off")
            for connection in connected:
                assert await asyncio.to_thread(_bytes_until_the_end, connection) < 4_000_000


def _was_cut_off(connection: socket.socket) -> bool:
    """The other end of a connection of this machine was closed, though its answer was not taken."""
    try:
        ends = f":{connection.getpeername()[1]:04X}", f":{connection.getsockname()[1]:04X}"
    except OSError:
        return True
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return not any((local[-5:], remote[-5:]) == ends and state == _ESTABLISHED for _, local, remote, state, *_ in lines)


def _bytes_until_the_end(connection: socket.socket) -> int:
    connection.settimeout(10)
    found = 0
    with suppress(ConnectionError):
        while piece := connection.recv(1 << 20):
            found += len(piece)
    return found


TOKEN = f"Authorization: Bearer {ADMIN}"
JSON = "Content-Type: application/json"
AFTER = "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
ODD: dict[str, tuple[list[str], str, int]] = {
    "two lengths": (["Content-Length: 5", "Transfer-Encoding: chunked"], "0\r\n\r\n" + AFTER, 400),
    "two lengths, the other way": (["Transfer-Encoding: chunked", "Content-Length: 5"], "0\r\n\r\n" + AFTER, 400),
    "two sizes": (["Content-Length: 5", "Content-Length: 6"], "abcdef" + AFTER, 400),
    "a size with a sign": (["Content-Length: +2"], "{}" + AFTER, 400),
    "an unknown encoding": (["Transfer-Encoding: xchunked"], "0\r\n\r\n" + AFTER, 400),
    "two encodings": (["Transfer-Encoding: gzip, chunked"], "0\r\n\r\n" + AFTER, 400),
    "a space before the colon": (["Content-Length : 2"], "{}" + AFTER, 400),
    "two hosts": (["Host: evil.example", "Content-Length: 2"], "{}" + AFTER, 400),
}


@pytest.mark.parametrize("what", ODD)
async def test_a_request_with_two_readings_is_refused_and_nothing_after_it_is_read(url: str, what: str) -> None:
    headers, body, status = ODD[what]
    lines = ("POST /v1/jobs:dry-run HTTP/1.1", "Host: localhost", TOKEN, JSON, *headers, "", body)
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    writer.write("\r\n".join(lines).encode())
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(f"HTTP/1.1 {status}".encode()), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1, "the second request would be one that a proxy has not seen"


PATHS = ("//v1/jobs", "/v1/../v1/jobs", "/v1/jobs/", "/V1/JOBS", "/healthz;/../v1/jobs", "/v1/./jobs", "/v1\\jobs")


@pytest.mark.parametrize("path", PATHS)
async def test_a_path_that_looks_like_another_is_nothing(url: str, path: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{TOKEN}\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), answer[:100]


async def test_tls_spoken_to_the_port_of_plain_http_is_refused(url: str) -> None:
    trusting: Any = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection("127.0.0.1", httpx.URL(url).port, ssl=trusting)


async def test_one_network_has_few_connections_that_ask_nothing(url: str) -> None:
    port = httpx.URL(url).port
    there = httpx.AsyncHTTPTransport(local_address="127.0.0.2")
    async with httpx.AsyncClient(base_url=url, transport=there) as elsewhere, httpx.AsyncClient(base_url=url) as here:
        assert (await here.get("/healthz")).status_code == 200
        with ExitStack() as silent:
            for _ in range(2 * MOST_WAITING):
                silent.enter_context(socket.create_connection(("127.0.0.1", port)))
            with pytest.raises(httpx.TransportError):
                async with httpx.AsyncClient(base_url=url) as new:
                    await new.get("/healthz")
            assert (await elsewhere.get("/healthz")).status_code == 200
            assert (await here.get("/healthz")).status_code == 200, "a connection that has asked goes on"

        async def is_let_in() -> bool:
            with suppress(httpx.TransportError):
                async with httpx.AsyncClient(base_url=url) as new:
                    return (await new.get("/healthz")).status_code == 200
            return False

        await eventually(is_let_in, "a new connection to be let in")


async def test_a_handshake_counts_and_has_the_time_of_a_request(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MOST_WAITING", 8)
    cluster = TlsCluster(sqlite_store, tmp_path)
    async with cluster.serving(), cluster.client(None) as known:
        assert (await known.get("/v1/whoami")).status_code == 200
        with ExitStack() as strangers:
            monkeypatch.setattr(connections, "REQUEST_TIMEOUT_S", 2.0)
            silent = [strangers.enter_context(socket.create_connection(("127.0.0.1", cluster.port))) for _ in range(16)]
            for connection in silent:
                with suppress(ConnectionError):
                    connection.send(b"\x16")  # the first byte of a handshake
            await eventually(lambda: sum(map(_was_cut_off, silent)) == 8, "those over the limit to be cut off")
            async with cluster.client(None) as new:
                with pytest.raises(httpx.TransportError):
                    await new.get("/healthz")
            assert (await known.get("/healthz")).status_code == 200, "a connection that has asked goes on"
            await eventually(lambda: all(map(_was_cut_off, silent)), "the others to be cut off, too")
        async with cluster.client(None) as new:
            assert (await new.get("/v1/whoami")).status_code == 200
    assert not connections._WAITING


async def test_a_request_that_comes_with_the_end_of_the_handshake_is_answered(
    sqlite_store: Store, tmp_path: Path
) -> None:
    cluster = TlsCluster(sqlite_store, tmp_path)
    async with cluster.serving():
        context = cluster.contexts("node/a").client()
        for _ in range(20):
            assert await asyncio.to_thread(_ask_with_the_handshake, context, cluster.port)


def _ask_with_the_handshake(context: ssl.SSLContext, port: int) -> bool:
    """Send the end of the handshake and a request in one piece."""
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, sent, server_hostname="127.0.0.1")
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        while True:
            try:
                tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                connection.sendall(sent.read())
                received.write(connection.recv(1 << 16))
        tls.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.sendall(sent.read())
        while True:
            try:
                return tls.read(1 << 16).startswith(b"HTTP/1.1 200")
            except ssl.SSLWantReadError:
                received.write(connection.recv(1 << 16))
