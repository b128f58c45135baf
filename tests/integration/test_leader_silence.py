"""No scheduler leads, or one leads that stands still: service, doctor, metrics and waiting jobs say so within 15 s."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.leadership import leader
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = pytest.mark.timeout(200)

SAID_WITHIN_S = 15.0
STALLS = """
import sys, threading, time
from workers.scheduler import decision_loop, housekeeping
which, path = sys.argv.pop(1), sys.argv.pop(1)
def stall():
    while __import__("os").path.exists(path):
        time.sleep(0.1)
if which == "decisions":
    decide = decision_loop.DecisionLoop._follow
    decision_loop.DecisionLoop._follow = lambda self: (stall(), decide(self))[1]
import workers.process, workers.scheduler.main
workers.process.run_process(workers.scheduler.main.main())
"""
"""A scheduler whose loop does not come round while a file is there."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(
        tmp_path / "state",
        nodes=(NodeSpec("a", "dgx-h100"),),
        ui=False,
        schedulers=1,
        settings={"GPU_PLATFORM_LEASE_TTL_S": "30"},
    )
    cluster = LocalCluster(config)
    [scheduler] = cluster.schedulers
    scheduler.argv = [sys.executable, "-c", STALLS, "decisions", str(tmp_path / "stall")]
    async with cluster:
        yield cluster


async def silent(cluster: LocalCluster, client: AsyncClient, says: str) -> None:
    """Everything that should say it says it in time."""
    began = time.monotonic()

    async def said() -> bool:
        health = await client.ready()
        return health.status == "degraded" and any(says in warning for warning in health.warnings)

    await eventually(said, f"/readyz to say {says!r}", SAID_WITHIN_S)
    print(f"{says}: {time.monotonic() - began:.1f} s")
    async with httpx.AsyncClient(base_url=cluster.api_url) as http:
        answer = await http.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (200, "degraded"), "it takes submissions"
        text = (await http.get("/metrics", headers=cluster.headers)).text
    line = next(line for line in text.splitlines() if 'leader_silent_seconds{loop="decisions"}' in line)
    assert float(line.split()[1]) >= 9
    job = await client.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
    assert any(says in warning for warning in (await client.get(job.id)).warnings), "its owner reads it"
    doctor = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "workers.doctor", env={**os.environ, **cluster.env}, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await doctor.communicate()
    lines = [line for line in output.decode().splitlines() if line.startswith("FAILED")]
    assert any("database: leader" in line and says in line for line in lines), output.decode()


async def well(client: AsyncClient) -> bool:
    return (await client.ready()).status == "ok"


@pytest.mark.long
async def test_it_is_said_and_ends(cluster: LocalCluster, tmp_path: Path) -> None:
    store = Store(cluster.database_url)
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
        await eventually(lambda: leader.current_epoch(store), "a leader")
        await eventually(lambda: well(client), "/readyz to be ok")

        (tmp_path / "stall").touch()
        waits = await client.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
        await silent(cluster, client, "has decided nothing since")
        (tmp_path / "stall").unlink()
        assert (await client.wait(waits.id, timeout_s=30)).state is JobState.COMPLETED
        await eventually(lambda: well(client), "/readyz to be ok again")

        [scheduler] = cluster.schedulers
        assert scheduler.pid is not None
        os.kill(scheduler.pid, signal.SIGSTOP)
        try:
            await silent(cluster, client, "no scheduler leads since")
        finally:
            os.kill(scheduler.pid, signal.SIGCONT)
        await eventually(lambda: well(client), "/readyz to be ok at the end")
    store.close()
