"""SIGKILL of processes of the platform under an array, with signed orders: no element is lost, and none runs twice.

The elements write themselves down when they start and when they end.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.jobs.array import Array, ArraySpec, OnFailure
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, GpuState, JobState
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("cluster"),
        nodes=(NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100")),
        ui=False,
        settings={"GPU_PLATFORM_LEASE_TTL_S": "30"},  # no host is lost on a busy machine
    )
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
        yield client


def writes(directory: Path, between: str) -> JobSpec:
    script = f'echo "start {{index}}" >> {directory}/log; {between}; echo "end {{index}}" >> {directory}/log'
    return JobSpec(command=["/bin/sh", "-c", script], gpus=ResourceRequest(gpus_per_host=1), grace_s=1)


def written(directory: Path) -> Counter[str]:
    log = directory / "log"
    return Counter(log.read_text().splitlines()) if log.exists() else Counter()


async def ended(client: AsyncClient, array_id: str) -> Array:
    async def over() -> Array | None:
        array = await client.array(array_id)
        return array if array.state.is_terminal else None

    array = await eventually(over, f"array {array_id} to end", within_s=120)

    async def nothing_is_taken() -> bool:
        return {gpu.state async for gpu in client.gpus()} == {GpuState.AVAILABLE}

    await eventually(nothing_is_taken, "all GPUs to be AVAILABLE")
    return array


@pytest.mark.long
@pytest.mark.parametrize("victim", ["control", "scheduler", "node", "temporal"])
async def test_sigkill_under_an_array(cluster: LocalCluster, client: AsyncClient, tmp_path: Path, victim: str) -> None:
    array = await client.submit_array(writes(tmp_path, "sleep 0.3"), ArraySpec(indices="0-59"))
    await eventually(lambda: sum(written(tmp_path).values()) > 20, "elements to run")
    children = {
        "control": cluster.controls,
        "scheduler": cluster.schedulers,
        "node": [cluster.nodes["a"]],
        "temporal": [cluster.temporal],
    }
    for child in children[victim]:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    over = await ended(client, array.id)
    assert over.state is ArrayState.COMPLETED, over.counts
    assert written(tmp_path) == Counter(f"{word} {index}" for index in range(60) for word in ("start", "end"))


@pytest.mark.long
async def test_a_range_and_then_the_rest_are_cancelled(client: AsyncClient, tmp_path: Path) -> None:
    array = await client.submit_array(writes(tmp_path, "sleep 60"), ArraySpec(indices="0-999"))
    await eventually(lambda: len(written(tmp_path)) == 16, "all GPUs to be in use")
    await client.cancel_array(array.id, elements="0-3,500-509")

    async def elsewhere() -> bool:
        return len(written(tmp_path)) == 20

    await eventually(elsewhere, "the next elements to run")
    assert (await client.get(element_id(array.id, 2))).state is JobState.CANCELLED
    assert (await client.get(element_id(array.id, 4))).state is JobState.RUNNING
    await client.cancel_array(array.id)
    over = await ended(client, array.id)
    assert (over.state, over.counts) == (ArrayState.CANCELLED, {JobState.CANCELLED: 1000})


async def test_the_first_failure_stops_what_runs_elsewhere(client: AsyncClient, tmp_path: Path) -> None:
    """Nobody asked the service to stop them: control signs it, because an element has failed."""
    spec = writes(tmp_path, "[ {index} != 9 ] || exit 3; sleep 60")
    array = await client.submit_array(spec, ArraySpec(indices="0-99", on_failure=OnFailure.STOP))
    over = await ended(client, array.id)
    assert (over.state, over.counts[JobState.FAILED]) == (ArrayState.FAILED, 1)
    assert written(tmp_path)["end 0"] == 0
