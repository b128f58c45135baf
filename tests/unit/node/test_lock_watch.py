"""Whoever waits for a lock is told when it is free, however its holder went."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpu_platform.node.system import lock_watch, records
from gpu_platform.node.system.lock_watch import wait_released

pytestmark = pytest.mark.processes

HOLDER = """
import sys
from gpu_platform.node.system import records
assert records.take_lock(sys.argv[1]) is not None
print("taken", flush=True)
sys.stdin.read()
"""
PATIENCE_S = 5.0


def holder(directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "taken\n"
    return process


async def is_waiting(task: asyncio.Task[None]) -> bool:
    await asyncio.wait([task], timeout=0.05)
    return not task.done()


async def test_nobody_holds_it(tmp_path: Path) -> None:
    await asyncio.wait_for(wait_released(str(tmp_path)), PATIENCE_S)
    (tmp_path / records.LOCK).touch()
    await asyncio.wait_for(wait_released(str(tmp_path)), PATIENCE_S)
    await asyncio.wait_for(wait_released(str(tmp_path / "none")), PATIENCE_S)


async def test_a_holder_that_releases_it_and_lives_on(tmp_path: Path) -> None:
    lock = records.take_lock(str(tmp_path))
    assert lock is not None
    waits = [asyncio.create_task(wait_released(str(tmp_path))) for _ in range(3)]
    assert all([await is_waiting(wait) for wait in waits])
    records.release_lock(lock)
    os.close(lock)
    await asyncio.wait_for(asyncio.gather(*waits), PATIENCE_S)


@pytest.mark.parametrize("watches", [True, False])
async def test_a_holder_that_is_killed(tmp_path: Path, watches: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not watches:  # as where the kernel has no more of them
        monkeypatch.setattr(lock_watch._CLOSES, "next_close", lambda path: None)
    for _ in range(10 if watches else 1):
        process = holder(tmp_path)
        wait = asyncio.create_task(wait_released(str(tmp_path)))
        assert await is_waiting(wait)
        process.kill()
        await asyncio.wait_for(wait, PATIENCE_S)
        process.communicate()


async def test_another_one_who_asks_for_the_lock_wakes_nobody(tmp_path: Path) -> None:
    process = holder(tmp_path)
    wait = asyncio.create_task(wait_released(str(tmp_path)))
    assert await is_waiting(wait)
    assert records.take_lock(str(tmp_path)) is None  # opens the file for writing, and closes it
    before = time.process_time()
    assert await is_waiting(wait)
    await asyncio.wait([wait], timeout=0.5)
    assert time.process_time() - before < 0.1, "it looks again and again"
    process.communicate("")
    await asyncio.wait_for(wait, PATIENCE_S)


async def test_two_event_loops_wait_at_once(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    holders = [holder(one), holder(two)]
    here = asyncio.create_task(wait_released(str(one)))
    elsewhere = asyncio.create_task(asyncio.to_thread(asyncio.run, wait_released(str(two))))
    assert await is_waiting(here)
    assert await is_waiting(elsewhere)
    for process in holders:
        process.communicate("")
    await asyncio.wait_for(asyncio.gather(here, elsewhere), PATIENCE_S)


async def test_a_wait_that_is_cancelled_leaves_no_watch(tmp_path: Path) -> None:
    lock = records.take_lock(str(tmp_path))
    assert lock is not None
    wait = asyncio.create_task(wait_released(str(tmp_path)))
    assert await is_waiting(wait)
    wait.cancel()
    await asyncio.gather(wait, return_exceptions=True)
    assert not lock_watch._CLOSES._watch_of
    assert not lock_watch._CLOSES._waits_in
    os.close(lock)
