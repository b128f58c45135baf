"""Our database is lost, or an older copy, while arrays run: rows and counts are restored from their workflows, and no
element runs twice."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays
from gpu_platform.store.leadership import leader
from gpu_platform.store.restoring.restored_arrays import array_states
from tests.support.harness import Platform
from tests.support.older_database import replace_database
from tests.support.waiting import eventually

SCRIPT = """
echo {index} {letter} >> DIR/starts
while [ ! -e DIR/go-{index} ] && [ ! -e DIR/go ]; do sleep 0.05; done
[ {index} != 2 ]
"""
LETTERS = {"letter": ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j")}


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


def spec(directory: Path) -> JobSpec:
    script = SCRIPT.replace("DIR", str(directory))
    gpus = ResourceRequest(gpus_per_host=1)
    return JobSpec(command=["/bin/sh", "-c", script], gpus=gpus, grace_s=1, max_retries=0)


def copied(store: Store, to: Path) -> Path:
    live, copy = sqlite3.connect(store.url.database or ""), sqlite3.connect(to)
    live.backup(copy)
    for connection in (live, copy):
        connection.close()
    return to


async def starts(directory: Path) -> list[str]:
    found = directory / "starts"
    return found.read_text().splitlines() if found.exists() else []


@pytest.mark.some(1)
@pytest.mark.parametrize("known", ["nothing", "that it was submitted", "its first elements"])
async def test_an_array_goes_on_where_it_was(
    platform: Platform, sqlite_template: Path, tmp_path: Path, known: str
) -> None:
    """Three elements have ended, one of them FAILED; four run, and three have not been made."""
    copy = sqlite_template
    array_id = await platform.submit_array(spec(tmp_path), "0-9", at_once=4, matrix=LETTERS)
    await eventually(lambda: arrays.get_array(platform.store, array_id).state is ArrayState.RUNNING, "it to begin")
    if known == "that it was submitted":
        copy = await asyncio.to_thread(copied, platform.store, tmp_path / "copy.db")
    for index in range(4):
        await platform.reaches_element(array_id, index, JobState.RUNNING)
    if known == "its first elements":
        copy = await asyncio.to_thread(copied, platform.store, tmp_path / "copy.db")
    for index in range(3):
        (tmp_path / f"go-{index}").touch()
        await platform.ends_element(array_id, index, JobState.FAILED if index == 2 else JobState.COMPLETED)
    for index in range(3, 7):
        await platform.reaches_element(array_id, index, JobState.RUNNING)
    before = {index: platform.job(element_id(array_id, index)).placement for index in range(3, 7)}

    await asyncio.to_thread(replace_database, platform.store, copy)
    # A leader began what the copy knows of, so only the host can tell that there was a later round.
    await platform.nodes["a"].report(round=leader.current_round(platform.store) + 60)
    await platform.change_leader()

    def restored() -> bool:
        if not array_states(platform.store, [array_id]):
            return False
        counts = arrays.get_array(platform.store, array_id).counts
        wanted = {JobState.COMPLETED: 2, JobState.FAILED: 1, JobState.RUNNING: 4, JobState.PENDING: 3}
        return {state: number for state, number in counts.items() if number} == wanted

    await eventually(restored, "the array with its counts")
    await platform.nodes["a"].report()
    assert {index: platform.job(element_id(array_id, index)).placement for index in range(3, 7)} == before
    assert platform.job(element_id(array_id, 5)).spec.command[2].splitlines()[1].startswith("echo 5 f")
    (tmp_path / "go").touch()
    array = await platform.array_ends(array_id, ArrayState.FAILED, within_s=60)
    assert {state: number for state, number in array.counts.items() if number} == {
        JobState.COMPLETED: 9,
        JobState.FAILED: 1,
    }
    assert Counter(await starts(tmp_path)) == {f"{index} {LETTERS['letter'][index]}": 1 for index in range(10)}
    await platform.nothing_leaked()


@pytest.mark.long
async def test_an_array_that_ended_since_the_copy_is_restored(
    platform: Platform, sqlite_template: Path, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    array_id = await platform.submit_array(spec(tmp_path), "0-5", matrix=LETTERS)
    await platform.array_ends(array_id, ArrayState.FAILED)

    async def listed() -> bool:
        query = f"WorkflowId = '{array_id}' AND ExecutionStatus != 'Running'"
        return (await platform.client.count_workflows(query)).count == 1

    await eventually(listed, "its workflow to be listed as closed")
    await asyncio.to_thread(replace_database, platform.store, sqlite_template)
    await platform.nodes["a"].report()
    await platform.change_leader()

    def there() -> bool:
        states = array_states(platform.store, [array_id])
        return states.get(array_id) is ArrayState.FAILED

    await eventually(there, "the array to be restored")
    counts = arrays.get_array(platform.store, array_id).counts
    assert {state: number for state, number in counts.items() if number} == {JobState.COMPLETED: 5, JobState.FAILED: 1}
    assert len(await starts(tmp_path)) == 6


@pytest.mark.long
async def test_counts_are_right_after_both_were_lost(platform: Platform, sqlite_template: Path, tmp_path: Path) -> None:
    """First Temporal forgets the array's workflow, and one takes over; then our database is lost."""
    array_id = await platform.submit_array(spec(tmp_path), "0-5", at_once=2, matrix=LETTERS)
    for index in range(2):
        (tmp_path / f"go-{index}").touch()
        await platform.ends_element(array_id, index, JobState.COMPLETED)
    for index in (2, 3):
        await platform.reaches_element(array_id, index, JobState.RUNNING)
    await platform.forgotten(array_id)

    async def taken_over() -> bool:
        try:
            return (await platform.workflow(array_id).query("status"))["position"] >= 4
        except Exception:
            return False

    await eventually(taken_over, "another workflow to take over", within_s=60)

    def again(index: int) -> bool:
        job = platform.job(element_id(array_id, index))
        return (job.state, job.attempt) == (JobState.RUNNING, 2)

    await eventually(lambda: again(2) and again(3), "its elements to run again", within_s=60)
    await asyncio.to_thread(replace_database, platform.store, sqlite_template)
    await platform.nodes["a"].report()
    await platform.change_leader()
    await eventually(lambda: array_states(platform.store, [array_id]), "the array's row")

    async def runs_again() -> bool:
        await platform.nodes["a"].report()
        return arrays.get_array(platform.store, array_id).count(JobState.RUNNING) == 2

    await eventually(runs_again, "what runs to be known")
    (tmp_path / "go").touch()
    array = await platform.array_ends(array_id, ArrayState.FAILED, within_s=90)
    assert {state: number for state, number in array.counts.items() if number} == {
        JobState.COMPLETED: 5,
        JobState.FAILED: 1,
    }
