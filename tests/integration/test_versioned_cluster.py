"""A cluster of real processes with worker versioning: nobody has to switch anything before the first job runs."""

from __future__ import annotations

from pathlib import Path

from temporalio.client import Client

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.temporal.worker_deployment import routing
from tests.builders import ONE_GPU
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec


def token_of(cluster: LocalCluster) -> str:
    return cluster.headers["Authorization"].removeprefix("Bearer ")


async def test_the_first_job_of_a_versioned_cluster_runs(tmp_path: Path) -> None:
    settings = {"GPU_PLATFORM_TEMPORAL__WORKER_VERSIONING": "true", "GPU_PLATFORM_TEMPORAL__WORKER_BUILD_ID": "4f2c91a"}
    nodes = (NodeSpec("a", "dgx-h100"),)
    config = ClusterConfig(state_dir=tmp_path, nodes=nodes, schedulers=1, ui=False, settings=settings)
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, token=token_of(cluster)) as client:
        job = await client.submit(JobSpec(command=["true"], gpus=ONE_GPU))

        async def has_ended() -> bool:
            return (await client.get(job.id)).state is JobState.COMPLETED

        await eventually(has_ended, "the job to complete", within_s=60)
        temporal = await Client.connect(cluster.temporal_address)
        found = await routing(temporal, "gpu-platform-control")
        assert found is not None
        assert found.current_deployment_version.build_id == "4f2c91a"
