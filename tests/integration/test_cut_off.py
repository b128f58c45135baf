"""Hosts that are cut off end their ranks before others take over; a control plane that is away ends nobody's.

Real processes. Every connection of a host goes through a proxy that can be cut. Each rank writes the boot clock every
20 ms for as long as it lives, to a file that no process of the platform touches.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from tests.chaos.network import Network, lay, running_network
from tests.support.membership import every_host_knows_all
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

NODES = tuple(NodeSpec(name, "dgx-h100") for name in "abc")
SHORT_LEASES = {
    "GPU_PLATFORM_LEASE_TTL_S": "4",
    "GPU_PLATFORM_NODE__LEASE_INTERVAL_S": "0.5",
    # Here hosts are lost again and again, and must be back in service soon.
    "GPU_PLATFORM_REMEDIATION__FLAPPING_FIRST_MIN": "0",
}
RANK = """
import os, time
path = f"{os.environ['OUT']}-{os.environ['GPU_PLATFORM_ATTEMPT']}"
while True:
    with open(path, "a") as file:
        file.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME)}\\n")
    time.sleep(0.02)
"""
CUT = {"cut": True}

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cut_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[LocalCluster, Network]]:
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("cluster"), nodes=NODES, ui=False, schedulers=1, settings=SHORT_LEASES
    )
    cluster = LocalCluster(config)
    with running_network() as network:
        lay(network, cluster)
        async with cluster:
            await eventually(lambda: every_host_knows_all(cluster), "each host to have the list of all three")
            yield cluster, network


@pytest_asyncio.fixture(loop_scope="module")
async def client(cut_cluster: tuple[LocalCluster, Network]) -> AsyncIterator[AsyncClient]:
    cluster, _ = cut_cluster
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:

        async def all_ready() -> bool:
            return {host.state async for host in client.hosts()} == {HostState.READY}

        await eventually(all_ready, "every host to be READY", within_s=40)
        yield client
        async for job in client.list():
            if not job.state.is_terminal:
                await client.kill(job.id)
        async for job in client.list():
            await client.wait(job.id, timeout_s=40)


async def running(client: AsyncClient, out: Path, count: int = 1, fencing: Fencing | None = None) -> list[Job]:
    jobs = [
        await client.submit(
            JobSpec(
                command=["python3", "-S", "-E", "-c", RANK],
                env={"OUT": str(out / str(number))},
                gpus=ResourceRequest(gpus_per_host=8),
                fencing=fencing,
            )
        )
        for number in range(count)
    ]
    for number, job in enumerate(jobs):
        await reaches(client, job, JobState.RUNNING, 1)
        await eventually(lambda path=out / f"{number}-1": wrote(path), "the rank to write")
    return [await client.get(job.id) for job in jobs]


async def reaches(client: AsyncClient, job: Job, state: JobState, attempt: int) -> None:
    async def there() -> bool:
        found = await client.get(job.id)
        return (found.state, found.attempt) == (state, attempt)

    await eventually(there, f"{job.id} to be {state} in attempt {attempt}", within_s=40)


def wrote(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def lived(out: Path, attempt: int) -> tuple[float, float]:
    """First and last sign of life, on the boot clock."""
    marks = (out / f"0-{attempt}").read_text().split()
    return float(marks[0]), float(marks[-1])


def host_of(job: Job) -> str:
    assert job.placement is not None
    return job.placement.hosts[0]


async def goes_on_once(client: AsyncClient, job: Job, out: Path) -> None:
    """Attempt 2 runs, and began only after attempt 1 had ended."""
    await reaches(client, job, JobState.RUNNING, 2)
    await eventually(lambda: wrote(out / "0-2"), "the second attempt to write")
    assert lived(out, 1)[1] < lived(out, 2)[0], "two attempts at once"


def _only_long(*values: str) -> list[Any]:
    """Ways that only `make test-chaos` tries."""
    return [pytest.param(value, marks=pytest.mark.chaos) for value in values]


@pytest.mark.long
@pytest.mark.parametrize("ways", ["both", *_only_long("to the host", "from the host")])
async def test_a_host_cut_off_ends_its_ranks_before_the_next_attempt(
    cut_cluster: tuple[LocalCluster, Network], client: AsyncClient, tmp_path: Path, ways: str
) -> None:
    cluster, network = cut_cluster
    [job] = await running(client, tmp_path)
    links = network.of([cluster.nodes[host_of(job)].name])
    up, down = ({} if ways == "to the host" else CUT), ({} if ways == "from the host" else CUT)
    async with network.shaped(links, up=up, down=down, reset=True):
        await goes_on_once(client, job, tmp_path)


@pytest.mark.some(1)
@pytest.mark.parametrize("frozen", ["node worker", "node worker and supervisor"])
async def test_node_workers_that_are_frozen_do_not_keep_ranks_alive(
    cut_cluster: tuple[LocalCluster, Network], client: AsyncClient, tmp_path: Path, frozen: str
) -> None:
    """The supervisors of the ranks keep to the lease, and the guard of the host."""
    cluster, _ = cut_cluster
    [job] = await running(client, tmp_path)
    home = cluster.config.state_dir.resolve() / "nodes" / host_of(job)
    [claim] = home.glob(f"jobs/{job.id}/1/rank-0/claim")
    pids = [cluster.nodes[host_of(job)].pid, *([json.loads(claim.read_text())["pid"]] if "and" in frozen else [])]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        await goes_on_once(client, job, tmp_path)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.long
@pytest.mark.parametrize("away", ["both", *_only_long("service", "temporal")])
async def test_nothing_is_restarted_while_the_control_plane_is_away(
    cut_cluster: tuple[LocalCluster, Network], client: AsyncClient, tmp_path: Path, away: str
) -> None:
    """For three leases, as every host sees it; under load, which is what the machine has."""
    cluster, network = cut_cluster
    jobs = await running(client, tmp_path, count=3)
    nodes = {child.name for child in cluster.nodes.values()}
    targets = ("service", "temporal") if away == "both" else (away,)
    links = [link for link in network.links if link.source in nodes and link.target in targets]
    async with network.shaped(links, up=CUT, down=CUT, reset=True):
        until = time.monotonic() + 12
        while time.monotonic() < until:
            assert {host.state async for host in client.hosts()} == {HostState.READY}
            await asyncio.sleep(0.5)
    for job in jobs:
        found = await client.get(job.id)
        assert (found.state, found.attempt) == (JobState.RUNNING, 1), found.failure


@pytest.mark.long
async def test_relaxed_ranks_go_on_and_strict_jobs_wait_for_proof(
    cut_cluster: tuple[LocalCluster, Network], client: AsyncClient, tmp_path: Path
) -> None:
    cluster, network = cut_cluster
    (tmp_path / "relaxed").mkdir()
    (tmp_path / "strict").mkdir()
    [relaxed] = await running(client, tmp_path / "relaxed", fencing=Fencing.RELAXED)
    [strict] = await running(client, tmp_path / "strict", fencing=Fencing.STRICT)
    links = network.of([cluster.nodes[host_of(relaxed)].name])
    async with network.shaped(links, up=CUT, down=CUT, reset=True):
        await reaches(client, relaxed, JobState.RUNNING, 2)
        await eventually(lambda: wrote(tmp_path / "relaxed" / "0-2"), "the second attempt to write")
        first = lived(tmp_path / "relaxed", 1)
        await eventually(lambda: lived(tmp_path / "relaxed", 1) != first, "the first attempt to live on")
    await client.kill(relaxed.id)
    await client.wait(relaxed.id, timeout_s=40)
    links = network.of([cluster.nodes[host_of(strict)].name])
    async with network.shaped(links, up=CUT, down=CUT, reset=True):

        async def lost() -> bool:
            return (await client.host(host_of(strict))).state is HostState.LOST

        await eventually(lost, "the host to be LOST", within_s=30)
        # What comes later is placed and has run, so the leader has decided since then.
        later = await client.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=8)))
        assert (await client.wait(later.id, timeout_s=30)).state is JobState.COMPLETED
        assert (await client.get(strict.id)).attempt == 1, "nobody knows that its ranks are dead"
    await goes_on_once(client, strict, tmp_path / "strict")
