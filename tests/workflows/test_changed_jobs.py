"""Jobs and arrays that are changed while they wait, on a real Temporal server, a real database and real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.array_ids import element_id, index_of
from gpu_platform.domain.jobs.array_steps import ElementsAgain
from gpu_platform.domain.jobs.changes import JobChanges
from gpu_platform.domain.jobs.dependency import Dependency
from gpu_platform.domain.jobs.index_set import IndexSet
from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, queue
from gpu_platform.store.jobs.changes import change_waiting
from gpu_platform.store.jobs.element_changes import change_elements
from gpu_platform.temporal.job_workflows import TemporalJobWorkflows
from tests.support.harness import Platform
from tests.support.waiting import eventually


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


def shell(script: str = "true", gpus: int = 8, **fields: object) -> JobSpec:
    request = ResourceRequest(gpus_per_host=gpus)
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": request, "grace_s": 1, **fields})


async def in_the_way(platform: Platform, tmp_path: Path) -> str:
    """A job that has the whole host until the file ``go`` is there."""
    first = await platform.submit(shell(f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"))
    await platform.reaches(first, JobState.RUNNING)
    return first


async def change(platform: Platform, job_id: str, *, tells: bool = True, **wanted: object) -> None:
    changes = JobChanges.model_validate(wanted)
    assert change_waiting(platform.store, job_id, changes, "ada", datetime.now(UTC))
    if tells:
        await TemporalJobWorkflows(platform.client).ask_again(job_id)


async def waiting(platform: Platform, count: int) -> None:
    await eventually(lambda: len(queue.read_queue(platform.store)) == count, f"{count} jobs wait")


@pytest.mark.long
async def test_a_job_gets_ahead_and_its_new_time_limit_ends_it(platform: Platform, tmp_path: Path) -> None:
    await in_the_way(platform, tmp_path)
    second = await platform.submit(shell())
    third = await platform.submit(shell("sleep 60", time_limit_s=3600))
    await waiting(platform, 2)
    await change(platform, third, priority=5, time_limit_s=1)
    await waiting(platform, 2)
    (tmp_path / "go").touch()
    ended = await platform.ends(third, JobState.FAILED)
    assert ended.failure is not None
    assert "limit of 1 s" in ended.failure.message
    await platform.ends(second, JobState.COMPLETED)
    [placed], [later] = platform.events(third, "job.placed"), platform.events(second, "job.placed")
    assert placed.seq < later.seq
    await platform.nothing_leaked()


async def test_a_change_of_which_no_workflow_hears_is_found_by_the_leader(platform: Platform, tmp_path: Path) -> None:
    await in_the_way(platform, tmp_path)
    second = await platform.submit(shell())
    await waiting(platform, 1)
    await change(platform, second, tells=False, priority=5)
    (tmp_path / "go").touch()
    await platform.ends(second, JobState.COMPLETED, within_s=60.0)


async def test_a_job_in_the_queue_comes_after_another_one_from_now_on(platform: Platform, tmp_path: Path) -> None:
    await in_the_way(platform, tmp_path)
    second = await platform.submit(shell())
    await waiting(platform, 1)
    third = await platform.submit(shell(gpus=8))
    await waiting(platform, 2)
    await change(platform, second, after=[Dependency(job_id=third).model_dump()])
    await waiting(platform, 1)
    assert (reason := platform.job(second).reason) is not None
    assert reason.code is WaitCode.DEPENDENCY
    (tmp_path / "go").touch()
    await platform.ends(second, JobState.COMPLETED)
    [placed], [first] = platform.events(second, "job.placed"), platform.events(third, "job.completed")
    assert first.seq < placed.seq
    await platform.nothing_leaked()


def elements_of(platform: Platform, array_id: str, *states: JobState) -> set[int]:
    return {*arrays.indices_in(platform.store, array_id, states)}


@pytest.mark.long
async def test_elements_that_wait_run_with_their_new_limit_and_those_that_run_with_their_old_one(
    platform: Platform, tmp_path: Path
) -> None:
    """Nobody is told of the change, as when Temporal is away: the leader finds the elements."""
    script = (
        f"[ {{index}} -ge 4 ] || while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; [ {{index}} -lt 4 ] || sleep 60"
    )
    array_id = await platform.submit_array(shell(script, gpus=2, time_limit_s=3600), "0-5")
    await eventually(lambda: elements_of(platform, array_id, JobState.RUNNING) == {0, 1, 2, 3}, "four run")
    await waiting(platform, 2)
    wanted = JobChanges(priority=5, time_limit_s=1)
    done = change_elements(platform.store, array_id, None, wanted, "ada", datetime.now(UTC))
    assert [(one.state, one.indices) for one in done.unchanged] == [(JobState.RUNNING, "0-3")]
    assert [index_of(one) for one in done.ask_again] == [4, 5]
    (tmp_path / "go").touch()
    array = await platform.array_ends(array_id, ArrayState.FAILED)
    assert (array.counts[JobState.COMPLETED], array.counts[JobState.FAILED]) == (4, 2)
    for index in (4, 5):
        failure = platform.job(element_id(array_id, index)).failure
        assert failure is not None
        assert "limit of 1 s" in failure.message
    await platform.nothing_leaked()


async def test_one_element_that_waits_gets_ahead_of_the_others(platform: Platform, tmp_path: Path) -> None:
    await in_the_way(platform, tmp_path)
    array_id = await platform.submit_array(shell(f"echo {{index}} >> {tmp_path}/ran"), "0-3")
    await waiting(platform, 4)
    done = change_elements(platform.store, array_id, IndexSet.of([2]), JobChanges(priority=9), "ada", datetime.now(UTC))
    await platform.signal(array_id, "elements_place_again", ElementsAgain(job_ids=done.ask_again))
    await waiting(platform, 4)
    (tmp_path / "go").touch()
    await platform.array_ends(array_id, ArrayState.COMPLETED)
    assert (tmp_path / "ran").read_text().split() == ["2", "0", "1", "3"]
    await platform.nothing_leaked()


@pytest.mark.some(1)
@pytest.mark.parametrize("in_array", [False, True])
async def test_with_a_shorter_limit_it_may_start_later_and_with_a_longer_one_it_is_too_late_sooner(
    platform: Platform, tmp_path: Path, in_array: bool
) -> None:
    await in_the_way(platform, tmp_path)
    deadline = datetime.now(UTC) + timedelta(hours=1)

    async def submit(limit_s: float) -> str:
        asked = shell(deadline_at=deadline, time_limit_s=int(limit_s))
        return await (platform.submit_array(asked, "0") if in_array else platform.submit(asked))

    async def update(name: str, limit_s: int) -> None:
        wanted = JobChanges(time_limit_s=limit_s)
        if in_array:
            done = change_elements(platform.store, name, None, wanted, "ada", datetime.now(UTC))
            await platform.signal(name, "elements_place_again", ElementsAgain(job_ids=done.ask_again))
        else:
            await change(platform, name, time_limit_s=limit_s)

    left_s = (deadline - datetime.now(UTC)).total_seconds()
    shorter = await submit(left_s - 3)
    longer = await submit(60)
    await waiting(platform, 2)
    await update(shorter, 60)
    await update(longer, int((deadline - datetime.now(UTC)).total_seconds()) - 1)
    too_late = element_id(longer, 0) if in_array else longer
    await eventually(lambda: platform.job(too_late).state is JobState.FAILED, "it is too late")
    failure = platform.job(too_late).failure
    assert failure is not None
    assert "it had not started in time to end by its deadline" in failure.message
    assert "with a time limit of 59m" in failure.message
    await eventually(lambda: datetime.now(UTC) > deadline - timedelta(seconds=left_s - 4), "the old limit is over")
    (tmp_path / "go").touch()
    if in_array:
        await platform.array_ends(shorter, ArrayState.COMPLETED)
    else:
        await platform.ends(shorter, JobState.COMPLETED)
    await platform.nothing_leaked()
