"""Jobs that stand still, idle, or run out of time, all the way: host, workflow, database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.domain.texts import moment
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus
from gpu_platform.store.jobs.usage import usage_of_job
from tests.builders import ONE_GPU
from tests.support.harness import Platform

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


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def test_a_job_is_stopped_at_its_deadline_with_its_grace(platform: Platform) -> None:
    deadline = in_seconds(10)
    script = "trap 'echo saved; exit 1' TERM; while :; do sleep 0.05; done"
    job_id = await platform.submit(shell(script, deadline_at=deadline, grace_s=5, max_retries=3))
    await platform.reaches(job_id, JobState.RUNNING)
    job = await platform.ends(job_id, JobState.FAILED)
    assert job.failure is not None
    assert (job.failure.kind, job.attempt) == (FailureKind.DEADLINE, 1)
    assert job.failure.message == f"it had not ended by its deadline {moment(deadline)}"
    assert (ended := job.finished_at) is not None
    assert deadline <= ended < deadline + timedelta(seconds=15)
    assert job.placement is not None
    key = AttemptKey(job_id=job_id, attempt=1)
    assert "saved" in platform.nodes[job.placement.hosts[0]].worker.read_log(key, 0).data.decode()
    await platform.nothing_leaked()


async def test_the_host_knows_the_deadline_and_ends_the_job_itself(platform: Platform) -> None:
    """As when the control plane is away: the plan has the deadline of the job, and here an earlier one."""
    deadline = in_seconds(3600)
    job_id = await platform.submit(shell("sleep 600", deadline_at=deadline))
    running = await platform.reaches(job_id, JobState.RUNNING)
    assert running.placement is not None
    [attempt] = platform.nodes[running.placement.hosts[0]].attempts._accountant.live()
    limits = attempt.plan.limits
    assert limits.deadline_at == deadline.timestamp()
    soon = limits.model_copy(update={"deadline_at": in_seconds(0).timestamp()})
    attempt.plan = attempt.plan.model_copy(update={"limits": soon})
    job = await platform.ends(job_id, JobState.FAILED)
    assert job.failure is not None
    assert job.failure.kind is FailureKind.DEADLINE
    await platform.nothing_leaked()


@pytest.mark.long
@pytest.mark.parametrize("limit_s", [None, 3600])
async def test_a_job_that_has_not_started_in_time_ends(platform: Platform, limit_s: int | None) -> None:
    """With a time limit it ends as soon as it could not run for so long any more, without one at the deadline."""
    everything = {"gpus": {"hosts": 2, "gpus_per_host": 8}}
    blocker = await platform.submit(shell("sleep 600", **everything))
    await platform.reaches(blocker, JobState.RUNNING)
    deadline = in_seconds(3 + (limit_s or 0))
    fields = {"deadline_at": deadline, "time_limit_s": limit_s, **everything}
    job_id = await platform.submit(shell("true", **fields))
    after_blocker = await platform.submit(shell("true", after=[{"job_id": blocker}], **fields))
    later = await platform.submit(shell("true", **fields | {"deadline_at": in_seconds(7200)}))
    await platform.reaches(job_id, JobState.QUEUED)
    for one in (job_id, after_blocker):
        job = await platform.ends(one, JobState.FAILED)
        assert job.failure is not None
        assert job.failure.kind is FailureKind.DEADLINE
        assert f"it had not started in time to end by its deadline {moment(deadline)}" in job.failure.message
        assert (ended := job.finished_at) is not None
        assert timedelta(0) <= ended - (deadline - timedelta(seconds=limit_s or 0)) < timedelta(seconds=5)
    assert platform.job(later).state is JobState.QUEUED
    await platform.signal(blocker, "kill")
    await platform.ends(later, JobState.COMPLETED)
    await platform.nothing_leaked()


async def test_a_retry_that_could_not_end_in_time_does_not_start(platform: Platform) -> None:
    fields = {"time_limit_s": 600, "max_retries": 3, "retry_wait_s": 60}
    job_id = await platform.submit(shell("exit 3", deadline_at=in_seconds(604), **fields))
    job = await platform.ends(job_id, JobState.FAILED)
    assert job.failure is not None
    assert (job.failure.kind, job.user_retries) == (FailureKind.DEADLINE, 1)
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
