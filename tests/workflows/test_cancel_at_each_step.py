"""Cancel at any moment ends CANCELLED and leaks nothing. Each step is held open by a real obstacle."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

import activities.first_places
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.reserved import Reserved
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import queue
from gpu_platform.store.reservations import first_places, reserving
from tests.support.harness import Platform
from tests.support.waiting import eventually

SLEEP = JobSpec(command=["sleep", "600"], grace_s=5, gpus=ResourceRequest(gpus_per_host=1))


@contextlib.contextmanager
def locked_database(store: Store):
    """Every write waits until the block ends."""
    connection = sqlite3.connect(str(store.url.database), isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


async def pending_activities(platform: Platform, job_id: str) -> list[str]:
    description = await platform.workflow(job_id).describe()
    return [activity.activity_type.name for activity in description.raw_description.pending_activities]


async def has_heard(platform: Platform, job_id: str) -> bool:
    """Has its code run since the signal? Temporal writes one down that comes during a task once the task is done."""
    kinds = [event.event_type for event in (await platform.workflow(job_id).fetch_history()).events]
    signalled = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    return signalled in kinds and EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED in kinds[kinds.index(signalled) :]


async def test_before_and_during_place(temporal: Client, sqlite_store: Store, tmp_path: Path) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}, schedule=False) as platform:
        early = await platform.submit(SLEEP)
        await platform.signal(early, "cancel")
        waiting = await platform.submit(SLEEP)
        await eventually(lambda: waiting in [row.job_id for row in queue.read_queue(sqlite_store)], "the queue row")
        await platform.signal(waiting, "cancel")
        for job_id in (early, waiting):
            await platform.ends(job_id, JobState.CANCELLED)
        assert queue.read_queue(sqlite_store) == []
        await platform.nothing_leaked()


async def test_during_reserve(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reservation is a local step, of which Temporal knows nothing while it waits for the database."""
    monkeypatch.setattr(activities.first_places, "PATIENCE_S", 0.0)
    monkeypatch.setattr(first_places, "reserve_places", lambda _store, _decided, _now: {})
    reserve = reserving.reserve_gang
    began, locked, reserved = threading.Event(), threading.Event(), threading.Event()

    def reserve_when_locked(*args: Any, **options: Any) -> Reserved:
        began.set()
        assert locked.wait(20)
        taken = reserve(*args, **options)
        reserved.set()
        return taken

    monkeypatch.setattr(reserving, "reserve_gang", reserve_when_locked)
    job_id = await platform.submit(SLEEP.model_copy(update={"gpus": ResourceRequest(gpus_per_host=8)}))
    await eventually(began.is_set, "the reservation to begin")
    with locked_database(platform.store):
        locked.set()
        await platform.signal(job_id, "cancel")
        assert not reserved.is_set(), "the cancel came while the reservation waited"
    await platform.ends(job_id, JobState.CANCELLED)
    assert reserved.is_set()
    kinds = platform.kinds(job_id)
    assert kinds.index("gang.reserved") < kinds.index("gang.released"), "what it took is given back"
    assert "job.running" not in kinds
    await platform.nothing_leaked()


async def test_while_the_leader_reserves_its_first_place(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow does not know yet that it holds GPUs."""
    monkeypatch.setattr(activities.first_places, "PATIENCE_S", 20.0)
    reserve = first_places.reserve_places
    began, go_on, reserved = threading.Event(), threading.Event(), threading.Event()

    def reserve_when_allowed(*args: Any) -> Any:
        began.set()
        assert go_on.wait(20)
        refused = reserve(*args)
        reserved.set()
        return refused

    monkeypatch.setattr(first_places, "reserve_places", reserve_when_allowed)
    job_id = await platform.submit(SLEEP)
    await eventually(began.is_set, "the reservation to begin")
    await platform.signal(job_id, "cancel")
    assert not reserved.is_set(), "the cancel came while the leader reserved"
    go_on.set()
    await platform.ends(job_id, JobState.CANCELLED)
    kinds = platform.kinds(job_id)
    assert kinds.index("gang.reserved") < kinds.index("gang.released"), "what it took is given back"
    assert "job.running" not in kinds
    await platform.nothing_leaked()


async def test_during_prepare_of_a_gang(temporal: Client, sqlite_store: Store, tmp_path: Path) -> None:
    machines = {"a": "dgx-h100", "b": "dgx-h100"}
    async with Platform.start(temporal, sqlite_store, tmp_path, machines, silent={"b"}) as platform:
        job_id = await platform.submit(SLEEP.model_copy(update={"gpus": ResourceRequest(hosts=2, gpus_per_host=8)}))

        async def only_b_is_missing() -> bool:
            return await pending_activities(platform, job_id) == ["prepare_host"]

        await eventually(only_b_is_missing, "host a to be prepared and b to wait")
        await platform.signal(job_id, "cancel")
        await eventually(lambda: has_heard(platform, job_id), "the workflow to hear of the cancel")
        assert not (await platform.workflow(job_id).describe()).close_time, "it waits for b"
        async with platform.listening("b"):
            await platform.ends(job_id, JobState.CANCELLED)
            await platform.nothing_leaked()


async def test_during_launch(temporal: Client, sqlite_store: Store, tmp_path: Path) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}, silent={"a"}) as platform:
        job_id = await platform.submit(SLEEP)

        async def launching() -> bool:
            return "launch_ranks" in await pending_activities(platform, job_id)

        await eventually(launching, "the launch to wait for the host")
        await platform.signal(job_id, "cancel")
        await eventually(lambda: has_heard(platform, job_id), "the workflow to hear of the cancel")
        async with platform.listening("a"):
            await platform.ends(job_id, JobState.CANCELLED)
            await platform.nothing_leaked()


async def test_during_watch(platform: Platform) -> None:
    job_id = await platform.submit(SLEEP)
    await platform.reaches(job_id, JobState.RUNNING)
    await platform.signal(job_id, "cancel")
    await platform.ends(job_id, JobState.CANCELLED)
    await platform.nothing_leaked()


async def test_during_retry(platform: Platform) -> None:
    job_id = await platform.submit(JobSpec(command=["false"], max_retries=100, gpus=ResourceRequest(gpus_per_host=1)))
    await eventually(lambda: platform.job(job_id).user_retries >= 2, "two retries", within_s=60)
    await platform.signal(job_id, "cancel")
    await platform.ends(job_id, JobState.CANCELLED)
    await platform.nothing_leaked()


@pytest.mark.long
@pytest.mark.parametrize("verb", ["cancel", "kill"])
async def test_at_many_moments(platform: Platform, verb: str) -> None:
    """Twelve jobs, each stopped a little later in its life than the one before."""

    async def one(delay_ms: int) -> str:
        job_id = await platform.submit(SLEEP)
        await asyncio.sleep(delay_ms / 1000)
        await platform.signal(job_id, verb)
        return job_id

    job_ids = await asyncio.gather(*[one(12 * step) for step in range(12)])
    for job_id in job_ids:
        await platform.ends(job_id, JobState.CANCELLED, within_s=40)
    await platform.nothing_leaked()
