"""Jobs that come after other jobs, on a real Temporal server, a real database and real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind, IfUnmet
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import dependencies, queue
from gpu_platform.store.restoring import restoring
from tests.support.harness import Platform
from tests.support.older_database import replace_database
from tests.support.waiting import eventually
from workers.scheduler.dependency_watch import DependencyWatch

OK, ANY, FAIL = DependencyKind.OK, DependencyKind.ANY, DependencyKind.FAIL


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
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
        {"command": ["/bin/sh", "-c", script], "gpus": ResourceRequest(), "grace_s": 1, "after": waits, **fields}
    )


async def held_up(platform: Platform, tmp_path: Path, script: str = "true") -> str:
    """A job that ends when the test says so: see :func:`let_go`."""
    return await platform.submit(shell(f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; {script}"))


def let_go(tmp_path: Path) -> None:
    (tmp_path / "go").touch()


def when(platform: Platform, job_id: str, kind: str) -> datetime:
    [event] = platform.events(job_id, kind)
    return event.at


async def waits(platform: Platform, job_id: str) -> Job:
    return await eventually(lambda: (job := platform.job(job_id)).state is JobState.QUEUED and job, "admitted")


@pytest.mark.usefixtures("never_swept")
async def test_a_chain_runs_in_order(platform: Platform, tmp_path: Path) -> None:
    first = await held_up(platform, tmp_path)
    second = await platform.submit(shell("true", first))
    third = await platform.submit(shell("true", second))
    waiting = await waits(platform, third)
    assert waiting.reason is not None
    assert waiting.reason.code is WaitCode.DEPENDENCY
    await platform.reaches(first, JobState.RUNNING)
    assert queue.read_queue(platform.store) == [], "a job that waits for another one costs no decision"
    let_go(tmp_path)
    await platform.ends(third, JobState.COMPLETED)
    assert when(platform, first, "job.completed") <= when(platform, second, "job.placed")
    assert when(platform, second, "job.completed") <= when(platform, third, "job.placed")
    assert (released := platform.job(third).queued_at) is not None
    assert released >= when(platform, second, "job.completed"), "its place in the queue counts from then on"
    await platform.nothing_leaked()


@pytest.mark.usefixtures("never_swept")
async def test_a_job_that_can_never_start_is_cancelled_and_so_are_those_after_it(
    platform: Platform, tmp_path: Path
) -> None:
    first = await held_up(platform, tmp_path, "exit 3")
    second = await platform.submit(shell("true", first))
    third = await platform.submit(shell("true", second))
    after_all = await platform.submit(shell("true", first, second, third, kind=ANY))
    cleanup = await platform.submit(shell("true", first, second, kind=FAIL))
    held = await platform.submit(shell("true", first, if_unmet=IfUnmet.HOLD))
    let_go(tmp_path)
    ended = await platform.ends(third, JobState.CANCELLED)
    assert ended.stopped_by is not None
    assert str(ended.stopped_by) == (
        f"cancelled by dependency: job {second} ended CANCELLED, and this job was to run only after it had COMPLETED"
    )
    assert ended.attempt == 0
    assert "job.placed" not in platform.kinds(second)
    await platform.ends(after_all, JobState.COMPLETED)
    await platform.ends(cleanup, JobState.COMPLETED)
    holds = await eventually(
        lambda: (r := platform.job(held).reason) is not None and r.code is WaitCode.HELD and r, "held"
    )
    assert holds.message == f"held: job {first} ended FAILED, and this job was to run only after it had COMPLETED"
    await platform.signal(held, "cancel")
    await platform.ends(held, JobState.CANCELLED)
    await platform.nothing_leaked()


async def test_a_job_that_waits_is_cancelled_at_once(platform: Platform, tmp_path: Path) -> None:
    first = await held_up(platform, tmp_path)
    second = await platform.submit(shell("true", first))
    await waits(platform, second)
    await platform.signal(second, "cancel")
    await platform.ends(second, JobState.CANCELLED)
    let_go(tmp_path)
    await platform.ends(first, JobState.COMPLETED)


@pytest.mark.long
async def test_a_job_that_temporal_forgot_goes_on_waiting(platform: Platform, tmp_path: Path) -> None:
    first = await held_up(platform, tmp_path)
    begin = datetime.now(UTC) + timedelta(days=400)
    second = await platform.submit(shell("true", first))
    later = await platform.submit(shell("true", begin_at=begin))
    for job_id in (second, later):
        await waits(platform, job_id)
        await platform.forgotten(job_id)
    for job_id in (second, later):
        await eventually(lambda one=job_id: "job.begun_again" in platform.kinds(one), "a new workflow", within_s=40)

    async def looked() -> bool:
        status = await platform.workflow(second).query("status")
        return any("waits for job" in line for line in status["timeline"])

    await eventually(looked, "the new workflow to wait")
    assert "job.placed" not in platform.kinds(second)
    let_go(tmp_path)
    await platform.ends(second, JobState.COMPLETED)
    assert when(platform, first, "job.completed") <= when(platform, second, "job.placed")
    status = await platform.workflow(later).query("status")
    assert any("begins at" in line for line in status["timeline"]), "it waits for its time, too"
    await platform.signal(later, "cancel")
    await platform.ends(later, JobState.CANCELLED)


async def test_a_lost_signal_is_sent_again(platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the leader died after the job's end and before its signal."""

    async def died(self: DependencyWatch, ended: object) -> None:
        return None

    monkeypatch.setattr(DependencyWatch, "wake_after", died)
    first = await held_up(platform, tmp_path)
    second = await platform.submit(shell("true", first))
    await waits(platform, second)
    let_go(tmp_path)
    await platform.ends(first, JobState.COMPLETED)
    await platform.ends(second, JobState.COMPLETED)


@pytest.mark.long
@pytest.mark.parametrize("ends_meanwhile", [False, True])
async def test_a_lost_database_starts_nothing_too_early_and_loses_nothing(
    temporal: Client, sqlite_store: Store, sqlite_template: Path, tmp_path: Path, ends_meanwhile: bool
) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        first = await held_up(platform, tmp_path)
        second = await platform.submit(shell("true", first))
        await platform.reaches(first, JobState.RUNNING)
        await waits(platform, second)
        await asyncio.to_thread(replace_database, sqlite_store, sqlite_template)
        await platform.nodes["a"].report()
        if ends_meanwhile:
            let_go(tmp_path)
        await platform.change_leader()

        def waits_again() -> bool:
            if len(restoring.rows_of(platform.store, [first, second])) < 2:
                return False
            return ends_meanwhile or bool(dependencies.reasons(platform.store, [second], datetime.now(UTC)))

        await eventually(waits_again, "the waiting job to be restored", within_s=40)
        await platform.nodes["a"].report()
        assert ends_meanwhile or "job.placed" not in platform.kinds(second)
        let_go(tmp_path)
        await platform.ends(first, JobState.COMPLETED, within_s=40)
        await platform.ends(second, JobState.COMPLETED, within_s=40)
        assert when(platform, first, "job.completed") <= when(platform, second, "job.placed")
        await platform.nothing_leaked()
