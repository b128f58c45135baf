"""The reconciler on a real Temporal: jobs whose workflow is gone go on, or end, and give back what they held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.job import Interrupt, Job, JobInput
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.restoring import orphans
from gpu_platform.temporal.job_workflows import CleanupInput, TemporalJobWorkflows, WorkflowLife, WorkflowView
from gpu_platform.temporal.search_attributes import GPUS, NAMESPACE, USER
from tests.support.harness import Platform
from tests.support.store_cluster import set_job_state
from tests.support.waiting import eventually
from workers.scheduler.reconciler import ENDING_GRACE_S, UNKNOWN_GRACE_S, Reconciler

WHOLE = ResourceRequest(gpus_per_host=8)


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


def sleeper(script: str = "sleep 600", **fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": WHOLE, "grace_s": 0.2, **fields})


async def running(platform: Platform, spec: JobSpec) -> Job:
    return await platform.reaches(await platform.submit(spec), JobState.RUNNING)


async def two_looks(platform: Platform, apart_s: float = UNKNOWN_GRACE_S) -> None:
    now = [0.0]
    reconciler = Reconciler(platform.store, TemporalJobWorkflows(platform.client), clock=lambda: now[0])
    await reconciler.sweep()
    now[0] += apart_s
    await reconciler.sweep()


async def test_a_waiting_job_that_temporal_forgot_is_begun_again_and_completes(platform: Platform) -> None:
    blocker = await running(platform, sleeper())
    job_id = await platform.submit(sleeper("true"))
    await platform.reaches(job_id, JobState.QUEUED)
    await platform.forgotten(job_id)
    await two_looks(platform)
    await platform.signal(blocker.id, "kill")
    await platform.ends(job_id, JobState.COMPLETED)
    assert platform.kinds(job_id).count(orphans.BEGUN_AGAIN) == 1
    described = await platform.workflow(job_id).describe()
    found = {pair.key.name: pair.value for pair in described.typed_search_attributes}
    assert found["GpuPlatformGpus"] == 8
    await platform.nothing_leaked()


@pytest.mark.some(1)
@pytest.mark.parametrize("retries", [0, 1])
async def test_a_running_job_that_temporal_forgot_is_stopped_and_retried_if_it_may(
    platform: Platform, retries: int
) -> None:
    job = await running(
        platform, sleeper('[ "$GPU_PLATFORM_ATTEMPT" -gt 1 ] || sleep 600', max_hardware_retries=retries)
    )
    await platform.forgotten(job.id)
    await two_looks(platform)
    ended = await platform.ends(job.id, JobState.COMPLETED if retries else JobState.FAILED)
    assert ended.hardware_retries == retries
    if not retries:
        assert ended.failure is not None
        assert (ended.failure.kind, "lost track of this job" in ended.failure.message) == (
            FailureKind.HARDWARE,
            True,
        )
    await platform.nothing_leaked()


async def test_a_workflow_that_does_not_know_of_its_place_stops_what_runs_there(
    platform: Platform,
) -> None:
    """Temporal is restored to before the job was placed, and the job is cancelled before its workflow has looked."""
    job = await running(platform, sleeper())
    await platform.forgotten(job.id)
    await platform.client.start_workflow(
        "JobWorkflow",
        JobInput(job_id=job.id, spec=job.spec),
        id=job.id,
        task_queue="control",
        start_signal="cancel",
        start_signal_args=[Interrupt(actor="ada", reason="asked")],
    )
    await platform.ends(job.id, JobState.CANCELLED)
    await platform.nothing_leaked()


async def test_one_look_does_nothing_and_a_healthy_job_survives_every_mistake(platform: Platform) -> None:
    job = await running(platform, sleeper())
    workflows = TemporalJobWorkflows(platform.client)
    await two_looks(platform)
    key = AttemptKey(job_id=job.id, attempt=1)
    assert await workflows.clean_up(CleanupInput(key=key, message="a mistake"))
    await asyncio.wait_for(platform.workflow(f"cleanup-{job.id}-1").result(), 20)
    assert platform.job(job.id).state is JobState.RUNNING
    assert platform.nodes["a"].worker.attempts() == [key]
    await platform.signal(job.id, "kill")
    await platform.ends(job.id, JobState.CANCELLED)
    await platform.nothing_leaked()


async def test_a_job_that_asked_twice_for_its_place_does_not_look_as_if_it_waits_for_one(platform: Platform) -> None:
    """Otherwise its workflow is told to ask again every few seconds as long as it runs, until its history is full."""
    blocker = await running(platform, sleeper())
    job_id = await platform.submit(sleeper())
    look = TemporalJobWorkflows(platform.client).look

    async def asked(times: int) -> bool:
        pending = (await platform.workflow(job_id).describe()).raw_description.pending_activities
        return len(pending) == times and (await look(job_id)).waits_for_placement

    await eventually(lambda: asked(1), "the job to ask for a place")
    await platform.signal(job_id, "place_again")
    await eventually(lambda: asked(2), "the job to ask again")
    await platform.signal(blocker.id, "kill")
    await platform.reaches(job_id, JobState.RUNNING)
    assert await look(job_id) == WorkflowView(WorkflowLife.OPEN)
    await platform.signal(job_id, "kill")
    await platform.ends(job_id, JobState.CANCELLED)


async def test_an_accepted_job_is_started_whose_service_died_before_it_could(platform: Platform) -> None:
    job_id = await platform.record(sleeper("true"))
    await two_looks(platform, UNKNOWN_GRACE_S - 1)
    assert platform.job(job_id).state is JobState.PENDING
    await two_looks(platform)
    await platform.ends(job_id, JobState.COMPLETED)
    started = await platform.workflow(job_id).describe()
    found = {pair.key: pair.value for pair in started.typed_search_attributes.search_attributes}
    spec = platform.job(job_id).spec
    assert (found[NAMESPACE], found[USER], found[GPUS]) == (spec.namespace, spec.user, 8), "operators find it by these"
    assert await started.static_summary() == f"{spec.name}: 8 GPUs"


async def test_a_pending_job_whose_workflow_is_closed_fails_and_says_why(platform: Platform) -> None:
    spec = sleeper("true")
    job_id = await platform.record(spec)
    assert jobs.withdraw_submission(platform.store, job_id)
    await platform.begin(job_id, spec)
    await asyncio.wait_for(platform.workflow(job_id).result(), 20)
    jobs.submit_job(platform.store, job_id, spec, actor="ada", now=datetime.now(UTC), idempotency_key=None)
    await two_looks(platform)
    job = await platform.reaches(job_id, JobState.FAILED)
    assert job.failure is not None
    assert job.failure.message == "its workflow was completed before the job had ended"


@pytest.mark.some(1)
@pytest.mark.parametrize("workflow_is", ["terminated", "open"])
async def test_what_an_ended_job_still_holds_is_stopped_and_released(platform: Platform, workflow_is: str) -> None:
    """Its row was written by somebody else, e.g. by hand."""
    job = await running(platform, sleeper())
    set_job_state(platform.store, job.id, JobState.FAILED, now=datetime.now(UTC), actor="somebody")
    if workflow_is == "terminated":
        await platform.workflow(job.id).terminate()
    await two_looks(platform, ENDING_GRACE_S)
    await platform.nothing_leaked()
    assert platform.job(job.id).state is JobState.FAILED
