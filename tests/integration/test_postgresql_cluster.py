"""The whole platform on PostgreSQL, with real processes, and PostgreSQL killed under it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.system.paths import control_dir, node_dir
from tests.chaos.killable_postgres import Server, new_server
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

NODES = (NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100"))

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with new_server() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(server: Server, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    state_dir = tmp_path_factory.mktemp("cluster")
    config = ClusterConfig(state_dir=state_dir, nodes=NODES, ui=False, database_url=server.url)
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
        yield client


def shell(script: str, out: Path, **fields: object) -> JobSpec:
    return JobSpec.model_validate(
        {
            "command": ["/bin/sh", "-c", script],
            "env": {"OUT": str(out)},
            "gpus": {"gpus_per_host": 1},
            "grace_s": 2,
            **fields,
        }
    )


async def runs(client: AsyncClient, job: Job) -> Job:
    async def running() -> Job | None:
        current = await client.get(job.id)
        assert not current.state.is_terminal, current.failure
        return current if current.state is JobState.RUNNING else None

    return await eventually(running, f"{job.id} to run")


async def nothing_is_taken(client: AsyncClient) -> None:
    async def all_available() -> bool:
        return {gpu.state async for gpu in client.gpus()} == {GpuState.AVAILABLE}

    await eventually(all_available, "all GPUs to be AVAILABLE")


@pytest.mark.long
async def test_a_job_and_a_gang(client: AsyncClient, tmp_path: Path) -> None:
    out = tmp_path / "out"
    one = await client.submit(shell('echo one >> "$OUT"', out))
    gang = await client.submit(
        shell(
            'echo "$RANK of $WORLD_SIZE" >> "$OUT"', out, gpus=ResourceRequest(hosts=2, gpus_per_host=2), rank_per="gpu"
        )
    )
    assert gang.spec.rank_per is RankPer.GPU
    for job in (one, gang):
        ended = await client.wait(job.id, timeout_s=30)
        assert (ended.state, ended.attempt) == (JobState.COMPLETED, 1), ended.failure
    assert sorted(out.read_text().splitlines()) == ["0 of 4", "1 of 4", "2 of 4", "3 of 4", "one"]
    await nothing_is_taken(client)


async def test_cancel_while_it_runs_and_while_it_waits(client: AsyncClient, tmp_path: Path) -> None:
    whole = ResourceRequest(hosts=2, gpus_per_host=8)
    first = await runs(client, await client.submit(shell("sleep 600", tmp_path / "1", gpus=whole)))
    second = await client.submit(shell("sleep 600", tmp_path / "2", gpus=whole))

    async def waits() -> bool:
        return (await client.get(second.id)).reason is not None

    await eventually(waits, "the second job to wait")
    for job in (second, first):
        await client.cancel(job.id)
        assert (await client.wait(job.id, timeout_s=20)).state is JobState.CANCELLED
    await nothing_is_taken(client)


async def test_an_xid_moves_the_job(cluster: LocalCluster, client: AsyncClient, tmp_path: Path) -> None:
    script = 'echo "$GPU_PLATFORM_ATTEMPT" >> "$OUT"; [ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600'
    job = await runs(
        client, await client.submit(shell(script, tmp_path / "out", gpus=ResourceRequest(gpus_per_host=2)))
    )
    assert job.placement is not None
    part = job.placement.slices[0]
    inject_fault(control_dir(node_dir(cluster.config.state_dir, part.host)), part.gpu_indices[1], xid=31)
    ended = await client.wait(job.id, timeout_s=30)
    assert (ended.state, ended.attempt, ended.hardware_retries) == (JobState.COMPLETED, 2, 1)
    assert ended.placement is not None
    assert part.gpu_uuids[1] not in ended.placement.gpu_uuids
    assert (tmp_path / "out").read_text().split() == ["1", "2"]
    await nothing_is_taken(client)
    assert (await client.gpu(part.gpu_uuids[1])).reset_count == 1


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT], ids=["killed", "immediate-shutdown"])
async def test_postgresql_dies_while_jobs_run_and_wait(
    server: Server, client: AsyncClient, tmp_path: Path, number: signal.Signals
) -> None:
    script = 'echo start >> "$OUT"; sleep 2; echo end >> "$OUT"'
    outs = [tmp_path / str(index) for index in range(4)]
    jobs = [await client.submit(shell(script, out, gpus=ResourceRequest(gpus_per_host=8))) for out in outs]
    doomed = await client.submit(shell("sleep 600", tmp_path / "doomed", gpus=ResourceRequest(gpus_per_host=8)))
    failing = await client.submit(shell('echo x >> "$OUT"; exit 3', tmp_path / "failing", max_retries=1))
    for job in jobs[:2]:
        await runs(client, job)
    server.kill(number)
    cancelling = asyncio.create_task(client.cancel(doomed.id))
    submitting = asyncio.create_task(client.submit(shell('echo late >> "$OUT"', tmp_path / "late")))

    def two_ended() -> bool:
        return all(out.exists() and out.read_text().endswith("end\n") for out in outs[:2])

    await eventually(two_ended, "two ranks to end while the database is away")
    await asyncio.to_thread(server.restart)
    await cancelling
    for job in [*jobs, await submitting]:
        ended = await client.wait(job.id, timeout_s=60)
        assert (ended.state, ended.attempt) == (JobState.COMPLETED, 1), ended.failure
    assert [out.read_text().split() for out in outs] == [["start", "end"]] * 4
    assert (tmp_path / "late").read_text() == "late\n"
    assert (await client.wait(doomed.id, timeout_s=30)).state is JobState.CANCELLED
    failed = await client.wait(failing.id, timeout_s=30)
    assert failed.failure is not None
    assert (failed.state, failed.failure.kind, failed.attempt) == (JobState.FAILED, FailureKind.USER, 2)
    assert (tmp_path / "failing").read_text() == "x\nx\n"
    await nothing_is_taken(client)
