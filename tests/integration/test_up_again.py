"""Everything is stopped and started again, as by Ctrl-C and another ``gpu-platform up``."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from tests.harness import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = pytest.mark.timeout(180)


async def test_a_job_runs_on_and_a_drained_host_stays_drained(tmp_path: Path) -> None:
    config = ClusterConfig(state_dir=tmp_path, nodes=(NodeSpec("a", "dgx-h100"),), ui=False, schedulers=1)
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url) as client:
        spec = JobSpec(command=["sleep", "600"], gpus=ResourceRequest(gpus_per_host=1), grace_s=0)
        job = await client.submit(spec)

        async def runs() -> bool:
            return (await client.get(job.id)).state is JobState.RUNNING

        await eventually(runs, "the job to run")
        await client.drain("a", reason="fans")
    told = (tmp_path / "logs" / "node-a.log").read_text()
    assert '"lease_s": 60.0, "event": "lease.restart"' in told, "the service still answered when the host stopped"
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url) as client:
        found = await client.get(job.id)
        assert (found.state, found.attempt) == (JobState.RUNNING, 1)
        assert (await client.host("a")).state is HostState.DRAINING
        await client.kill(job.id)
        await client.wait(job.id, timeout_s=30)
