"""SIGKILL while a gang is handed over: it goes on where it was, once, and no GPU stays taken."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.system.paths import control_dir, node_dir
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

NODES = (NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100"))
ONCE = 'echo "$GPU_PLATFORM_ATTEMPT" >> "$OUT"; [ "$GPU_PLATFORM_ATTEMPT" != 1 ] || sleep 600'

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(state_dir=tmp_path_factory.mktemp("cluster"), nodes=NODES, ui=False)
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
        yield client


@pytest.mark.long
@pytest.mark.parametrize(
    ("victims", "moment"),
    [
        ("control", "RUNNING"),
        pytest.param("control", "parked", marks=pytest.mark.chaos),
        pytest.param("all", "parked", marks=pytest.mark.chaos),
    ],
)
async def test_a_gang_keeps_its_place_whatever_is_killed(
    cluster: LocalCluster, client: AsyncClient, tmp_path: Path, victims: str, moment: str
) -> None:
    job = await client.submit(
        JobSpec(
            command=["/bin/sh", "-c", ONCE],
            env={"OUT": str(tmp_path / "out")},
            gpus=ResourceRequest(gpus_per_host=4),
            keep_reservation_s=120,
            grace_s=1,
        )
    )

    async def at(attempt: int, *states: JobState) -> Job | None:
        current = await client.get(job.id)
        return current if current.attempt == attempt and current.state in states else None

    first = await eventually(lambda: at(1, JobState.RUNNING), "the job to run", 60)
    assert first.placement is not None
    part = first.placement.slices[0]
    home = node_dir(cluster.config.state_dir.resolve(), part.host)
    inject_fault(control_dir(home), part.gpu_indices[0], xid=31, fail_resets=1)
    if moment == "parked":
        await eventually(lambda: at(2, JobState.ALLOCATED), "the gang to be parked", 60)
    for child in cluster.controls if victims == "control" else cluster.children:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    ended = await client.wait(job.id, timeout_s=120)
    assert (ended.state, ended.attempt) == (JobState.COMPLETED, 2), ended.failure
    assert ended.placement is not None
    assert ended.placement.slices == first.placement.slices
    assert (tmp_path / "out").read_text().split() == ["1", "2"]

    async def nothing_is_taken() -> bool:
        return {gpu.state async for gpu in client.gpus()} == {GpuState.AVAILABLE}

    await eventually(nothing_is_taken, "all GPUs to be AVAILABLE", 60)
