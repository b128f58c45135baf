"""Jobs and arrays that are held and released, on a real Temporal server, a real database and real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.jobs.dependency import Dependency, IfUnmet
from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import holds, queue
from gpu_platform.store.jobs.holds import Asker
from gpu_platform.temporal.job_workflows import TemporalJobWorkflows
from tests.support.harness import Platform
from tests.support.waiting import eventually

ADA = Asker("ada")


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


def shell(script: str = "true", gpus: int = 8, **fields: object) -> JobSpec:
    request = ResourceRequest(gpus_per_host=gpus)
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": request, "grace_s": 1, **fields})


def hold(platform: Platform, job_id: str) -> None:
    holds.hold(platform.store, job_id, ADA, "", datetime.now(UTC))


async def release(platform: Platform, job_id: str) -> None:
    for one in holds.release(platform.store, job_id, ADA, datetime.now(UTC)):
        await TemporalJobWorkflows(platform.client).ask_again(one)


async def is_held(platform: Platform, job_id: str) -> None:
    def held() -> bool:
        job = platform.job(job_id)
        return job.state is JobState.QUEUED and job.reason is not None and job.reason.code is WaitCode.HELD

    await eventually(held, "held")


async def test_a_job_that_is_held_does_not_start_although_there_is_room(platform: Platform) -> None:
    held = await platform.submit(shell(hold=True))
    await is_held(platform, held)
    other = await platform.submit(shell())
    await platform.ends(other, JobState.COMPLETED)
    assert platform.job(held).state is JobState.QUEUED
    assert "queue.added" not in platform.kinds(held)
    await release(platform, held)
    ended = await platform.ends(held, JobState.COMPLETED)
    assert ended.attempt == 1
    await platform.nothing_leaked()


@pytest.mark.long
async def test_a_waiting_job_is_held_and_a_later_one_starts(platform: Platform, tmp_path: Path) -> None:
    first = await platform.submit(shell(f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"))
    await platform.reaches(first, JobState.RUNNING)
    second, third = await platform.submit(shell()), await platform.submit(shell())
    await eventually(lambda: len(queue.read_queue(platform.store)) == 2, "both wait")
    hold(platform, second)
    (tmp_path / "go").touch()
    await platform.ends(third, JobState.COMPLETED)
    await is_held(platform, second)
    await platform.change_leader()
    await is_held(platform, second)
    await release(platform, second)
    await platform.ends(second, JobState.COMPLETED)
    await platform.nothing_leaked()


async def test_a_job_that_is_held_is_cancelled_at_once(platform: Platform) -> None:
    held = await platform.submit(shell(hold=True))
    await is_held(platform, held)
    await platform.signal(held, "cancel")
    await platform.ends(held, JobState.CANCELLED)


async def test_a_release_of_which_no_workflow_hears_is_found_by_the_leader(platform: Platform) -> None:
    held = await platform.submit(shell(hold=True))
    await is_held(platform, held)
    holds.release(platform.store, held, ADA, datetime.now(UTC))
    await platform.ends(held, JobState.COMPLETED, within_s=60.0)


async def test_a_job_whose_dependency_can_never_be_met_starts_when_it_is_released(platform: Platform) -> None:
    first = await platform.submit(shell("exit 3"))
    after = (Dependency(job_id=first),)
    second = await platform.submit(shell(after=after, if_unmet=IfUnmet.HOLD))
    await platform.reaches(first, JobState.FAILED)
    await is_held(platform, second)
    await release(platform, second)
    await platform.ends(second, JobState.COMPLETED)


async def test_the_elements_of_an_array_wait_until_it_is_released(platform: Platform) -> None:
    array = await platform.submit_array(shell(gpus=1, hold=True), "0-5", at_once=2)
    await platform.reaches_element(array, 1, JobState.QUEUED)
    await is_held(platform, f"{array}.0")
    other = await platform.submit(shell())
    await platform.ends(other, JobState.COMPLETED)
    assert queue.read_queue(platform.store) == []
    await release(platform, array)
    ended = await platform.array_ends(array, ArrayState.COMPLETED)
    assert ended.counts == {JobState.COMPLETED: 6}
    await platform.nothing_leaked()
