"""All of Temporal's database is lost while the platform runs: nobody restarts anything of ours, and all goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client as TemporalClient

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.schedule import ScheduleRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines.pipeline import PipelineRequest
from gpu_platform.domain.states import ArrayState, JobState, PipelineState
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

pytestmark = pytest.mark.timeout(400)

PLACED_AGAIN_S = 30.0
"""What waits has a place again within this, from when Temporal answers."""


@asynccontextmanager
async def running(tmp_path: Path, namespace: str, versioned: bool) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(
        tmp_path / "state",
        nodes=(NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100")),
        ui=False,
        settings={
            "GPU_PLATFORM_LEASE_TTL_S": "30",
            "GPU_PLATFORM_TEMPORAL__NAMESPACE": namespace,
            "GPU_PLATFORM_TEMPORAL__WORKER_VERSIONING": str(versioned),
        },
    )
    cluster = LocalCluster(config)
    making = asyncio.create_task(_make(cluster, namespace))
    async with cluster:
        await making
        yield cluster


async def _make(cluster: LocalCluster, namespace: str) -> None:
    if namespace == "default":
        return

    async def made() -> bool:
        try:
            client = await TemporalClient.connect(cluster.temporal_address)
            wanted = RegisterNamespaceRequest(
                namespace=namespace, workflow_execution_retention_period=Duration(seconds=5 * 86400)
            )
            await client.workflow_service.register_namespace(wanted)
        except Exception:
            return False
        return True

    await eventually(made, "the namespace to be made", within_s=60)


@pytest.mark.some(1)
@pytest.mark.parametrize(("namespace", "versioned"), [("default", False), ("gpu", False), ("default", True)])
async def test_everything_goes_on_without_a_restart(  # noqa: C901  # one story
    tmp_path: Path, namespace: str, versioned: bool
) -> None:
    """``default`` is made by Temporal's server when it starts; ``gpu`` must be made again by us. With worker versioning
    Temporal gives no steps to a version that it does not know as the current one."""
    starts = tmp_path / "starts"

    def script(name: str) -> list[str]:
        return ["sh", "-c", f"echo {name} >> {starts}; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"]

    async with (
        running(tmp_path, namespace, versioned) as cluster,
        AsyncClient(cluster.api_url, retry_for_s=60) as client,
    ):

        def job(name: str, gpus: int) -> JobSpec:
            return JobSpec(name=name, command=script(name), gpus=ResourceRequest(gpus_per_host=gpus), grace_s=0.5)

        async def reaches(job_id: str, state: JobState, within_s: float = 40) -> None:
            async def there() -> bool:
                return (await client.get(job_id)).state is state

            await eventually(there, f"{job_id} to be {state}", within_s)

        runs = [(await client.submit(job(f"runs-{number}", 8))).id for number in range(2)]
        for job_id in runs:
            await reaches(job_id, JobState.RUNNING)
        waits = (await client.submit(job("waits", 4))).id
        await reaches(waits, JobState.QUEUED)
        array = (await client.submit_array(job("element", 1), ArraySpec(indices="0-5", at_once=2))).id
        steps = {
            "first": {"command": script("first"), "gpus": {"gpus_per_host": 1}},
            "second": {"after": ["first"], "command": script("second"), "gpus": {"gpus_per_host": 1}},
        }
        pipeline = (await client.pipelines.submit(PipelineRequest(file=json.dumps({"steps": steps}), workdir="/"))).id
        fires = await client.schedules.create(
            ScheduleRequest.model_validate({"every_s": 60, "job": {"command": ["true"], "name": "fires"}})
        )
        pids = {child.name: child.pid for child in cluster.children if child is not cluster.temporal}

        await cluster.temporal.kill()
        for end in ("", "-wal", "-shm"):
            Path(f"{cluster.config.state_dir / 'temporal.db'}{end}").unlink(missing_ok=True)
        await cluster.temporal.start()

        async def answers() -> bool:
            try:
                await TemporalClient.connect(cluster.temporal_address)
            except RuntimeError:
                return False
            return True

        await eventually(answers, "Temporal to answer")
        (tmp_path / "go").touch()
        await reaches(waits, JobState.COMPLETED, within_s=PLACED_AGAIN_S + 10)
        for job_id in runs:
            await reaches(job_id, JobState.COMPLETED, within_s=90)

        async def array_ended() -> bool:
            return (await client.array(array)).state is ArrayState.COMPLETED

        await eventually(array_ended, "the array to complete", within_s=60)

        async def pipeline_ended() -> bool:
            return (await client.pipelines.get(pipeline)).state is PipelineState.COMPLETED

        await eventually(pipeline_ended, "the pipeline to complete", within_s=60)

        async def fired() -> bool:
            return any(run.job_id for run in (await client.schedules.get(fires.id)).runs)

        await eventually(fired, "the schedule to fire", within_s=150)
        assert {child.name: child.pid for child in cluster.children if child is not cluster.temporal} == pids
