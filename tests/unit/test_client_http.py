"""How the client without asyncio sends requests: connections, proxies, streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpu_platform.client.answer import NoAnswer, ServerSentEvent
from gpu_platform.client.calls import Call
from gpu_platform.client.connection import Connection
from gpu_platform.client.http_sync import Http, Stream, _is_closed
from tests.support.waiting import eventually

STREAM = b": keep-alive\n\nid: 7\nevent: note\ndata: one\ndata: two\n\ndata:three\r\n\r\ndata: not finished"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, int]] = []
        """The target of each request, and the port from which it came."""
        self.headers: dict[str, str] = {}
        self.ends = False
        self.url = f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.client_address[1]))
        self.server.headers = dict(self.headers)
        content = STREAM if self.path.endswith("/stream") else b"{}"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = self.server.ends  # as a service that is idle: it says nothing of it before

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.fixture
def http() -> Iterator[Callable[[str], Http]]:
    made: list[Http] = []

    def make(url: str) -> Http:
        made.append(Http(Connection(url, "gpt_x", None, None, 0.0)))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_a_connection_is_used_again_and_by_one_thread_at_a_time(server: Server, http: Callable[[str], Http]) -> None:
    client = http(server.url)
    for _ in range(3):
        assert (
            client.send(server.url, Call("GET", "/a", {"state": ["x", "y"], "name": "ü b"}), "gpt_x").content == b"{}"
        )
    assert {target for target, _ in server.asked} == {"/a?state=x&state=y&name=%C3%BC+b"}
    assert len({port for _, port in server.asked}) == 1
    threads = [threading.Thread(target=client.send, args=(server.url, Call("GET", "/b"), "gpt_x")) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.asked) == 11
    assert server.headers["Authorization"] == "Bearer gpt_x"


async def test_a_connection_that_the_service_has_closed_is_not_used(
    server: Server, http: Callable[[str], Http]
) -> None:
    client = http(server.url)
    server.ends = True
    for number in range(3):
        client.send(server.url, Call("GET", "/a"), None)
        [(_, opened, _)] = client._idle
        await eventually(lambda opened=opened: _is_closed(opened), "the end of the connection")
        assert len({port for _, port in server.asked}) == number + 1


def test_where_nobody_is_nothing_was_sent(http: Callable[[str], Http]) -> None:
    with pytest.raises(NoAnswer, match="ConnectionRefusedError") as found:
        http("http://127.0.0.1:1").send("http://127.0.0.1:1", Call("GET", "/a"), None)
    assert not found.value.was_sent


def test_a_proxy_of_the_environment_gets_the_request(
    server: Server, http: Callable[[str], Http], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.url.replace("//", "//ada:secret@"))
    monkeypatch.setenv("no_proxy", "inside.example")
    client = http("http://gpu.example:8700")
    client.send("http://gpu.example:8700", Call("GET", "/v1/jobs"), None)
    assert server.asked[0][0] == "http://gpu.example:8700/v1/jobs"
    assert server.headers["Proxy-Authorization"].startswith("Basic ")
    with pytest.raises(NoAnswer):
        http("http://inside.example:8700").send("http://inside.example:8700", Call("GET", "/v1/jobs"), None)
    http(server.url).send(server.url, Call("GET", "/own"), None)  # a proxy does not reach the loopback of this machine
    assert server.asked[-1][0] == "/own"


def test_events_of_a_stream(server: Server, http: Callable[[str], Http]) -> None:
    stream = http(server.url).open(server.url, Call("GET", "/stream"), None, "6")
    assert isinstance(stream, Stream)
    with closing(stream):
        assert list(stream.events()) == [
            ServerSentEvent("note", "one\ntwo", "7"),
            ServerSentEvent("message", "three", "7"),
        ]
    assert server.headers["Last-Event-ID"] == "6"
