"""Which ports processes of one machine get for their metrics, and what a node worker does if its own is taken."""

from __future__ import annotations

import socket

import pytest

from gpu_platform.domain.errors import CannotStart
from gpu_platform.settings import NodeSettings
from workers.local.metrics_ports import MetricsPorts
from workers.node.http import _listen


def test_up_gives_each_process_a_port_of_its_own() -> None:
    ports = MetricsPorts(fixed=True)
    given = [
        *(ports.scheduler(index) for index in range(2)),
        *(ports.control(index) for index in range(2)),
        *(ports.node(index) for index in range(4)),
        ports.gateway(),
    ]
    values = [value for one in given for value in one.values()]
    assert values == ["8702", "8712", "8703", "8713", "8701", "8711", "8721", "8731", "8704"]


def test_a_port_in_the_environment_is_that_of_the_first_process_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PLATFORM_SCHEDULER__METRICS_PORT", "9200")
    ports = MetricsPorts(fixed=True)
    assert [ports.scheduler(index) for index in range(2)] == [
        {"GPU_PLATFORM_SCHEDULER__METRICS_PORT": "9200"},
        {"GPU_PLATFORM_SCHEDULER__METRICS_PORT": "9210"},
    ]


def test_clusters_of_which_many_run_take_any_free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = MetricsPorts(fixed=False)
    assert [*ports.node(0).values(), *ports.node(1).values(), *ports.scheduler(1).values()] == ["0", "0", "0"]
    monkeypatch.setenv("GPU_PLATFORM_NODE__PORT", "0")
    assert [*MetricsPorts(fixed=True).node(3).values()] == ["0"]


def test_a_node_worker_takes_a_free_port_if_its_own_is_taken_but_not_behind_a_proxy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with _listen(NodeSettings(port=taken)) as opened:
            assert opened.getsockname()[1] not in (0, taken)
        with pytest.raises(CannotStart, match=f"cannot listen on 127.0.0.1:{taken}.*in use"):
            _listen(NodeSettings(port=taken, advertised_url="https://proxy.example/a"))
    with pytest.raises(CannotStart, match=r"cannot listen on 192\.0\.2\.1"):
        _listen(NodeSettings(address="192.0.2.1"))
