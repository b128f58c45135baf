"""A job is moved for real: stopped with its grace, requeued, and running elsewhere, while the gang gets its place."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.clock import utc_now
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, state
from tests.support.harness import Platform

POLICY = {
    "defragmentation": True,
    "defragment_after_s": 0.0,
    "defragment_every_s": 0.1,
    "min_run_s": 0.0,
    "defragmentation_budget": {"restart_s": 0.0},  # else the move pays only after the gang has waited long enough
}
TWO_HOSTS = {"a": "dgx-h100", "b": "dgx-h100"}


def sleeper(gpus: int) -> JobSpec:
    return JobSpec(
        command=["/bin/sh", "-c", "sleep 600"], gpus=ResourceRequest(gpus_per_host=gpus), checkpoints=True, grace_s=1
    )


@pytest.mark.long
async def test_a_job_is_moved_so_that_a_whole_host_is_free(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, TWO_HOSTS, policy=POLICY) as platform:
        jobs = []
        for gpus in (5, 3, 5, 3):  # two fill each host
            jobs.append(await platform.submit(sleeper(gpus)))
            await platform.reaches(jobs[-1], JobState.RUNNING)
        for job_id in (jobs[0], jobs[2]):
            await platform.signal(job_id, "kill")
            await platform.ends(job_id, JobState.CANCELLED)
        gang = await platform.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=8)))
        await platform.ends(gang, JobState.COMPLETED, within_s=30)
        moved = [job_id for job_id in (jobs[1], jobs[3]) if "job.preempting" in platform.kinds(job_id)]
        assert len(moved) == 1
        assert list(state.read_moves(sqlite_store, utc_now() - timedelta(hours=1))) == moved, "for the next leader"
        job = await platform.reaches(moved[0], JobState.RUNNING)
        assert (job.attempt, job.preemptions) == (2, 1)
        for job_id in (jobs[1], jobs[3]):
            await platform.signal(job_id, "kill")
            await platform.ends(job_id, JobState.CANCELLED)
        await platform.nothing_leaked()
