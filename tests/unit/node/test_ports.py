"""Ports in the host's network: each is given once, an attempt gets a range, and no hardware is blamed for a lack."""

from __future__ import annotations

import random
import socket
import subprocess
import sys

import pytest

from gpu_platform.domain.errors import HostUnavailable, PreflightFailed
from gpu_platform.node.system import ports
from gpu_platform.node.system.ports import PORTS_OF_AN_ATTEMPT, free_port, free_ports

ASK_FOR_IT = """
import sys
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.node.system import ports

ports.PORTS = range(int(sys.argv[1]), int(sys.argv[1]) + 1)
try:
    ports.free_port()
except HostUnavailable:
    print("refused")
"""


def test_a_port_is_given_to_one_process_only_though_its_server_comes_later_and_goes() -> None:
    port = free_port()
    assert _answer_of_another_process(port) == "refused"
    for _ in range(2):  # a server that starts again finds its port free
        with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(server.getsockname()):
            assert _answer_of_another_process(port) == "refused"
        assert _answer_of_another_process(port) == "refused"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_one_process_gets_a_port_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _three_free_in_a_row()
    monkeypatch.setattr(ports, "PORTS", range(first, first + 3))
    assert {free_port() for _ in range(3)} == {first, first + 1, first + 2}
    with pytest.raises(HostUnavailable, match="no free TCP port"):
        free_port()


def test_an_attempt_gets_a_range_without_a_port_that_waits_for_its_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "randrange", lambda count: 0)
    port = free_port()
    start = port - (port - ports.PORTS.start) % PORTS_OF_AN_ATTEMPT
    monkeypatch.setattr(ports, "PORTS", range(start, start + PORTS_OF_AN_ATTEMPT))
    assert free_ports().start == start, "there is no other"
    monkeypatch.setattr(ports, "PORTS", range(start, start + 20 * PORTS_OF_AN_ATTEMPT))
    assert free_ports().start != start


def _answer_of_another_process(port: int) -> str:
    asked = subprocess.run([sys.executable, "-c", ASK_FOR_IT, str(port)], capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def _three_free_in_a_row() -> int:
    return next(
        port
        for port in range(ports.PORTS.start, ports.PORTS.stop, 3)
        if all(ports._is_free(one, reuse=False) for one in range(port, port + 3))
    )


def test_ranges_do_not_overlap() -> None:
    taken: list[int] = []
    for _ in range(200):
        found = free_ports(taken)
        assert len(found) == PORTS_OF_AN_ATTEMPT
        assert not set(found) & {port for start in taken for port in range(start, start + PORTS_OF_AN_ATTEMPT)}
        taken.append(found.start)


def test_a_port_of_an_earlier_release_keeps_its_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "PORTS", range(20_000, 20_032))
    assert free_ports([20_005]).start == 20_016


def test_a_range_with_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", range(port, port + PORTS_OF_AN_ATTEMPT))
        with pytest.raises(PreflightFailed, match="other programs hold ports") as error:
            free_ports()
    assert error.value.details["host_full"]
    assert error.value.details["kind"] == "hardware", "not the user's fault"
