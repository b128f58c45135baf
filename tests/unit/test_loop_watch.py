"""A loop that stands still is said, with the place where it does."""

from __future__ import annotations

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from gpu_platform import loop_watch
from gpu_platform.loop_watch import watch_loop
from tests.support.waiting import eventually


async def test_a_loop_that_stands_still_is_said_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "LOOK_S", 0.05)
    monkeypatch.setattr(loop_watch, "STANDS_STILL_S", 0.3)
    with capture_logs() as lines:
        loop_watch._watch.cache_clear()
        watch_loop("main")
        await asyncio.sleep(0.2)
        time.sleep(1.5)  # noqa: ASYNC251  # the fault
        await eventually(lambda: any(line["event"] == "loop.goes_on" for line in lines), "it to go on")
    [said] = [line for line in lines if line["event"] == "loop.stands_still"]
    assert said["loop"] == "main"
    assert "time.sleep(1.5)" in said["stack"]
