"""Jobs that stand still, idle, or run out of time, all the way: host, workflow, database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus
from gpu_platform.store.jobs.usage import usage_of_job
from tests.builders import ONE_GPU
from tests.harness import Platform

TWO_HOSTS = {"a": "dgx-h100", "b": "dgx-h100"}


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, TWO_HOSTS) as platform:
        for node in platform.nodes.values():
            for gpu in range(8):
                node.strike(gpu, utilization_percent=0)
        yield platform


def shell(script: str, **fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": ONE_GPU, "grace_s": 0.2, **fields})


async def test_a_job_that_hangs_is_restarted_and_its_gpu_is_not_blamed(platform: Platform) -> None:
    script = "if [ $GPU_PLATFORM_ATTEMPT = 1 ]; then sleep 600; fi"
    job_id = await platform.submit(shell(script, hang_limit_s=1))
    job = await platform.ends(job_id, JobState.COMPLETED)
    assert (job.attempt, job.hardware_retries, job.user_retries) == (2, 1, 0)
    kinds = platform.kinds(job_id)
    assert kinds.count("job.fault") == 1
    assert "gpu.fault" not in kinds
    assert all(gpu.fault_count == 0 for gpu in gpus.list_gpus(platform.store))
    await platform.nothing_leaked()


async def test_a_job_that_leaves_its_gpus_idle_is_warned_and_fails(platform: Platform) -> None:
    job_id = await platform.submit(shell("while :; do :; done", idle_limit_s=2))
    job = await platform.ends(job_id, JobState.FAILED)
    assert job.failure is not None
    assert job.failure.kind is FailureKind.USER
    assert "left its 1 GPU idle for 2 s (idle limit 2 s)" in job.failure.message
    assert [kind for kind in platform.kinds(job_id) if kind in ("job.warning", "job.fault")] == [
        "job.warning",
        "job.fault",
    ]
    await platform.nothing_leaked()


async def test_the_host_ends_what_is_overdue_and_the_job_fails_for_its_time_limit(platform: Platform) -> None:
    """As when the control plane is away: the workflow's own timer is far longer than the host's limit here."""
    job_id = await platform.submit(shell("sleep 600", time_limit_s=3600))
    running = await platform.reaches(job_id, JobState.RUNNING)
    assert running.placement is not None
    node = platform.nodes[running.placement.hosts[0]]
    [attempt] = node.attempts._accountant.live()
    limits = attempt.plan.limits.model_copy(update={"time_limit_s": 1})
    attempt.plan = attempt.plan.model_copy(update={"limits": limits})
    job = await platform.ends(job_id, JobState.FAILED)
    assert job.failure is not None
    assert job.failure.kind is FailureKind.TIME_LIMIT
    assert job.attempt == 1
    await platform.nothing_leaked()


async def test_what_each_attempt_used_is_known_however_it_ended(platform: Platform) -> None:
    """It ended while its launch lingered, was watched to its end, failed on one host of two, and was cancelled."""
    gang = {"gpus": {"hosts": 2, "gpus_per_host": 2}}
    scripts = {
        "true": {},
        "sleep 0.3": {},
        "sleep 0.3; exit $RANK": {**gang, "max_retries": 0},
        "sleep 600": gang,
    }
    jobs = [await platform.submit(shell(script, **fields)) for script, fields in scripts.items()]
    await platform.reaches(jobs[3], JobState.RUNNING)
    await platform.signal(jobs[3], "cancel")
    ends = (JobState.COMPLETED, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
    for job_id, state, hosts in zip(jobs, ends, (1, 1, 2, 2), strict=True):
        job = await platform.ends(job_id, state)
        [attempt] = usage_of_job(platform.store, job_id).attempts
        assert job.placement is not None
        assert [rank.host for rank in attempt.ranks] == job.placement.hosts
        assert len(attempt.ranks) == hosts
        assert attempt.unmeasured_hosts == []
        assert attempt.gpu_seconds >= sum(rank.gpu_seconds for rank in attempt.ranks) > 0
    await platform.nothing_leaked()
