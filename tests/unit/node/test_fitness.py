"""GPUs that are not fit for the next job, or were not left by the last one."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.node.health import fitness
from gpu_platform.node.health.fitness import GpuFitness
from gpu_platform.node.system.records import boot_clock_s
from tests.support.hosts_rig import HostRig

pytestmark = pytest.mark.processes


class Watched:
    def __init__(self, directory: Path) -> None:
        self.host = HostRig(directory)
        self.faults: list[FaultReport] = []
        self.fitness = GpuFitness(
            self.host.nvml,
            self.host.inventory,
            self.host.settings.node,
            own_pids=lambda uuid: self.host.worker.attempt_pids(uuid),
            on_fault=self.faults.append,
        )
        self.host.restart([self.fitness])
        self.uuid = self.host.inventory.gpus[0].uuid


@pytest.fixture
async def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    monkeypatch.setattr(fitness, "_GPU_RELEASE_S", 0.1)
    return Watched(tmp_path)


@pytest.fixture
def stranger(watched: Watched) -> Iterator[subprocess.Popen[bytes]]:
    """A process of nobody's job that computes on GPU 0."""
    process = subprocess.Popen(["sleep", "600"])
    watched.host.nvml.add_process(watched.uuid, process.pid)
    yield process
    process.kill()
    process.wait()


async def test_a_gpu_that_a_stranger_computes_on_is_refused_until_it_leaves(
    watched: Watched, stranger: subprocess.Popen[bytes]
) -> None:
    with pytest.raises(
        PreflightFailed, match=rf"belongs to no job here computes on it: {stranger.pid} \(sleep\)"
    ) as no:
        watched.host.launch(watched.host.plan("true"))
    assert (no.value.details["kind"], no.value.details["gpu_uuid"]) == ("hardware", watched.uuid)
    assert list(watched.fitness.unfit()) == [watched.uuid]
    stranger.kill()
    stranger.wait()
    assert watched.fitness.unfit() == {}
    watched.host.launch(watched.host.plan("true"))
    await watched.host.aclose()


async def test_a_job_that_was_refused_does_not_wait_for_the_stranger_and_is_not_blamed_for_it(
    watched: Watched,
    stranger: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(fitness, "_GPU_RELEASE_S", 30)
    began = time.monotonic()
    with pytest.raises(PreflightFailed):
        watched.host.launch(watched.host.plan("true"))
    assert time.monotonic() - began < 10
    assert "gpu.not_left" not in capsys.readouterr().out
    assert list(watched.fitness.unfit()) == [watched.uuid]
    await watched.host.aclose()


async def test_beside_a_stranger_there_is_room_for_an_instance(
    watched: Watched, stranger: subprocess.Popen[bytes]
) -> None:
    share = ShareGrant(mode=ShareMode.MIG, percent=14, memory_mib=9_000, mig_profile="1g.10gb", mig_start=6, mig_size=1)
    watched.host.launch(watched.host.plan("true", shares=[share]))
    await watched.host.aclose()
    assert watched.fitness.unfit() == {}


async def test_processes_of_jobs_are_no_strangers(watched: Watched) -> None:
    first, second = (watched.host.plan("sleep", "600") for _ in "ab")
    watched.host.launch(first)
    watched.host.launch(second)
    assert watched.fitness.unfit() == {}
    await watched.host.aclose()


async def test_a_gpu_that_is_not_left_is_unfit_and_its_job_ends_all_the_same(
    watched: Watched, stranger: subprocess.Popen[bytes]
) -> None:
    plan = watched.host.plan("true")
    stranger_was_there = watched.host.nvml._by_uuid[watched.uuid].processes.copy()
    watched.host.nvml._by_uuid[watched.uuid].processes.clear()
    watched.host.launch(plan)
    watched.host.nvml._by_uuid[watched.uuid].processes |= stranger_was_there
    await watched.host.watch(plan)
    await watched.host.stop(plan.key)
    assert "sleep" in watched.fitness.unfit()[watched.uuid]
    await watched.host.aclose()


async def test_a_hot_gpu_is_refused_before_the_start(watched: Watched) -> None:
    watched.host.strike(0, temperature_c=99)
    with pytest.raises(PreflightFailed, match="99 °C is above the limit of 85"):
        watched.host.launch(watched.host.plan("true"))
    watched.host.strike(0, temperature_c=50)
    assert watched.fitness.unfit() == {}
    await watched.host.aclose()


async def test_a_gpu_that_waits_for_a_reset_gets_it_before_the_next_job(watched: Watched) -> None:
    watched.host.strike(0, remap_pending=True)
    with pytest.raises(PreflightFailed, match="a remapped memory row waits for a reset"):
        watched.host.launch(watched.host.plan("true"))
    [fault] = watched.faults
    assert (fault.action, fault.gpu_uuid, fault.between_jobs) == ("reset", watched.uuid, True)
    await watched.host.aclose()


def test_who_has_a_device_node_open_is_found(tmp_path: Path) -> None:
    device = os.stat("/dev/full").st_rdev
    with open("/dev/full") as file:
        child = subprocess.Popen(["sleep", "600"], stdin=file)
    try:
        assert fitness.holders_of(device, since=0) >= {child.pid}
        later = int((boot_clock_s() + 10) * os.sysconf("SC_CLK_TCK"))
        assert fitness.holders_of(device, since=later) == set()
    finally:
        child.kill()
        child.wait()
