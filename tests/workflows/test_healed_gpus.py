"""A job goes back to GPUs that were healed, as soon as they are; nothing else must come free for that."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.jobs.attempt import FaultReport
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events
from tests.support.harness import Platform
from tests.support.waiting import eventually
from workflows import policies

ONCE = '[ "$GPU_PLATFORM_ATTEMPT" != 1 ] || sleep 600'
ALL = ResourceRequest(gpus_per_host=8)


async def test_a_job_starts_again_on_the_only_host_as_soon_as_its_gpu_is_healed(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        job_id = await platform.submit(JobSpec(command=["/bin/sh", "-c", ONCE], gpus=ALL, grace_s=1))
        await platform.reaches(job_id, JobState.RUNNING)
        platform.nodes["a"].strike(3, xid=31)
        job = await platform.ends(job_id, JobState.COMPLETED)
        assert (job.attempt, job.hardware_retries) == (2, 1)
        happened = [e for e in events.read_events(platform.store, 0, 10_000) if e.kind in ("gpu.state", "job.running")]
        healed = next(e.at for e in happened if e.kind == "gpu.state" and e.data["state"] == "AVAILABLE")
        again = [e.at for e in happened if e.kind == "job.running"][-1]
        assert again - healed < policies.EXCLUSION_PATIENCE


@pytest.mark.long
async def test_a_job_that_waits_for_a_reset_says_so_and_starts_when_it_is_done(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        job_id = await platform.submit(JobSpec(command=["/bin/sh", "-c", ONCE], gpus=ALL, grace_s=1))
        await platform.reaches(job_id, JobState.RUNNING)

        def waits_for_the_reset() -> bool:
            reason = platform.job(job_id).reason
            return reason is not None and "(a:3) is being reset" in reason.next_step

        with platform.nodes["a"].held_resets():
            platform.nodes["a"].strike(3, xid=31)
            await eventually(waits_for_the_reset, "the job to say that it waits for the reset")
        job = await platform.ends(job_id, JobState.COMPLETED)
        assert job.attempt == 2


@pytest.mark.long
async def test_after_a_hang_the_only_host_is_taken_again(temporal: Client, sqlite_store: Store, tmp_path: Path) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        job_id = await platform.submit(JobSpec(command=["/bin/sh", "-c", ONCE], gpus=ALL, grace_s=1))
        job = await platform.reaches(job_id, JobState.RUNNING)
        assert job.placement is not None
        hang = FaultReport(
            fault_id="hang-1",
            host="a",
            gpu_uuid=job.placement.gpu_uuids[0],
            gpu_index=0,
            xid=None,
            action="retry_job",
            message="it hangs",
            at_ms=time.time_ns() // 1_000_000,
            attempt=platform.nodes["a"].worker.attempts()[0],
        )
        platform.nodes["a"].faults.report(hang)
        job = await platform.ends(job_id, JobState.COMPLETED, within_s=10)
        assert (job.attempt, job.hardware_retries) == (2, 1)
