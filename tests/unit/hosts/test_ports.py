"""Ports in the host's network: a range for each attempt, and nobody's hardware is blamed when there are none."""

from __future__ import annotations

import socket

import pytest

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.hosts.system import ports
from gpu_platform.hosts.system.ports import PORTS_OF_AN_ATTEMPT, free_ports


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
