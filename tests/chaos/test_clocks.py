"""A process sees the clock that the test gives it; its neighbours and the kernel's timers keep the right one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.clocks import Clock, build_shim

PROGRAM = """
import sys, time
for line in sys.stdin:
    print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)
"""
SLACK_S = 2.0


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    clock = Clock(tmp_path / "clock")
    with clock.stepped(0.0):
        return clock


@pytest.fixture
def look(tmp_path: Path, clock: Clock) -> Iterator[Callable[[], list[float]]]:
    """What a process with that clock reads, less what this one reads: real time, monotonic, since boot."""
    shim = build_shim(tmp_path)
    if shim is None:
        pytest.skip("there is no C compiler here")
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(shim), "CHAOS_CLOCK": str(clock.path)},
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def look() -> list[float]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        ours = (time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))
        return [float(theirs) - own for theirs, own in zip(process.stdout.readline().split(), ours, strict=True)]

    yield look
    process.stdin.close()
    process.stdout.close()
    process.wait()


def test_a_step_changes_the_time_of_day_alone(clock: Clock, look: Callable[[], list[float]]) -> None:
    assert look() == pytest.approx([0, 0, 0], abs=SLACK_S)
    with clock.stepped(-3600.0):
        assert look() == pytest.approx([-3600, 0, 0], abs=SLACK_S)
    assert look() == pytest.approx([0, 0, 0], abs=SLACK_S)


def test_what_a_steady_clock_gains_it_keeps(clock: Clock, look: Callable[[], list[float]]) -> None:
    with clock.too_fast(100.0):
        time.sleep(0.3)
        before = look()
    after = look()
    assert before[0] == pytest.approx(0, abs=SLACK_S)
    assert before[1] > 25
    assert after[1] > 25
    assert after[1] == pytest.approx(clock.gained_s, abs=SLACK_S)
    assert look()[1] == pytest.approx(after[1], abs=SLACK_S), "it gains no more"
