"""What somebody does to a workflow in Temporal itself: ``temporal workflow cancel`` and ``temporal workflow reset``."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import RequestCancelWorkflowExecutionRequest, ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionStatus

from activities.pipelines import start_pipeline
from gpu_platform.domain.contracts import remediation_id
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines.file import read_pipeline
from gpu_platform.domain.pipelines.pipeline import PipelineSpec, PipelineState
from gpu_platform.domain.states import ArrayState, GpuState, JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus
from gpu_platform.store.jobs import arrays, pipelines
from gpu_platform.store.jobs.interrupts import INTERRUPT
from tests.support.harness import Platform
from tests.support.waiting import eventually

WHY = "a wrong data set"
SAID = f"cancelled in Temporal: {WHY}"
RETRY_WAIT_S = 8
"""Less a quarter at most."""
SLACK_S = 3.0


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


def shell(script: str, *, gpus: int = 1, **fields: Any) -> JobSpec:
    request = ResourceRequest(gpus_per_host=gpus)
    return JobSpec(command=["/bin/sh", "-c", script], gpus=request, grace_s=0.2, **fields)


FAILS_ONCE = shell('[ "$GPU_PLATFORM_ATTEMPT" != 1 ] || exit 3', max_retries=3, retry_wait_s=RETRY_WAIT_S)


async def cancel_in_temporal(platform: Platform, workflow_id: str) -> None:
    """As ``temporal workflow cancel --reason``."""
    await platform.client.workflow_service.request_cancel_workflow_execution(
        RequestCancelWorkflowExecutionRequest(
            namespace=platform.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=workflow_id),
            request_id=uuid.uuid4().hex,
            reason=WHY,
        )
    )


async def status_of(platform: Platform, workflow_id: str) -> WorkflowExecutionStatus | None:
    return (await platform.workflow(workflow_id).describe()).status


# ---- cancel ----


async def waits_for_gpus(platform: Platform) -> str:
    await platform.reaches(await platform.submit(shell("sleep 600", gpus=8)), JobState.RUNNING)
    job_id = await platform.submit(shell("true"))
    await platform.reaches(job_id, JobState.QUEUED)
    return job_id


async def runs(platform: Platform) -> str:
    job_id = await platform.submit(shell("sleep 600"))
    await platform.reaches(job_id, JobState.RUNNING)
    return job_id


async def waits_for_its_time(platform: Platform) -> str:
    job_id = await platform.submit(shell("true", begin_at=datetime.now(UTC) + timedelta(hours=1)))
    await platform.reaches(job_id, JobState.QUEUED)
    return job_id


async def waits_for_its_retry(platform: Platform) -> str:
    job_id = await platform.submit(FAILS_ONCE)
    await eventually(lambda: platform.job(job_id).retry_at, "the wait before the retry")
    return job_id


async def has_just_begun(platform: Platform) -> str:
    return await platform.submit(shell("sleep 600"))


STATES = [has_just_begun, waits_for_gpus, waits_for_its_time, runs, waits_for_its_retry]


@pytest.mark.some(2)
@pytest.mark.parametrize("state", STATES, ids=lambda one: one.__name__)
async def test_a_job_that_is_cancelled_in_temporal_is_cancelled(platform: Platform, state: Any) -> None:
    job_id = await state(platform)
    await cancel_in_temporal(platform, job_id)
    job = await platform.ends(job_id, JobState.CANCELLED)
    assert str(job.stopped_by) == f"cancelled by temporal: {SAID}"
    [event] = platform.events(job_id, INTERRUPT)
    assert (event.actor, event.data["verb"], event.data["reason"]) == ("temporal", "cancel", SAID)
    assert await status_of(platform, job_id) is WorkflowExecutionStatus.CANCELED


async def test_an_array_that_is_cancelled_in_temporal_is_cancelled(platform: Platform) -> None:
    array_id = await platform.submit_array(shell("sleep 600"), "0-11")
    await platform.reaches_element(array_id, 3, JobState.RUNNING)
    await cancel_in_temporal(platform, array_id)
    await platform.array_ends(array_id, ArrayState.CANCELLED)
    assert str(arrays.get_array(platform.store, array_id).stopped_by) == f"cancelled by temporal: {SAID}"
    assert await status_of(platform, array_id) is WorkflowExecutionStatus.CANCELED
    await platform.nothing_leaked()


async def test_a_pipeline_that_is_cancelled_in_temporal_is_cancelled(platform: Platform) -> None:
    pipeline_id = "p-0000000000000c1"
    read = read_pipeline('{"name": "p", "steps": {"one": {"command": ["sleep", "600"]}}}', {}, workdir=None)
    steps = tuple(one.model_copy(update={"job": one.job.model_copy(update={"user": "ada"})}) for one in read.steps)
    spec = PipelineSpec(name=read.name, namespace="default", user="ada", parameters=read.parameters, steps=steps)
    pipelines.create(platform.store, pipeline_id, spec, actor="ada", uses_cache=True, now=datetime.now(UTC))
    await start_pipeline(platform.client, platform.store, pipeline_id)
    look = lambda: pipelines.get(platform.store, pipeline_id)  # noqa: E731
    job_id = await eventually(lambda: next((j.job_id for s in look().steps for j in s.jobs), None), "its job")
    await platform.reaches(job_id, JobState.RUNNING)
    await cancel_in_temporal(platform, pipeline_id)
    await eventually(lambda: look().state is PipelineState.CANCELLED, "the pipeline to end", 30)
    assert str(look().stopped_by) == f"cancelled by temporal: {SAID}"
    await platform.ends(job_id, JobState.CANCELLED)

    async def is_closed() -> bool:
        return await status_of(platform, pipeline_id) is WorkflowExecutionStatus.CANCELED

    await eventually(is_closed, "its workflow to close")


async def test_a_remediation_that_is_cancelled_in_temporal_heals_its_gpu(platform: Platform) -> None:
    """A GPU that nobody heals would be lost until somebody finds it RESETTING."""
    node = platform.nodes["a"]
    uuids = [gpu.info.uuid for gpu in gpus.list_gpus(platform.store)]
    state = lambda: gpus.get_gpu(platform.store, uuids[0]).state  # noqa: E731
    with node.held_resets():
        node.strike(0, xid=119)
        await eventually(lambda: state() is GpuState.RESETTING, "the reset to begin")
        await cancel_in_temporal(platform, remediation_id(uuids[0]))
        await asyncio.sleep(0.5)
        assert await status_of(platform, remediation_id(uuids[0])) is WorkflowExecutionStatus.RUNNING
    await eventually(lambda: state() is GpuState.AVAILABLE, "the GPU to be healed")


async def test_a_scheduler_that_is_cancelled_in_temporal_goes_on(platform: Platform) -> None:
    await cancel_in_temporal(platform, "scheduler")
    await asyncio.sleep(0.5)
    await platform.ends(await platform.submit(shell("true")), JobState.COMPLETED)
    assert await status_of(platform, "scheduler") is WorkflowExecutionStatus.RUNNING


# ---- reset ----


async def task_ends(platform: Platform, job_id: str) -> list[int]:
    """The events to which a workflow can be reset."""
    history = platform.workflow(job_id).fetch_history_events()
    return [one.event_id async for one in history if one.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]


async def reset(platform: Platform, job_id: str, event_id: int) -> None:
    """As ``temporal workflow reset --event-id``."""
    await platform.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=platform.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=job_id),
            workflow_task_finish_event_id=event_id,
            request_id=uuid.uuid4().hex,
        )
    )


@pytest.mark.long
async def test_a_reset_in_a_retry_wait_keeps_the_wait_the_attempts_and_the_retries(platform: Platform) -> None:
    """Whatever the workflow is to forget of it."""

    async def reset_at(number: int) -> bool:
        job_id = await waits_for_its_retry(platform)
        events = await task_ends(platform, job_id)
        if number >= len(events):
            return False
        due = platform.job(job_id).retry_at
        assert due is not None
        await asyncio.sleep(SLACK_S + 1.0)
        await reset(platform, job_id, events[number])
        job = await platform.ends(job_id, JobState.COMPLETED, within_s=30)
        assert (job.attempt, job.user_retries, job.hardware_retries) == (2, 1, 0), number
        [_, again] = platform.events(job_id, "job.placed")
        assert timedelta(0) <= again.at - due < timedelta(seconds=SLACK_S), (number, due, again.at)
        return True

    assert await asyncio.gather(*[reset_at(number) for number in range(8)]) != [False] * 8
    await platform.nothing_leaked()


@pytest.mark.long
async def test_a_reset_of_a_retry_that_waits_for_gpus_keeps_its_number(platform: Platform) -> None:
    job_id = await platform.submit(FAILS_ONCE.model_copy(update={"retry_wait_s": 1}))
    await eventually(lambda: platform.job(job_id).retry_at, "the wait before the retry")
    blocker = await platform.submit(shell("sleep 600", gpus=8, priority=90))
    await platform.reaches(blocker, JobState.RUNNING)
    await eventually(lambda: len(platform.events(job_id, "queue.added")) >= 2 or None, "the retry to wait for GPUs", 20)
    for event_id in (await task_ends(platform, job_id))[:1]:
        await reset(platform, job_id, event_id)
    await eventually(lambda: len(platform.events(job_id, "job.begun_again")) == 1 or None, "the job to begin again")
    await platform.signal(blocker, "kill")
    job = await platform.ends(job_id, JobState.COMPLETED)
    assert (job.attempt, job.user_retries, job.hardware_retries) == (2, 1, 0)


@pytest.mark.long
async def test_a_reset_of_a_job_that_waits_or_has_ended_changes_nothing(platform: Platform) -> None:
    ended = await platform.submit(shell("exit 3"))
    await platform.ends(ended, JobState.FAILED)
    later = await waits_for_its_time(platform)
    due = platform.job(later).retry_at
    waits = await waits_for_gpus(platform)
    for job_id in (ended, later, waits):

        async def its_tasks(job_id: str = job_id) -> list[int]:
            return await task_ends(platform, job_id)

        await reset(platform, job_id, (await eventually(its_tasks, f"the first task of {job_id}"))[0])
    await asyncio.sleep(1.0)

    def stands(job_id: str) -> tuple[JobState, int, int]:
        job: Job = platform.job(job_id)
        return job.state, job.attempt, job.user_retries

    assert stands(ended) == (JobState.FAILED, 1, 0)
    assert (stands(later), platform.job(later).retry_at) == ((JobState.QUEUED, 0, 0), due)
    assert stands(waits) == (JobState.QUEUED, 0, 0)
    for job_id in (later, waits):
        await platform.signal(job_id, "cancel")
        await platform.ends(job_id, JobState.CANCELLED)
