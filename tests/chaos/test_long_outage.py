"""The service, or the whole control plane, is dead for ten minutes: no job is restarted, no host is LOST."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.store import Store, events
from tests.chaos.test_random_kills import SECONDS
from tests.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

OUTAGE_S = min(600.0, SECONDS)
HOSTS = 4
RUNNING = 16
WAITING = 24
"""They need what the running ones have, so they wait through the outage."""
WRITES_ITS_LIFE = "echo began >> $OUT; while true; do sleep 0.5; echo >> $OUT; done"


@pytest.mark.chaos
@pytest.mark.timeout(300 + 2 * OUTAGE_S)
@pytest.mark.parametrize("away", ["service", "control plane"])
async def test_nothing_is_restarted_by_a_long_outage(tmp_path: Path, away: str) -> None:
    nodes = tuple(NodeSpec(f"h{number}", "dgx-h100") for number in range(HOSTS))
    cluster = LocalCluster(ClusterConfig(state_dir=tmp_path / "state", nodes=nodes, ui=False))
    async with cluster, AsyncClient(cluster.api_url, retry_for_s=120) as client:
        jobs = [await client.submit(long_job(tmp_path, number)) for number in range(RUNNING)]
        for job in jobs:
            await eventually(lambda job=job: in_state(client, job, JobState.RUNNING), f"{job.id} to run", within_s=60)
        waiting = [
            await client.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=8)))
            for _ in range(WAITING)
        ]
        hosts = {child.name for child in cluster.nodes.values()}
        dead = [child for child in cluster.children if child.name not in hosts]
        if away == "service":
            dead = [child for child in dead if child.name == "service"]
        for child in dead:
            await child.kill()
        began = time.monotonic()
        await asyncio.sleep(OUTAGE_S)
        for child in dead:
            await child.start()
        await eventually(lambda: all_ready(client), "every host to be READY", within_s=90)
        back_s = time.monotonic() - began - OUTAGE_S
        found = [await client.get(job.id) for job in jobs]
        assert {(job.state, job.attempt) for job in found} == {(JobState.RUNNING, 1)}
        assert [(tmp_path / str(number)).read_text().count("began") for number in range(RUNNING)] == [1] * RUNNING
        for job in jobs:
            await client.cancel(job.id)
        ended = [await client.wait(job.id, timeout_s=120) for job in waiting]
        assert {(job.state, job.attempt) for job in ended} == {(JobState.COMPLETED, 1)}
        store = Store(cluster.database_url)
        assert not [event for event in events.read_events(store, 0, 100_000) if event.data.get("state") == "LOST"]
        store.close()
        print(
            f"\n{away} dead for {OUTAGE_S:.0f} s: 0 of {RUNNING} restarted, 0 of {HOSTS} LOST, back in {back_s:.1f} s"
        )


def long_job(out: Path, number: int) -> JobSpec:
    command = ["/bin/sh", "-c", WRITES_ITS_LIFE]
    return JobSpec(
        command=command, env={"OUT": str(out / str(number))}, grace_s=1, gpus=ResourceRequest(gpus_per_host=2)
    )


async def in_state(client: AsyncClient, job: Job, state: JobState) -> bool:
    return (await client.get(job.id)).state is state


async def all_ready(client: AsyncClient) -> bool:
    states = [host.state async for host in client.hosts()]
    return len(states) == HOSTS and set(states) == {HostState.READY}
