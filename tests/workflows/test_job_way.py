"""A job's whole way on a real Temporal server, a real database and real processes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError

import activities.arrays
import activities.reservation
from gpu_platform.cli.show.job_rows import retry_text
from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, GpuState, HostState, JobState
from gpu_platform.store import Store
from gpu_platform.store.events import read_events
from gpu_platform.store.hosts import gpus, hosts
from gpu_platform.store.jobs import queue
from tests.builders import ONE_GPU
from tests.support.harness import Platform
from tests.support.waiting import eventually
from workflows.job import JobWorkflow

TWO_HOSTS = {"a": "dgx-h100", "b": "dgx-h100"}


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, TWO_HOSTS) as platform:
        yield platform


def shell(script: str, **fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": ONE_GPU, "grace_s": 5, **fields})


def log_of(platform: Platform, job_id: str, attempt: int, rank: int, host: str) -> str:
    return platform.nodes[host].worker.read_log(AttemptKey(job_id=job_id, attempt=attempt), rank).data.decode()


async def test_a_job_runs_to_its_end(platform: Platform) -> None:
    job_id = await platform.submit(shell("echo hello from $RANK of $WORLD_SIZE"))
    job = await platform.ends(job_id, JobState.COMPLETED)
    assert (job.exit_code, job.attempt, job.user_retries) == (0, 1, 0)
    # Until the leader leads, the job may ask twice.
    assert list(dict.fromkeys(platform.kinds(job_id))) == [
        "job.submitted",
        "job.queued",
        "queue.added",
        "queue.removed",
        "job.placed",
        "gang.reserved",
        "job.starting",
        "job.running",
        "gang.released",
        "job.completed",
    ]
    assert job.placement is not None
    assert "hello from 0 of 1" in log_of(platform, job_id, 1, 0, job.placement.hosts[0])
    await platform.nothing_leaked()


async def test_a_gang_gets_one_rendezvous_and_all_its_ranks(platform: Platform) -> None:
    spec = shell(
        "echo $RANK $LOCAL_RANK $NODE_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT"
        " $CUDA_VISIBLE_DEVICES",
        gpus=ResourceRequest(hosts=2, gpus_per_host=2),
        rank_per=RankPer.GPU,
    )
    job_id = await platform.submit(spec)
    job = await platform.ends(job_id, JobState.COMPLETED)
    assert job.placement is not None
    assert sorted(job.placement.hosts) == ["a", "b"]
    lines = [log_of(platform, job_id, 1, rank, job.placement.hosts[rank // 2]).split() for rank in range(4)]
    assert [line[:5] for line in lines] == [
        ["0", "0", "0", "4", "2"],
        ["1", "1", "0", "4", "2"],
        ["2", "0", "1", "4", "2"],
        ["3", "1", "1", "4", "2"],
    ]
    assert len({line[5] for line in lines}) == 1
    assert all(len(line[6].split(",")) == 2 for line in lines)
    await platform.nothing_leaked()


async def test_a_users_failure_is_retried_as_often_as_asked_and_no_more(platform: Platform) -> None:
    job_id = await platform.submit(shell("exit 3", max_retries=2))
    job = await platform.ends(job_id, JobState.FAILED)
    assert (job.attempt, job.user_retries, job.hardware_retries, job.exit_code) == (3, 2, 0, 3)
    assert job.failure is not None
    assert job.failure.kind is FailureKind.USER
    assert "; all 2 retries are used" in job.failure.message
    with pytest.raises(WorkflowFailureError):
        await platform.workflow(job_id).result()
    await platform.nothing_leaked()


async def test_a_job_begins_when_it_was_asked_to(platform: Platform) -> None:
    begin = datetime.now(UTC) + timedelta(seconds=4)
    job_id = await platform.submit(shell("true", begin_at=begin))
    cancelled = await platform.submit(shell("true", begin_at=begin + timedelta(days=2000)))
    waiting = await eventually(lambda: (job := platform.job(job_id)).state is JobState.QUEUED and job, "admitted")
    assert waiting.queued_at == waiting.retry_at == begin, "its place in the queue counts from then on"
    assert queue.queued_without_row(platform.store, begin) == [], "nobody has to ask for it"
    await platform.workflow(cancelled).signal(JobWorkflow.cancel, Interrupt(actor="anna", reason="not needed"))
    await platform.ends(cancelled, JobState.CANCELLED)
    await platform.ends(job_id, JobState.COMPLETED)
    placed = [event.at for event in read_events(platform.store, 0, job_id=job_id) if event.kind == "job.placed"]
    assert len(placed) == 1
    assert placed[0] >= begin
    await platform.nothing_leaked()


async def test_a_program_that_crashes_is_tried_again_ever_later(platform: Platform) -> None:
    job_id = await platform.submit(shell("exit 3", max_retries=2))
    waiting = await eventually(lambda: (job := platform.job(job_id)).retry_at and job, "the first wait")
    told = retry_text(waiting.model_dump(mode="json"), now=waiting.retry_at - timedelta(seconds=0.5))
    assert told == "retry 1 of 2 in 1s, after exit code 3"
    assert queue.queued_without_row(platform.store, waiting.retry_at) == [], "nobody has to ask for it again"
    ended = await platform.ends(job_id, JobState.FAILED)
    assert ended.retry_at is None
    story = read_events(platform.store, 0, job_id=job_id)
    failed = [event.at for event in story if event.kind == "job.retrying"]
    placed = [event.at for event in story if event.kind == "job.placed"]
    waits = [(again - since).total_seconds() for since, again in zip(failed, placed[1:], strict=True)]
    assert waits[0] >= 0.75, waits
    assert waits[1] >= 1.5, waits


@pytest.mark.long
async def test_a_cancel_ends_the_wait_for_a_retry(platform: Platform) -> None:
    job_id = await platform.submit(shell("exit 3", max_retries=100))
    await eventually(lambda: platform.job(job_id).user_retries == 3, "a wait of three seconds at least")
    await platform.signal(job_id, "cancel")
    began = time.monotonic()
    await platform.ends(job_id, JobState.CANCELLED)
    assert time.monotonic() - began < 2.5
    await platform.nothing_leaked()


@pytest.mark.some(1)
@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"command": ["/no/such/program"]}, "/no/such/program"),
        ({"command": ["/etc/passwd"]}, "/etc/passwd"),
        ({"command": ["true"], "workdir": "/no/such/place"}, "/no/such/place"),
    ],
)
async def test_what_cannot_be_started_fails_with_its_reason(
    platform: Platform, fields: dict[str, object], says: str
) -> None:
    job_id = await platform.submit(JobSpec.model_validate(fields))
    job = await platform.ends(job_id, JobState.FAILED)
    assert job.failure is not None
    assert job.failure.kind is FailureKind.USER
    assert says in job.failure.message
    assert "Traceback" not in job.failure.message
    await platform.nothing_leaked()


async def test_an_xid_moves_the_job_and_heals_the_gpu(platform: Platform) -> None:
    spec = shell(
        'if [ -n "$GPU_PLATFORM_RESUME_FROM" ]; then cat "$GPU_PLATFORM_RESUME_FROM/state"; exit 0; fi;'
        'echo half > "$GPU_PLATFORM_CHECKPOINT_DIR/state"; touch "$GPU_PLATFORM_CHECKPOINT_DIR/COMPLETE"; sleep 60',
        gpus=ResourceRequest(gpus_per_host=2),
    )
    job_id = await platform.submit(spec)
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    part = job.placement.slices[0]
    checkpoint = platform.state_dir / "checkpoints" / job_id / "1" / "COMPLETE"
    await eventually(checkpoint.exists, "the checkpoint to be written")
    platform.nodes[part.host].strike(part.gpu_indices[0], xid=31)
    struck = part.gpu_uuids[0]

    job = await platform.ends(job_id, JobState.COMPLETED)
    assert (job.attempt, job.hardware_retries, job.user_retries) == (2, 1, 0)
    assert job.placement is not None
    assert struck not in job.placement.gpu_uuids
    assert "half" in log_of(platform, job_id, 2, 0, job.placement.hosts[0])
    gpu = await eventually(
        lambda: (g := gpus.get_gpu(platform.store, struck)).state is GpuState.AVAILABLE and g, "the GPU to be healed"
    )
    assert (gpu.fault_count, gpu.reset_count) == (1, 1)
    await platform.nothing_leaked()


@pytest.mark.long
async def test_a_gpu_that_does_not_heal_goes_offline(platform: Platform) -> None:
    job_id = await platform.submit(shell("sleep 60", gpus=ResourceRequest(gpus_per_host=1)))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    part = job.placement.slices[0]
    platform.nodes[part.host].strike(part.gpu_indices[0], xid=31, fail_resets=10)
    await eventually(
        lambda: gpus.get_gpu(platform.store, part.gpu_uuids[0]).state is GpuState.OFFLINE, "the GPU to be OFFLINE"
    )
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.attempt == 2
    await platform.signal(job_id, "kill")
    await platform.ends(job_id, JobState.CANCELLED)
    await platform.nothing_leaked()


async def test_a_preempted_job_gets_its_grace_and_comes_back(platform: Platform) -> None:
    spec = shell(
        'if [ "$GPU_PLATFORM_ATTEMPT" = 2 ]; then exit 0; fi; trap "echo saved; exit 0" TERM; echo ready;'
        "while :; do sleep 0.05; done"
    )
    job_id = await platform.submit(spec)
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    host = job.placement.hosts[0]
    await eventually(lambda: "ready" in log_of(platform, job_id, 1, 0, host), "the rank to be ready")
    await platform.signal(job_id, "preempt")
    job = await platform.ends(job_id, JobState.COMPLETED)
    assert (job.attempt, job.preemptions, job.user_retries, job.hardware_retries) == (2, 1, 0, 0)
    assert "saved" in log_of(platform, job_id, 1, 0, host)
    [preempted] = platform.events(job_id, "job.preempted")
    assert (preempted.actor, preempted.data) == ("test", {"verb": "preempt", "reason": "asked"})
    assert str(job.stopped_by) == "preempted by test: asked"
    await platform.nothing_leaked()


@pytest.mark.long
async def test_a_job_ends_at_its_time_limit(platform: Platform) -> None:
    job_id = await platform.submit(shell("sleep 60", time_limit_s=1))
    job = await platform.ends(job_id, JobState.FAILED)
    assert job.failure is not None
    assert job.failure.kind is FailureKind.TIME_LIMIT
    await platform.nothing_leaked()


async def test_a_kill_cuts_the_grace_of_a_cancel_short(platform: Platform) -> None:
    script = "trap 'echo told' TERM; echo ready; while :; do sleep 0.1; done"
    job_id = await platform.submit(shell(script, grace_s=3600))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    host = job.placement.hosts[0]
    await eventually(lambda: "ready" in log_of(platform, job_id, 1, 0, host), "the rank to be ready")
    await platform.signal(job_id, "cancel")
    await eventually(lambda: "told" in log_of(platform, job_id, 1, 0, host), "the grace to begin")
    await platform.signal(job_id, "kill")
    await platform.ends(job_id, JobState.CANCELLED)
    await platform.nothing_leaked()


@pytest.mark.some(1)
@pytest.mark.parametrize(("verb", "done"), [("cancel", "cancelled"), ("kill", "killed")])
async def test_who_stopped_a_job_and_why_is_kept(platform: Platform, verb: str, done: str) -> None:
    job_id = await platform.submit(shell("exec sleep 60"))
    await platform.reaches(job_id, JobState.RUNNING)
    await platform.signal(job_id, verb)
    job = await platform.ends(job_id, JobState.CANCELLED)
    assert str(job.stopped_by) == f"{done} by test: asked"
    [ended] = platform.events(job_id, "job.cancelled")
    assert ended.data.pop("ran_s") >= 0
    assert (ended.actor, ended.data) == ("test", {"verb": verb, "reason": "asked"})


@pytest.mark.long
async def test_a_lost_hosts_job_runs_elsewhere_and_its_stale_rank_dies(platform: Platform) -> None:
    job_id = await platform.submit(shell('[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600'))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    lost = job.placement.hosts[0]
    await platform.nodes[lost].lose()
    job = await platform.ends(job_id, JobState.COMPLETED, within_s=30)
    assert job.attempt == 2
    assert job.placement is not None
    assert job.placement.hosts != [lost]
    for _ in range(2):  # the first answer names the stale attempt, the second takes the host back
        await platform.nodes[lost].report()
    assert hosts.get_host(platform.store, lost, job.created_at).state is HostState.READY
    await platform.nothing_leaked()


@pytest.mark.long
async def test_a_terminated_workflow_gives_everything_back(platform: Platform) -> None:
    job_id = await platform.submit(shell("sleep 600"))
    await platform.reaches(job_id, JobState.RUNNING)
    await platform.workflow(job_id).terminate("an operator's mistake")
    job = await platform.reaches(job_id, JobState.FAILED, within_s=30)
    assert job.failure is not None
    assert "terminated" in job.failure.message
    await platform.nothing_leaked()


async def test_cancelling_in_temporals_ui_is_a_cancel(platform: Platform) -> None:
    job_id = await platform.submit(shell("sleep 600"))
    await platform.reaches(job_id, JobState.RUNNING)
    await platform.workflow(job_id).cancel()
    await platform.ends(job_id, JobState.CANCELLED)
    described = await platform.workflow(job_id).describe()
    assert described.status is WorkflowExecutionStatus.CANCELED
    await platform.nothing_leaked()


@pytest.mark.long
async def test_operators_find_a_job_by_its_search_attributes(platform: Platform) -> None:
    job_id = await platform.submit(shell("true", user="ada", gpus=ResourceRequest(gpus_per_host=2)))
    await platform.ends(job_id, JobState.COMPLETED)
    query = "GpuPlatformUser='ada' AND GpuPlatformState='COMPLETED' AND GpuPlatformGpus=2"

    async def found() -> list[str]:
        return [execution.id async for execution in platform.client.list_workflows(query)]

    assert await eventually(found, "the visibility store to have it") == [job_id]
    status = await platform.workflow(job_id).query("status")
    assert json.loads(json.dumps(status))["state"] == "COMPLETED"


@pytest.mark.long
async def test_a_worker_that_evicts_running_jobs_from_its_cache_goes_on(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    """Eviction cancels a workflow's tasks; one that took that for a user's cancel would never let go."""
    async with Platform.start(temporal, sqlite_store, tmp_path, TWO_HOSTS, cached=2) as platform:
        job_ids = [await platform.submit(shell("sleep 600", grace_s=1)) for _ in range(4)]
        for job_id in job_ids:
            await platform.reaches(job_id, JobState.RUNNING)
        await asyncio.gather(*[platform.signal(job_id, "cancel") for job_id in job_ids])
        for job_id in job_ids:
            await platform.ends(job_id, JobState.CANCELLED)
        await platform.nothing_leaked()


@pytest.mark.some(1)
@pytest.mark.parametrize("ahead", [timedelta(hours=1), timedelta(hours=-1)], ids=["ahead", "behind"])
async def test_a_wait_before_a_retry_is_as_long_as_it_should_be_whatever_a_control_workers_clock_says(
    platform: Platform, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    """It was an hour, for the jobs and the elements of arrays that failed while the clock was an hour ahead."""
    with monkeypatch.context() as wrong:
        for module in (activities.reservation, activities.arrays):
            wrong.setattr(module, "utc_now", lambda: datetime.now(UTC) + ahead)
        job_id = await platform.submit(shell("exit 3", max_retries=1, retry_wait_s=2))
        array_id = await platform.submit_array(shell("exit 3", max_retries=1, retry_wait_s=2), "0")
        for one in (job_id, element_id(array_id, 0)):
            await eventually(lambda one=one: platform.job(one).retry_at, "the wait")
    began = time.monotonic()
    await platform.ends(job_id, JobState.FAILED, within_s=20)
    assert time.monotonic() - began > 1.0
    await platform.array_ends(array_id, ArrayState.FAILED)
