"""A process that stands still (SIGSTOP): it is there, but does not answer."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from tests.support.membership import every_host_knows_all
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

FIRST_ATTEMPT_SLEEPS = 'echo "$GPU_PLATFORM_ATTEMPT $$" >> "$OUT"; [ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600'

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("cluster"),
        nodes=(NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100")),
        ui=False,
        # A host is lost more than once here, and must be back in service soon.
        settings={"GPU_PLATFORM_REMEDIATION__FLAPPING_FIRST_MIN": "0"},
    )
    async with LocalCluster(config) as cluster:
        await eventually(lambda: every_host_knows_all(cluster), "each host to have the list of both")
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
        yield client


@pytest.mark.long
@pytest.mark.parametrize("comes_back", [signal.SIGCONT, signal.SIGKILL], ids=["as it was", "with a new node worker"])
async def test_a_frozen_host_is_lost_and_its_job_runs_elsewhere(
    cluster: LocalCluster, client: AsyncClient, tmp_path: Path, comes_back: signal.Signals
) -> None:
    """Its rank runs on meanwhile, and is killed before the host gets new work; by another session, if need be."""
    job = await client.submit(
        JobSpec(
            command=["/bin/sh", "-c", FIRST_ATTEMPT_SLEEPS],
            env={"OUT": str(tmp_path / "out")},
            gpus=ResourceRequest(gpus_per_host=1),
            grace_s=1,
        )
    )

    async def runs() -> Job | None:
        current = await client.get(job.id)
        return current if current.state is JobState.RUNNING and (tmp_path / "out").exists() else None

    first = await eventually(runs, "the job to run")
    assert first.placement is not None
    host = first.placement.hosts[0]
    frozen = cluster.nodes[host].pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    try:
        ended = await client.wait(job.id, timeout_s=40)
    finally:
        os.kill(frozen, comes_back)
    assert (ended.state, ended.attempt) == (JobState.COMPLETED, 2)
    stale = int((tmp_path / "out").read_text().split()[1])

    async def back_and_clean() -> bool:
        return (await client.host(host)).state == "READY" and not Path(f"/proc/{stale}").exists()

    await eventually(back_and_clean, "the host to be back and the stale rank to be dead", within_s=30)


@pytest.mark.long
async def test_while_temporal_stands_still_submissions_get_503_and_who_insists_gets_one_job(
    cluster: LocalCluster, client: AsyncClient
) -> None:
    frozen = cluster.temporal.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    try:
        submission = asyncio.create_task(
            client.submit(JobSpec(command=["true"], name="insist", gpus=ResourceRequest(gpus_per_host=1)))
        )
        async with httpx.AsyncClient(base_url=cluster.api_url, headers=cluster.headers, timeout=30) as http:
            refused = await http.post("/v1/jobs", json={"command": ["true"], "name": "once"})
        assert refused.status_code == 503
        assert refused.json()["retryable"] is True
        assert not submission.done()
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert [found async for found in client.list(name="once")] == []
    job = await submission
    assert (await client.wait(job.id, timeout_s=60)).state is JobState.COMPLETED
    assert len([found async for found in client.list(name="insist")]) == 1
