"""Watches that nobody carries out: given to a node worker that was killed, or lost on their way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from pathlib import Path

import pytest
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.client import Client

from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.contracts import AttemptKey, elements_watch_id, watch_id
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store
from tests.support.harness import Platform
from tests.support.waiting import eventually
from workers.node.interrupted_watches import GRACE_S, InterruptedWatches

SLEEPER = JobSpec(command=["/bin/sh", "-c", "sleep 600"], gpus=ResourceRequest(gpus_per_host=1), grace_s=0.2)


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


async def watch_of(platform: Platform, workflow_id: str) -> PendingActivityInfo:
    """The watch of the job's first attempt, or of the array's elements, once it has been given to the host."""

    async def given() -> PendingActivityInfo | None:
        described = await platform.workflow(workflow_id).describe()
        pending = [
            one
            for one in described.raw_description.pending_activities
            if one.activity_type.name in ("watch_ranks", "watch_elements")
        ]
        return pending[0] if pending and pending[0].HasField("last_started_time") else None

    return await eventually(given, "the watch to be given to the host")


def watches(platform: Platform, watched: Collection[AttemptKey], now: list[float]) -> InterruptedWatches:
    return InterruptedWatches("a", platform.nodes["a"].worker.attempts, lambda: watched, clock=lambda: now[0])


async def test_a_watch_that_nobody_carries_out_is_given_to_the_host_again(platform: Platform) -> None:
    job = await platform.reaches(await platform.submit(SLEEPER), JobState.RUNNING)
    assert (await watch_of(platform, job.id)).activity_id == watch_id("a", 1)
    now = [0.0]
    lost = InterruptedWatches("a", list, set, clock=lambda: now[0])  # when it began, the attempt was not there
    lost._open_attempts = platform.nodes["a"].worker.attempts
    await lost.look(platform.client)
    now[0] = GRACE_S - 0.1
    await lost.look(platform.client)
    assert (await watch_of(platform, job.id)).attempt == 1, "it may still be on its way"
    now[0] = GRACE_S
    await lost.look(platform.client)

    async def again() -> bool:
        return (await watch_of(platform, job.id)).attempt == 2

    await eventually(again, "Temporal to give the watch once more", within_s=10)
    assert platform.job(job.id).attempt == 1, "the job does not notice"
    await platform.signal(job.id, "kill")
    await platform.ends(job.id, JobState.CANCELLED)


async def test_a_watch_that_is_carried_out_is_left_alone(platform: Platform) -> None:
    job = await platform.reaches(await platform.submit(SLEEPER), JobState.RUNNING)
    await watch_of(platform, job.id)
    worker = platform.nodes["a"].worker
    keys = [AttemptKey(job_id=job.id, attempt=1)]
    await eventually(lambda: list(worker.watched()) == keys, "the watch to begin on its host")
    now = [0.0]
    own = watches(platform, worker.watched(), now)
    await own.look(platform.client)
    now[0] = 10 * GRACE_S
    await own.look(platform.client)
    assert (await watch_of(platform, job.id)).attempt == 1
    await platform.signal(job.id, "kill")
    await platform.ends(job.id, JobState.CANCELLED)
    assert not worker.watched()


async def test_a_watch_of_an_attempt_that_has_ended_meanwhile_is_given_to_the_host_again(platform: Platform) -> None:
    """Its lease has ended while the node worker was away: the ranks are gone, and nobody tells the workflow."""
    job = await platform.reaches(await platform.submit(SLEEPER), JobState.RUNNING)
    await watch_of(platform, job.id)
    key = AttemptKey(job_id=job.id, attempt=1)
    known = [key]
    lost = InterruptedWatches("a", lambda: list(known), set)
    known.clear()
    await lost.look(platform.client)

    async def again() -> bool:
        return (await watch_of(platform, job.id)).attempt == 2

    await eventually(again, "Temporal to give the watch once more", within_s=10)
    assert not lost._due, "Temporal was told"
    await platform.signal(job.id, "kill")
    await platform.ends(job.id, JobState.CANCELLED)


async def test_a_watch_of_elements_is_given_to_the_host_again(platform: Platform) -> None:
    array_id = await platform.submit_array(SLEEPER, "0-2")
    for index in range(3):
        await platform.reaches_element(array_id, index, JobState.RUNNING)
    keys = [AttemptKey(job_id=element_id(array_id, index), attempt=1) for index in range(3)]
    watch = await watch_of(platform, array_id)
    assert watch.activity_id in {elements_watch_id("a", key) for key in keys}  # that of the first to be launched
    assert watch.activity_id.startswith("watch-a-1:")
    now = [0.0]
    lost = watches(platform, set(), now)
    now[0] = GRACE_S
    await lost.look(platform.client)

    async def again() -> bool:
        return (await watch_of(platform, array_id)).attempt == 2

    await eventually(again, "Temporal to give the watch once more", within_s=10)
    assert all(platform.job(element_id(array_id, index)).attempt == 1 for index in range(3))
    await platform.signal(array_id, "kill")
    await platform.array_ends(array_id, ArrayState.CANCELLED)


async def test_an_end_that_the_process_before_did_not_tell_is_told_at_once(platform: Platform) -> None:
    """The node worker was killed after the attempt had ended, and before Temporal had its result."""
    job = await platform.reaches(await platform.submit(SLEEPER), JobState.RUNNING)
    await watch_of(platform, job.id)
    key = AttemptKey(job_id=job.id, attempt=1)
    worker = platform.nodes["a"].worker
    assert worker.finished_lately(60) == []
    ended = InterruptedWatches("a", list, set, [key], clock=lambda: 0.0)
    await ended.look(platform.client)

    async def again() -> bool:
        return (await watch_of(platform, job.id)).attempt == 2

    await eventually(again, "Temporal to give the watch once more", within_s=10)
    assert ended._due == {}, "it is told once"
    await platform.signal(job.id, "kill")
    await platform.ends(job.id, JobState.CANCELLED)
    assert worker.finished_lately(60) == [key]
    assert worker.finished_lately(-1) == []
