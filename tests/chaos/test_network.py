"""Links do what they are told: cut one way or both, delay, reset, and deliver once they heal."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.network import LinkName, Network, running_network

LINK = LinkName("client", "server")
CUT, OPEN = {"cut": True}, {}
SILENT_S = 0.3


@pytest.fixture
def linked() -> Iterator[tuple[Network, int]]:
    """An echo server behind a link."""
    with socket.create_server(("127.0.0.1", 0)) as listener, running_network() as network:

        def serve() -> None:
            try:
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=echo, args=(connection,), daemon=True).start()
            except OSError:  # closed at the end
                return

        threading.Thread(target=serve, daemon=True).start()
        yield network, network.add("client", "server", "127.0.0.1", listener.getsockname()[1])
        listener.shutdown(socket.SHUT_RDWR)


def echo(connection: socket.socket) -> None:
    with connection:
        try:
            while data := connection.recv(4096):
                connection.sendall(data)
        except OSError:
            return


def ask(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.sendall(b"ping")
    return client


def hears(client: socket.socket, within_s: float) -> bytes | None:
    client.settimeout(within_s)
    try:
        return client.recv(4096)
    except TimeoutError:
        return None
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize(("up", "down"), [(CUT, CUT), (CUT, OPEN), (OPEN, CUT)])
async def test_what_is_sent_into_a_cut_arrives_when_it_heals(
    linked: tuple[Network, int], up: dict[str, bool], down: dict[str, bool]
) -> None:
    network, port = linked
    with ask(port) as client:
        assert hears(client, 10) == b"ping"
        async with network.shaped([LINK], up=up, down=down):
            client.sendall(b"more")
            assert hears(client, SILENT_S) is None
            late = ask(port)
            assert hears(late, SILENT_S) is None, "a connection that is opened meanwhile is half open"
        assert hears(client, 10) == b"more"
        assert hears(late, 10) == b"ping"
        late.close()


async def test_old_connections_may_end_with_the_cut(linked: tuple[Network, int]) -> None:
    network, port = linked
    with ask(port) as client:
        assert hears(client, 10) == b"ping"
        async with network.shaped([LINK], up=CUT, down=CUT, reset=True):
            pass
        assert hears(client, 10) == b""
    with ask(port) as client:
        assert hears(client, 10) == b"ping"


async def test_a_slow_link_is_slow_in_each_direction(linked: tuple[Network, int]) -> None:
    network, port = linked
    async with network.shaped([LINK], up={"delay_s": 0.1}, down={"delay_s": 0.1}):
        began = time.monotonic()
        with ask(port) as client:
            assert hears(client, 10) == b"ping"
        assert time.monotonic() - began >= 0.2


async def test_two_faults_of_one_link_end_one_by_one(linked: tuple[Network, int]) -> None:
    network, port = linked
    with ask(port) as client:
        assert hears(client, 10) == b"ping"
        async with network.shaped([LINK], up=CUT, down=CUT):
            async with network.shaped([LINK], up={"delay_s": 0.01}, down=OPEN):
                pass
            client.sendall(b"more")
            assert hears(client, SILENT_S) is None
