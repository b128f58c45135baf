"""Temporal's database is restored to an older copy while jobs went on: nothing is launched again, nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.states import JobState
from tests.chaos.audit import Audit, Ledger
from tests.chaos.older_databases import copy_sqlite, put_back_sqlite
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(tmp_path / "state", nodes=(NodeSpec("a", "dgx-h100"),), ui=False, schedulers=1)
    async with LocalCluster(config) as cluster:
        yield cluster


async def test_jobs_that_temporal_has_as_they_were_before(cluster: LocalCluster, tmp_path: Path) -> None:
    """In the copy ``waits`` and ``short`` wait and ``on`` runs; then ``short`` completes, ``waits`` runs, and ``new``
    comes."""
    ledger, audit = Ledger(tmp_path / "ledger"), Audit.of(cluster)
    live, copy = cluster.config.state_dir / "temporal.db", tmp_path / "temporal.copy"

    def spec(name: str, gpus: int) -> object:
        script = f"while [ ! -e {tmp_path}/{name} ]; do sleep 0.05; done"
        return ledger.spec(script, name=name, gpus=ResourceRequest(gpus_per_host=gpus))

    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:

        async def submit(name: str, gpus: int) -> str:
            return (await client.submit(spec(name, gpus))).id  # type: ignore[arg-type]

        reaches = partial(_reaches, client)
        blocker, on = await submit("blocker", 6), await submit("on", 2)
        for job_id in (blocker, on):
            await reaches(job_id, JobState.RUNNING)
        short, waits = await submit("short", 2), await submit("waits", 4)
        for job_id in (short, waits):
            await reaches(job_id, JobState.QUEUED)
        await asyncio.to_thread(copy_sqlite, live, copy)
        for name in ("blocker", "short"):
            (tmp_path / name).touch()
        for job_id in (blocker, short):
            await reaches(job_id, JobState.COMPLETED)
        await reaches(waits, JobState.RUNNING)
        new = await submit("new", 2)
        await reaches(new, JobState.RUNNING)

        control_plane = [child for child in cluster.children if child not in cluster.nodes.values()]
        for child in control_plane:
            await child.kill()
        await asyncio.to_thread(put_back_sqlite, copy, live)
        for child in control_plane:
            await child.start()
        await cluster.wait_until_ready()
        for name in ("on", "waits", "new"):
            (tmp_path / name).touch()
        for job_id in (on, waits, new):
            await reaches(job_id, JobState.COMPLETED, within_s=120)

        async def settled() -> bool:
            return not await audit.open_jobs({blocker, on, short, waits, new})

        await eventually(settled, "every workflow to be closed as its job", within_s=120)
    runs = ledger.runs()
    assert all(count == 1 for count in runs.values()), runs
    assert {key for key in runs if key[0] in (blocker, short)} == {(blocker, 1, 0), (short, 1, 0)}
    assert audit.leftovers() == []
    audit.close()


async def _reaches(client: AsyncClient, job_id: str, state: JobState, within_s: float = 30) -> Job:
    async def there() -> Job | None:
        job = await client.get(job_id)
        return job if job.state is state else None

    return await eventually(there, f"{job_id} to be {state}", within_s)
