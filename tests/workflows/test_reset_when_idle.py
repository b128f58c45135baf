"""A reset that can wait: the job ends by itself, the GPU gets no new work, and is healed then."""

from __future__ import annotations

from pathlib import Path

from temporalio.client import Client

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus
from tests.support.harness import Platform
from tests.support.waiting import eventually


async def test_a_pending_row_remapping_waits_for_the_job_and_is_healed_after_it(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        go = tmp_path / "go"
        command = ["/bin/sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done"]
        job_id = await platform.submit(JobSpec(command=command, gpus=ResourceRequest(gpus_per_host=1)))
        job = await platform.reaches(job_id, JobState.RUNNING)
        assert job.placement is not None
        [index] = job.placement.slices[0].gpu_indices

        def state() -> GpuState:
            return gpus.get_gpu(platform.store, f"a:{index}").state

        platform.nodes["a"].strike(index, remap_pending=True)
        await eventually(lambda: state() is GpuState.RESETTING, "no new work for the GPU")
        assert platform.job(job_id).state is JobState.RUNNING
        go.touch()
        job = await platform.ends(job_id, JobState.COMPLETED)
        assert job.attempt == 1
        await eventually(lambda: state() is GpuState.AVAILABLE, "the GPU to be healed")
        assert gpus.get_gpu(platform.store, f"a:{index}").reset_count == 1
