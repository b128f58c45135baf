"""What ``gpu-platform up`` proposes to try can run on the machines that it has."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.fleet.spec import FleetSpec
from workers.local import up
from workers.local.cluster import DEMO_NODES, ClusterConfig, NodeSpec


@pytest.mark.parametrize(
    ("count", "proposed"),
    [
        (1, "--gpus 1 --wait -- nvidia-smi"),
        (8, "--gpus 2 --wait -- nvidia-smi"),
        (0, "--follow -- env"),
    ],
)
def test_a_real_machine_is_asked_for_no_more_gpus_than_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, proposed: str
) -> None:
    monkeypatch.setattr(up, "count_gpus", lambda: count)
    assert up.first_job(ClusterConfig(state_dir=tmp_path, nodes=(NodeSpec("local"),))) == proposed


def test_without_gpu_support_no_gpu_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPU_PLATFORM_NODE__GPUS", "false")
    monkeypatch.setattr(up, "count_gpus", lambda: 8)
    assert up.first_job(ClusterConfig(state_dir=tmp_path, nodes=(NodeSpec("local"),))) == "--follow -- env"


def test_simulated_hosts_get_two_gpus_asked_for(tmp_path: Path) -> None:
    fleet = FleetSpec.parse("rack*=dgx-h100:2")
    for config in (
        ClusterConfig(state_dir=tmp_path, nodes=DEMO_NODES),
        ClusterConfig(state_dir=tmp_path, nodes=(), fleets=(fleet,)),
    ):
        assert up.first_job(config) == "--gpus 2 --follow -- env"
