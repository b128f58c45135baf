"""SIGKILL right after many submissions: what was acknowledged runs, and runs once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.states import GpuState, JobState
from tests.chaos.audit import Audit, Ledger
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec
from workers.local.supervision import ChildProcess

VICTIMS = ["service", "control", "scheduler", "temporal", "all"]
PARALLEL = 16

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def two_hosts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(_config(tmp_path_factory.mktemp("two"), 2)) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def eight_hosts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    async with LocalCluster(_config(tmp_path_factory.mktemp("eight"), 8)) as cluster:
        yield cluster


def _config(state_dir: Path, hosts: int) -> ClusterConfig:
    nodes = tuple(NodeSpec(f"dgx-{number}", "dgx-h100") for number in range(hosts))
    return ClusterConfig(state_dir=state_dir, nodes=nodes, ui=False)


@pytest.mark.long
@pytest.mark.parametrize("victim", ["all"])
async def test_thirty_jobs(two_hosts: LocalCluster, tmp_path: Path, victim: str) -> None:
    await submit_kill_and_account(two_hosts, tmp_path, victim, 30)


@pytest.mark.chaos
@pytest.mark.parametrize("victim", VICTIMS)
async def test_five_hundred_jobs(eight_hosts: LocalCluster, tmp_path: Path, victim: str) -> None:
    await submit_kill_and_account(eight_hosts, tmp_path, victim, 500)


async def submit_kill_and_account(cluster: LocalCluster, directory: Path, victim: str, count: int) -> None:
    ledger = Ledger(directory / "ledger")
    audit = Audit.of(cluster)
    name = f"batch-{victim}"
    began = time.monotonic()
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
        limit = asyncio.Semaphore(PARALLEL)

        async def submit() -> Job:
            async with limit:
                return await client.submit(ledger.spec("sleep 0.2", name=name))

        accepted = {job.id for job in await asyncio.gather(*[submit() for _ in range(count)])}
        submitted = time.monotonic()
        for child in victims(cluster, victim):
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
        unfinished = sum(not job.state.is_terminal for job in audit.jobs(accepted).values())

        for job_id in sorted(accepted):
            job = await client.wait(job_id, timeout_s=300)
            assert (job.state, job.attempt) == (JobState.COMPLETED, 1), job.failure
        ended = time.monotonic()

        async def nothing_is_taken() -> bool:
            return {gpu.state async for gpu in client.gpus()} == {GpuState.AVAILABLE}

        await eventually(nothing_is_taken, "all GPUs to be AVAILABLE")
        known = [job.id async for job in client.list(name=name)]

    await eventually(lambda: _settled(audit, accepted), "store and Temporal to agree", within_s=60)
    runs = ledger.runs()
    ran = [job_id for job_id, _, _ in runs.elements()]
    lost = accepted - set(ran)
    doubled = {job_id for job_id in ran if ran.count(job_id) > 1}
    print(
        f"\n{victim}: {count} submitted in {submitted - began:.1f} s, {unfinished} unfinished at the kill, "
        f"all ended {ended - submitted:.1f} s later; lost {len(lost)}, run twice {len(doubled)}"
    )
    assert (lost, doubled) == (set(), set())
    assert sorted(known) == sorted(accepted), "a job that nobody was told of, or none for an acknowledged one"
    assert [*ledger.repeated(), *audit.leftovers()] == []
    audit.close()


async def _settled(audit: Audit, job_ids: set[str]) -> bool:
    return not await audit.open_jobs(job_ids)


def victims(cluster: LocalCluster, name: str) -> list[ChildProcess]:
    """The processes of the control plane by that name; with several of one kind, all of them."""
    return {
        "service": [cluster.service],
        "control": cluster.controls,
        "scheduler": cluster.schedulers,
        "temporal": [cluster.temporal],
        "all": cluster.children,
    }[name]
