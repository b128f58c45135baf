"""The database is restored to a point that knows nothing of an array, or of elements, and the array is too large to be
kept in Temporal: it ends and says why. Others are restored: ``test_restored_arrays.py``."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from activities.lost_arrays import ARRAY_LOST
from gpu_platform.domain.array_ids import element_id
from gpu_platform.domain.jobs.dependency import Dependency
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays
from tests.support.harness import Platform
from tests.support.older_database import replace_database
from tests.support.waiting import eventually


@pytest.fixture
async def platform(
    temporal: Client, sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Platform]:
    monkeypatch.setattr("gpu_platform.store.jobs.elements.LOST_AFTER_S", 1.0)
    monkeypatch.setattr("gpu_platform.domain.packing.MOST_PACKED", 0)
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


def waits_for(tmp_path: Path, **fields: object) -> JobSpec:
    script = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    gpus = ResourceRequest(gpus_per_host=1)
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": gpus, "grace_s": 1, **fields})


def copied(store: Store, to: Path) -> Path:
    live, copy = sqlite3.connect(store.url.database or ""), sqlite3.connect(to)
    live.backup(copy)
    for connection in (live, copy):
        connection.close()
    return to


async def lost(platform: Platform, array_id: str) -> str:
    """Why the workflow failed."""
    with pytest.raises(WorkflowFailureError) as failed:
        await asyncio.wait_for(platform.workflow(array_id).result(), 40)
    cause = failed.value.cause
    assert isinstance(cause, ApplicationError)
    assert cause.type == ARRAY_LOST
    return cause.message


@pytest.mark.long
async def test_an_array_without_a_row_ends_and_so_does_what_it_ran(
    platform: Platform, sqlite_template: Path, tmp_path: Path
) -> None:
    first = await platform.submit_array(waits_for(tmp_path), "0-3")
    second = await platform.submit_array(waits_for(tmp_path, after=(Dependency(job_id=first),)), "0-3")
    await platform.reaches_element(first, 3, JobState.RUNNING)
    await asyncio.to_thread(replace_database, platform.store, sqlite_template)
    await platform.nodes["a"].report()
    await platform.change_leader()
    await platform.workflow(first).signal("cancel", {"actor": "test"})
    await platform.workflow(second).signal("look_again")
    for array_id in (first, second):
        assert "The database was restored to an older point" in await lost(platform, array_id)
    node = platform.nodes["a"]

    async def no_rank_is_left() -> bool:
        await node.report()
        return not node.worker.attempts()

    await eventually(no_rank_is_left, "its ranks to be stopped", within_s=90)
    await platform.nothing_leaked()


@pytest.mark.long
async def test_an_array_whose_elements_are_missing_ends_and_its_row_says_why(
    platform: Platform, tmp_path: Path
) -> None:
    array_id = await platform.submit_array(waits_for(tmp_path), "0-39", at_once=8)
    await eventually(lambda: arrays.get_array(platform.store, array_id).state is ArrayState.RUNNING, "it to begin")
    await platform.reaches_element(array_id, 0, JobState.RUNNING)
    older = await asyncio.to_thread(copied, platform.store, tmp_path / "older.db")
    (tmp_path / "go").touch()
    await platform.ends_element(array_id, 39, JobState.COMPLETED, within_s=60)
    (tmp_path / "go").unlink()
    again = await platform.submit_array(waits_for(tmp_path), "0-3")
    await platform.reaches_element(again, 0, JobState.RUNNING)
    await asyncio.to_thread(replace_database, platform.store, older)
    await platform.nodes["a"].report()
    (tmp_path / "go").touch()
    assert "The database was restored to an older point" in await lost(platform, again)

    def ended() -> bool:
        return arrays.get_array(platform.store, array_id).state.is_terminal

    await eventually(ended, "the array to end", within_s=60)
    array = arrays.get_array(platform.store, array_id)
    assert array.state in (ArrayState.FAILED, ArrayState.CANCELLED)
    assert array.stopped_by is not None
    assert platform.job(element_id(array_id, 0)).state.is_terminal
