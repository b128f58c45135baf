"""The power of the whole machine is cut under load: service, Temporal, databases, hosts and ranks at once.

What was acknowledged with 201 is known after it, and ends; so for cancels that were acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from tests.power_cut import PowerCut, why_not
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

SUBMITTERS = 6
FOREVER = JobSpec(name="for-ever", command=["sleep", "1000"], grace_s=0)
SHORT = JobSpec(name="short", command=["sleep", "0.3"], grace_s=0)

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(600),
    pytest.mark.skipif(why_not() is not None, reason=f"no power cuts here: {why_not()}"),
]


@pytest.mark.parametrize("seed", range(2))
async def test_what_was_acknowledged_survives_power_cuts(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    state = tmp_path / "state"
    state.mkdir()
    power = PowerCut(state, tmp_path / "disk")
    said = Acknowledged()
    for _ in range(2):
        cluster = await started(power, state)
        working = asyncio.create_task(said.work(cluster.api_url))
        await asyncio.sleep(chance.uniform(2, 6))
        await power.cut_cluster(cluster, chance)
        await asyncio.gather(working, return_exceptions=True)
    cluster = await started(power, state)
    try:
        async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
            await said.check(client)
    finally:
        await cluster.stop()


async def started(power: PowerCut, state: Path) -> LocalCluster:
    cluster = LocalCluster(ClusterConfig(state, nodes=(NodeSpec("a", "dgx-h100"),), ui=False, schedulers=1))
    await power.start_cluster(cluster)
    return cluster


def is_endless(job: Job) -> bool:
    return job.spec.name == FOREVER.name  # the service adds to the specification who has submitted it


class Acknowledged:
    def __init__(self) -> None:
        self.submitted: list[Job] = []
        self.cancelled: set[str] = set()

    async def work(self, api_url: str) -> None:
        """Submit and cancel until the power is gone."""

        async def submit(number: int) -> None:
            async with AsyncClient(api_url, retry_for_s=0) as client:
                with contextlib.suppress(PlatformError):
                    while True:
                        job = await client.submit(FOREVER if number % 3 == 0 else SHORT)
                        self.submitted.append(job)
                        if is_endless(job):
                            await client.cancel(job.id)
                            self.cancelled.add(job.id)

        await asyncio.gather(*[submit(number) for number in range(SUBMITTERS)])

    async def check(self, client: AsyncClient) -> None:
        assert len(self.submitted) >= SUBMITTERS
        told_again = [job for job in self.submitted if is_endless(job) and job.id not in self.cancelled]
        for job in told_again:
            await client.kill(job.id)  # nobody was told that its cancel was taken
        for job in self.submitted:
            ended = await client.wait(job.id, timeout_s=240)
            wanted = JobState.CANCELLED if is_endless(job) else JobState.COMPLETED
            assert ended.state is wanted, ended
        print(f"{len(self.submitted)} acknowledged, {len(self.cancelled)} of them cancelled: all known, all ended")
