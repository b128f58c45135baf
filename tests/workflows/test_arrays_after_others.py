"""Arrays that come after jobs and arrays, and jobs that come after arrays, on a real Temporal server and database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.jobs.array_steps import ElementsInterrupt
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind, IfUnmet
from gpu_platform.domain.jobs.job import Interrupt
from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, jobs, queue
from tests.support.harness import Platform
from tests.support.waiting import eventually
from workers.scheduler.dependency_watch import DependencyWatch

GPU = ResourceRequest(gpus_per_host=1)
OK, ANY, FAIL, EACH = DependencyKind.OK, DependencyKind.ANY, DependencyKind.FAIL, DependencyKind.EACH


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100", "b": "dgx-h100"}) as platform:
        yield platform


@pytest.fixture
def never_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what follows the change feed wakes a job: no sweep helps."""

    async def nothing(self: DependencyWatch) -> None:
        return None

    monkeypatch.setattr(DependencyWatch, "wake", nothing)


def shell(script: str, *after: str, kind: DependencyKind = OK, **fields: object) -> JobSpec:
    waits = tuple(Dependency(job_id=one, kind=kind) for one in after)
    return JobSpec.model_validate(
        {"command": ["/bin/sh", "-c", script], "gpus": GPU, "grace_s": 1, "after": waits, **fields}
    )


def held_up(tmp_path: Path, then: str = "true") -> str:
    """A script that ends when the test says so: see :func:`let_go`."""
    return f"while [ ! -e {tmp_path}/go ] && [ ! -e {tmp_path}/go-{{index}} ]; do sleep 0.02; done; {then}"


def let_go(tmp_path: Path, index: int | None = None) -> None:
    (tmp_path / ("go" if index is None else f"go-{index}")).touch()


def waits_for(platform: Platform, array_id: str) -> str:
    reason = arrays.get_array(platform.store, array_id).reason
    return "" if reason is None else reason.message


@pytest.mark.long
@pytest.mark.usefixtures("never_swept")
async def test_arrays_and_jobs_wait_for_each_other(platform: Platform, tmp_path: Path) -> None:
    first = await platform.submit(shell(held_up(tmp_path)))
    array = await platform.submit_array(shell("true", first), "0-2")
    after_array = await platform.submit(shell("true", array))
    after_element = await platform.submit(shell("true", element_id(array, 1)))
    last = await platform.submit_array(shell("true", array, after_element, kind=ANY), "5,7")
    failing = await platform.submit(shell("true", array, kind=FAIL))
    await platform.reaches(first, JobState.RUNNING)
    await eventually(lambda: waits_for(platform, array) == f"waits for job {first} (RUNNING)", "the array to wait")
    await eventually(lambda: platform.job(after_array).reason, "the job to wait")
    reason = platform.job(after_array).reason
    assert reason is not None
    assert (reason.code, reason.message) == (WaitCode.DEPENDENCY, f"waits for array {array} (RUNNING)")
    assert queue.read_queue(platform.store) == []
    assert arrays.get_array(platform.store, array).counts == {JobState.PENDING: 3}
    let_go(tmp_path)
    await platform.array_ends(array, ArrayState.COMPLETED)
    await platform.ends(after_array, JobState.COMPLETED)
    await platform.ends(after_element, JobState.COMPLETED)
    await platform.array_ends(last, ArrayState.COMPLETED)
    cancelled = await platform.ends(failing, JobState.CANCELLED)
    assert str(cancelled.stopped_by) == (
        f"cancelled by dependency: array {array} ended COMPLETED, and this job was to run only if it failed"
    )
    await platform.nothing_leaked()


@pytest.mark.usefixtures("never_swept")
async def test_an_array_that_can_never_start_is_cancelled_or_held(platform: Platform, tmp_path: Path) -> None:
    first = await platform.submit_array(shell(held_up(tmp_path, "[ {index} != 1 ]")), "0-1")
    second = await platform.submit_array(shell("true", first), "0-9")
    third = await platform.submit(shell("true", element_id(second, 3)))
    held = await platform.submit_array(shell("true", first, if_unmet=IfUnmet.HOLD), "0-9")
    cleanup = await platform.submit_array(shell("true", first, kind=FAIL), "0-1")
    let_go(tmp_path)
    await platform.array_ends(first, ArrayState.FAILED)
    ended = await platform.array_ends(second, ArrayState.CANCELLED)
    assert ended.counts == {JobState.CANCELLED: 10}
    assert str(ended.stopped_by) == (
        f"cancelled by dependency: array {first} ended FAILED, and this job was to run only after it had COMPLETED"
    )
    await platform.ends(third, JobState.CANCELLED)
    await platform.array_ends(cleanup, ArrayState.COMPLETED)
    await eventually(lambda: waits_for(platform, held).startswith("held: array"), "the array to be held")
    await platform.signal(held, "cancel")
    await platform.array_ends(held, ArrayState.CANCELLED)
    assert await asyncio.to_thread(jobs.list_elements, platform.store, held) == ([], None)


@pytest.mark.long
@pytest.mark.usefixtures("never_swept")
async def test_each_element_starts_when_its_counterpart_has_completed(platform: Platform, tmp_path: Path) -> None:
    first = await platform.submit_array(shell(held_up(tmp_path, "[ {index} != 4 ]")), "0-5")
    second = await platform.submit_array(shell(f"echo {{index}} >> {tmp_path}/ran", first, kind=EACH), "0-5")
    third = await platform.submit_array(shell(f"echo {{index}} >> {tmp_path}/third", second, kind=EACH), "0-5")
    ran = tmp_path / "ran"
    await eventually(lambda: waits_for(platform, second).startswith("its elements wait for those of"), "it to wait")
    for index in (3, 0):
        let_go(tmp_path, index)
        await platform.ends_element(first, index, JobState.COMPLETED)
        await platform.ends_element(third, index, JobState.COMPLETED)
    assert ran.read_text().split() == ["3", "0"]
    let_go(tmp_path, 4)
    unmet = await platform.ends_element(second, 4, JobState.CANCELLED)
    assert str(unmet.stopped_by) == (
        f"cancelled by dependency: job {first}.4 ended FAILED, and this job was to run only after it had COMPLETED"
    )
    let_go(tmp_path)
    await platform.array_ends(first, ArrayState.FAILED)
    ended = await platform.array_ends(second, ArrayState.CANCELLED)
    assert ended.counts == {JobState.COMPLETED: 5, JobState.CANCELLED: 1}
    assert (await platform.array_ends(third, ArrayState.CANCELLED)).counts == ended.counts
    assert sorted((tmp_path / "third").read_text().split()) == ["0", "1", "2", "3", "5"]
    await platform.nothing_leaked()


@pytest.mark.long
async def test_what_never_runs_is_cancelled_when_the_other_array_is_stopped(platform: Platform, tmp_path: Path) -> None:
    first = await platform.submit_array(shell(held_up(tmp_path)), "0-499", at_once=4)
    second = await platform.submit_array(shell("true", first, kind=EACH), "0-499")
    for index in range(3):
        let_go(tmp_path, index)
    await platform.ends_element(second, 2, JobState.COMPLETED)
    await platform.signal(first, "cancel")
    await platform.array_ends(first, ArrayState.CANCELLED)
    ended = await platform.array_ends(second, ArrayState.CANCELLED)
    assert ended.counts == {JobState.COMPLETED: 3, JobState.CANCELLED: 497}
    assert ended.stopped_by is not None
    assert ended.stopped_by.reason == (
        f"array {first} ended CANCELLED, and these elements were to run only after its own had COMPLETED"
    )


@pytest.mark.long
async def test_held_elements_wait_until_somebody_cancels_them(platform: Platform, tmp_path: Path) -> None:
    first = await platform.submit_array(shell("[ {index} != 1 ]"), "0-3")
    await platform.array_ends(first, ArrayState.FAILED)
    held = await platform.submit_array(shell("true", first, kind=EACH, if_unmet=IfUnmet.HOLD), "0-3")
    for index in (0, 2, 3):
        await platform.ends_element(held, index, JobState.COMPLETED)
    assert arrays.get_array(platform.store, held).counts == {JobState.PENDING: 1, JobState.COMPLETED: 3}
    order = ElementsInterrupt(indices="1", interrupt=Interrupt(actor="test", reason="asked"))
    await platform.workflow(held).signal("cancel_elements", order)
    ended = await platform.array_ends(held, ArrayState.CANCELLED)
    assert ended.counts == {JobState.CANCELLED: 1, JobState.COMPLETED: 3}


@pytest.mark.long
async def test_lost_signals_and_a_lost_workflow_lose_no_element(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def died(self: DependencyWatch, ended: object) -> None:
        return None

    monkeypatch.setattr(DependencyWatch, "wake_after", died)
    first = await platform.submit_array(shell(held_up(tmp_path)), "0-3")
    second = await platform.submit_array(shell(f"echo {{index}} >> {tmp_path}/ran", first, kind=EACH), "0-3")
    whole = await platform.submit_array(shell(f"echo whole >> {tmp_path}/ran", first), "0")
    let_go(tmp_path, 1)
    await platform.ends_element(second, 1, JobState.COMPLETED)
    for array_id in (second, whole):
        await platform.forgotten(array_id)
    let_go(tmp_path)
    await platform.array_ends(second, ArrayState.COMPLETED, within_s=60)
    await platform.array_ends(whole, ArrayState.COMPLETED, within_s=60)
    assert sorted((tmp_path / "ran").read_text().split()) == ["0", "1", "2", "3", "whole"]
    await platform.nothing_leaked()
