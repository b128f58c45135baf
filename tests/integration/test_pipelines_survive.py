"""SIGKILL of the control worker under a pipeline, with signed orders: every step runs each of its jobs exactly once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.pipelines.pipeline import Pipeline, PipelineRequest
from gpu_platform.domain.states import PipelineState
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

STEPS = """
steps:
  split:
    command: [sh, -c, "echo split >> DIR/log; sleep 0.5; echo '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]' > $GPU_PLATFORM_OUTPUT"]
  part:
    after: split
    for_each: ${{ split.output }}
    at_once: 3
    command: [sh, -c, "echo part-${{ item }} >> DIR/log; sleep 0.3; echo ${{ item }} > $GPU_PLATFORM_OUTPUT"]
    gpus: {gpus_per_host: 1}
  join:
    after: part
    command: [sh, -c, "echo join-${{ part.output }} >> DIR/log"]
  tell:
    after: part
    when: part.output[9] == 9
    command: [sh, -c, "echo tell >> DIR/log"]
"""
PARTS = [f"part-{number}" for number in range(10)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("cluster"),
        nodes=(NodeSpec("a", "dgx-h100"),),
        ui=False,
        settings={"GPU_PLATFORM_LEASE_TTL_S": "30"},  # no host is lost on a busy machine
    )
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
        yield client


def written(directory: Path) -> Counter[str]:
    log = directory / "log"
    return Counter(log.read_text().replace(", ", ",").split()) if log.exists() else Counter()


async def ended(client: AsyncClient, pipeline_id: str) -> Pipeline:
    async def over() -> Pipeline | None:
        found = await client.pipelines.get(pipeline_id)
        return found if found.state is not PipelineState.RUNNING else None

    return await eventually(over, f"pipeline {pipeline_id} to end", within_s=150)


@pytest.mark.long
@pytest.mark.parametrize("moment", ["split", "part-0", "part-9"])
async def test_sigkill_of_the_control_worker_under_a_pipeline(
    cluster: LocalCluster, client: AsyncClient, tmp_path: Path, moment: str
) -> None:
    given = PipelineRequest(file=STEPS.replace("DIR", str(tmp_path)), workdir="/")
    pipeline = await client.pipelines.submit(given)
    await eventually(lambda: written(tmp_path)[moment], f"{moment} to run", within_s=60)
    for child in cluster.controls:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    over = await ended(client, pipeline.id)
    assert over.state is PipelineState.COMPLETED, over
    assert written(tmp_path) == Counter(["split", *PARTS, "join-[0,1,2,3,4,5,6,7,8,9]", "tell"])
