"""Schedules on a real Temporal server, a real database and real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import delete
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.contracts import schedule_workflow_prefix
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.schedule import Backfill, Overlap, Schedule, ScheduleRequest
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import schedules, watches
from gpu_platform.store.models import schedule
from gpu_platform.temporal.schedules import TemporalSchedules
from tests.support.harness import Platform
from tests.support.temporal_server import client_of_new_namespace, running_temporal
from tests.support.waiting import eventually
from workers.scheduler.schedule_upkeep import ScheduleUpkeep
from workers.scheduler.workflow_watch import WorkflowWatch

ID = "s-0000000000000s1"
OPEN_FIRINGS = "WorkflowType='ScheduledSubmissionWorkflow' AND ExecutionStatus='Running'"


@pytest.fixture(scope="module")
def temporal_with_schedules() -> Iterator[str]:
    """A server of this file alone: the others do without Temporal's own workers."""
    with running_temporal(has_schedules=True) as address:
        yield address


@pytest.fixture
async def temporal(temporal_with_schedules: str) -> Client:
    return await client_of_new_namespace(temporal_with_schedules)


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform
        temporal_side = TemporalSchedules(sqlite_store, temporal)
        for one in schedules.ids(sqlite_store):
            schedules.remove(sqlite_store, one, actor="test", now=datetime.now(UTC))
            await eventually(partial(applied, temporal_side, one), "Temporal's schedule to be gone")


async def applied(temporal_side: TemporalSchedules, schedule_id: str) -> bool:
    """Whether it was applied. Temporal asks the schedule's own workflow, and gives up while that is busy. The leader
    tries again then."""
    try:
        await temporal_side.apply(schedule_id)
    except RPCError as error:
        if error.status in (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.RESOURCE_EXHAUSTED):
            return False
        raise
    return True


def request(tmp_path: Path, script: str = "true", overlap: Overlap = Overlap.SKIP, **fields: object) -> ScheduleRequest:
    """Fires only when the test asks for it, unless ``fields`` say otherwise."""
    job = {"name": "again", "user": "ada", "command": ["/bin/sh", "-c", f"cd {tmp_path}; {script}"], "grace_s": 1}
    when = {} if "every_s" in fields else {"cron": "0 0 1 1 *"}
    return ScheduleRequest.model_validate({**when, "overlap": overlap, "job": job, **fields})


async def made(platform: Platform, wanted: ScheduleRequest, schedule_id: str = ID) -> TemporalSchedules:
    schedules.create(platform.store, schedule_id, wanted, actor="ada", now=datetime.now(UTC))
    temporal_side = TemporalSchedules(platform.store, platform.client)
    await eventually(partial(applied, temporal_side, schedule_id), "Temporal to have the schedule")
    return temporal_side


def look(platform: Platform, schedule_id: str = ID) -> Schedule:
    return schedules.get(platform.store, schedule_id)


async def fired(platform: Platform, count: int, *states: JobState) -> Schedule:
    """Wait until it has fired so often, and all its jobs are in one of the states."""

    def there() -> Schedule | None:
        found = look(platform)
        done = [run for run in found.runs if not states or run.state in states]
        return found if len(done) >= count else None

    return await eventually(there, f"{count} firings {states}")


async def may_fire_again(platform: Platform, due_at: datetime) -> bool:
    """Whether Temporal knows that no firing runs, else it skips the next one. It names firings by the second."""
    if datetime.now(UTC) < due_at + timedelta(seconds=1):
        return False
    handle = platform.client.get_schedule_handle(schedule_workflow_prefix(ID))
    return not (await handle.describe()).info.running_actions


async def test_each_firing_is_an_ordinary_job_of_the_schedules_user(platform: Platform, tmp_path: Path) -> None:
    temporal_side = await made(platform, request(tmp_path, "echo x >> ran"))
    await temporal_side.trigger(ID)
    [run] = (await fired(platform, 1, JobState.COMPLETED)).runs
    assert run.job_id is not None
    job = await platform.ends(run.job_id, JobState.COMPLETED)
    assert (job.spec.user, job.spec.name) == ("ada", "again")
    assert {"job.submitted", "schedule.fired", "job.queued", "job.placed"} <= set(platform.kinds(run.job_id))
    assert (tmp_path / "ran").read_text() == "x\n"
    await eventually(lambda: watches.to_be_told(platform.store) == [], "the workflow to see the end")


@pytest.mark.long
async def test_a_firing_that_is_repeated_makes_no_second_job(platform: Platform, tmp_path: Path) -> None:
    await made(platform, request(tmp_path))
    workflow_id = f"{schedule_workflow_prefix(ID)}-2026-01-01T00:00:00Z"
    at = datetime(2026, 1, 1, tzinfo=UTC)
    first, second = (schedules.record_firing(platform.store, ID, workflow_id, at, datetime.now(UTC)) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.id == second.id
    assert len(look(platform).runs) == 1
    # Nobody starts its workflow: the leader finds the job.
    await platform.ends(first.id, JobState.COMPLETED, within_s=40)


async def test_skip_leaves_out_what_is_due_while_the_job_runs_and_buffer_all_makes_up_for_it(
    platform: Platform, tmp_path: Path
) -> None:
    wait = "while [ ! -e go ]; do sleep 0.02; done"
    temporal_side = await made(platform, request(tmp_path, wait))
    await temporal_side.trigger(ID)
    await fired(platform, 1, JobState.RUNNING)
    await temporal_side.trigger(ID)
    handle = platform.client.get_schedule_handle(schedule_workflow_prefix(ID))

    async def skipped() -> bool:
        return (await handle.describe()).info.num_actions_skipped_overlap >= 1

    await eventually(skipped, "Temporal to skip a firing")
    days = Backfill(
        start_at=datetime(2020, 1, 1, tzinfo=UTC), end_at=datetime(2021, 1, 1, tzinfo=UTC), overlap=Overlap.BUFFER_ALL
    )
    await temporal_side.backfill(ID, days)
    await asyncio.sleep(0.2)
    assert len(look(platform).runs) == 1, "it waits for the job that runs"
    (tmp_path / "go").touch()
    found = await fired(platform, 3, JobState.COMPLETED)
    assert {run.due_at.year for run in found.runs[1:]} == {2020, 2021}, "both ends count"


async def test_cancel_other_replaces_the_job_that_runs(platform: Platform, tmp_path: Path) -> None:
    temporal_side = await made(platform, request(tmp_path, "sleep 600", Overlap.CANCEL_OTHER))
    await temporal_side.trigger(ID)
    [first] = (await fired(platform, 1, JobState.RUNNING)).runs
    assert first.job_id is not None
    await eventually(lambda: datetime.now(UTC) >= first.due_at + timedelta(seconds=1), "a name by the second")
    await temporal_side.trigger(ID)
    ended = await platform.ends(first.job_id, JobState.CANCELLED)
    assert str(ended.stopped_by) == "cancelled by schedule: the schedule fired again (cancel-other)"
    found = await fired(platform, 1, JobState.RUNNING)
    second = found.runs[0].job_id
    assert second is not None
    await platform.signal(second, "kill")
    await platform.ends(second, JobState.CANCELLED)


@pytest.mark.long
async def test_terminating_a_firing_leaves_its_job_alone(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporal_side = await made(platform, request(tmp_path, "while [ ! -e go ]; do sleep 0.02; done"))
    await temporal_side.trigger(ID)
    [run] = (await fired(platform, 1, JobState.RUNNING)).runs
    assert run.job_id is not None
    [waiting] = [
        one
        async for one in platform.client.list_workflows(
            "WorkflowType='ScheduledSubmissionWorkflow' AND ExecutionStatus='Running'"
        )
    ] or [None]
    assert waiting is not None
    await platform.workflow(waiting.id).terminate()
    (tmp_path / "go").touch()
    await platform.ends(run.job_id, JobState.COMPLETED)
    await eventually(lambda: watches.to_be_told(platform.store) == [], "the leader to forget who waited")


async def test_what_a_quota_refuses_is_told_and_the_schedule_goes_on(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_platform.store.jobs import jobs

    def refuse(*_: object) -> None:
        raise InvalidRequest("the namespace is full")

    temporal_side = await made(platform, request(tmp_path))
    with monkeypatch.context() as full:
        full.setattr(jobs, "check_quotas", refuse)
        await temporal_side.trigger(ID)
        [run] = (await fired(platform, 1)).runs
    assert (run.job_id, run.refusal) == (None, "the namespace is full")
    await eventually(partial(may_fire_again, platform, run.due_at), "Temporal to know that the firing has ended")
    await temporal_side.trigger(ID)
    await fired(platform, 1, JobState.COMPLETED)


async def test_a_lost_signal_is_sent_again_to_a_firing(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the leader died after the job's end and before its signal."""

    async def died(self: WorkflowWatch, ended: object) -> None:
        return None

    monkeypatch.setattr(WorkflowWatch, "tell_after", died)
    temporal_side = await made(platform, request(tmp_path))
    await temporal_side.trigger(ID)
    await fired(platform, 1, JobState.COMPLETED)

    async def closed() -> bool:
        return [one async for one in platform.client.list_workflows(OPEN_FIRINGS)] == []

    await eventually(closed, "the firing to end")


async def test_one_schedule_is_written_by_many_at_once(platform: Platform, tmp_path: Path) -> None:
    """While a schedule changes, Temporal keeps one question about it and refuses the others: they are asked again."""
    temporal_side = await made(platform, request(tmp_path))
    for paused in (True, False, True):
        schedules.set_paused(platform.store, ID, paused, "", actor="ada", now=datetime.now(UTC))
        await asyncio.gather(*(temporal_side.apply(ID) for _ in range(8)))
    assert await temporal_side.ids() == {ID}
    assert schedules.not_applied(platform.store) == []


async def test_what_temporal_lost_is_made_again_and_what_has_no_row_is_removed(
    platform: Platform, tmp_path: Path
) -> None:
    await made(platform, request(tmp_path))
    temporal_side = await made(platform, request(tmp_path), "s-0000000000000s2")
    upkeep = ScheduleUpkeep(platform.store, platform.client)
    # Temporal loses the first, and the database the second.
    await platform.client.get_schedule_handle(schedule_workflow_prefix(ID)).delete()
    schedules.remove(platform.store, "s-0000000000000s2", actor="test", now=datetime.now(UTC))

    async def repaired() -> bool:
        upkeep._compare_at = 0.0
        await upkeep.sweep()
        return await temporal_side.ids() == {ID}

    await eventually(repaired, "the leader to repair both")


@pytest.mark.parametrize("is_paused", [False, True])
async def test_what_the_database_lost_is_restored_from_temporal(
    platform: Platform, tmp_path: Path, is_paused: bool
) -> None:
    temporal_side = await made(platform, request(tmp_path))
    if is_paused:
        schedules.set_paused(platform.store, ID, True, "holidays", actor="ada", now=datetime.now(UTC))
        await eventually(partial(applied, temporal_side, ID), "Temporal to know it")
    before = schedules.get(platform.store, ID)
    with platform.store.write() as session:
        session.execute(delete(schedule))  # without the event of a person who deletes it
    upkeep = ScheduleUpkeep(platform.store, platform.client)

    async def restored() -> bool:
        upkeep._compare_at = 0.0
        await upkeep.sweep()
        return ID in schedules.ids(platform.store)

    await eventually(restored, "the leader to restore it")
    after = schedules.get(platform.store, ID)
    assert after.request == before.request
    assert (after.user, after.namespace, after.paused) == (before.user, before.namespace, is_paused)
    assert await temporal_side.ids() == {ID}
    assert schedules.not_applied(platform.store) == []


async def test_a_change_of_a_schedule_whose_row_is_lost_restores_it_and_deletes_nothing(
    platform: Platform, tmp_path: Path
) -> None:
    """The row may be lost between the leader's look and its change."""
    temporal_side = await made(platform, request(tmp_path))
    before = schedules.get(platform.store, ID)
    with platform.store.write() as session:
        session.execute(delete(schedule))
    assert await eventually(partial(applied, temporal_side, ID), "Temporal to answer")
    assert schedules.get(platform.store, ID).request == before.request
    assert await temporal_side.ids() == {ID}


async def test_what_somebody_pauses_in_temporal_goes_on(platform: Platform, tmp_path: Path) -> None:
    await made(platform, request(tmp_path))
    handle = platform.client.get_schedule_handle(schedule_workflow_prefix(ID))
    await handle.pause(note="revision 1")
    upkeep = ScheduleUpkeep(platform.store, platform.client)

    async def goes_on() -> bool:
        upkeep._compare_at = 0.0
        await upkeep.sweep()
        return not (await handle.describe()).schedule.state.paused

    await eventually(goes_on, "the leader to let it go on")


async def test_a_change_that_did_not_reach_temporal_reaches_it_later(platform: Platform, tmp_path: Path) -> None:
    await made(platform, request(tmp_path))
    schedules.set_paused(platform.store, ID, True, "holidays", actor="ada", now=datetime.now(UTC))
    handle = platform.client.get_schedule_handle(schedule_workflow_prefix(ID))

    async def paused() -> bool:
        return (await handle.describe()).schedule.state.paused

    await eventually(paused, "the leader to tell Temporal")
    await eventually(lambda: schedules.not_applied(platform.store) == [], "the leader to note it")


async def test_an_older_change_never_overwrites_a_newer_one(platform: Platform, tmp_path: Path) -> None:
    """Two services apply at once: the change of the one that looked first is dropped."""
    temporal_side = await made(platform, request(tmp_path))
    there = await temporal_side._described(ID)
    older = schedules.terms_of(platform.store, ID)
    assert there is not None
    assert older is not None
    schedules.set_paused(platform.store, ID, True, "", actor="ada", now=datetime.now(UTC))
    await temporal_side.apply(ID)
    await temporal_side._write(older, there.conflict_token)
    await temporal_side._write(older, None)
    newest = await temporal_side._described(ID)
    assert newest is not None
    assert newest.schedule.state.paused


@pytest.mark.long
async def test_it_fires_by_itself(platform: Platform, tmp_path: Path) -> None:
    await made(platform, request(tmp_path, every_s=1))
    found = await fired(platform, 2, JobState.COMPLETED)
    assert found.runs[0].due_at - found.runs[1].due_at >= timedelta(seconds=1)


async def test_what_temporal_does_not_take_is_an_error_of_the_request(platform: Platform, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="no such schedule is possible"):
        await made(platform, request(tmp_path, timezone="Mars/Olympus"))
    with pytest.raises(InvalidRequest, match="no such schedule is possible"):
        await made(platform, request(tmp_path, cron="99 * * * *"), "s-0000000000000s3")
