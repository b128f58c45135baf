"""When an attempt counts as hanging or idle, and when it must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.node.accounting.counters import Counters
from gpu_platform.node.accounting.watchdog import Stall, Watchdog

STILL = Counters(cpu_s=5.0, memory_bytes=1 << 30, io_bytes=1000, output_bytes=10)


def look_for(dog: Watchdog, seconds: int, counters: Counters = STILL, *, busy_at: float = 0.0) -> list[Stall]:
    """One look a second with unchanged counters."""
    return [kind for second in range(seconds) for kind in dog.look(second, {0: counters}, busy_at, busy_at)]


def test_a_job_without_any_progress_hangs_after_its_limit_and_that_is_told_once() -> None:
    dog = Watchdog(hang_limit_s=30, idle_limit_s=None)
    assert look_for(dog, 30) == []
    assert dog.look(30, {0: STILL}, 0, 0) == {Stall.HANGS: 30}
    assert dog.look(31, {0: STILL}, 0, 0) == {}


@pytest.mark.parametrize("field", ["cpu_s", "io_bytes", "output_bytes"])
def test_any_counter_of_any_rank_that_moves_is_progress(field: str) -> None:
    dog = Watchdog(hang_limit_s=30, idle_limit_s=None)
    step = {"cpu_s": 0.5, "io_bytes": 1 << 20, "output_bytes": 1}[field]
    for second in range(100):
        moving = STILL._replace(**{field: getattr(STILL, field) + second * step})
        assert dog.look(second, {0: STILL, 1: moving}, 0, 0) == {}


def test_threads_that_only_wake_up_to_look_are_no_progress() -> None:
    dog = Watchdog(hang_limit_s=30, idle_limit_s=None)
    found = [
        kind
        for second in range(31)
        for kind in dog.look(second, {0: STILL._replace(cpu_s=second * 0.005, io_bytes=second * 100)}, 0, 0)
    ]
    assert found == [Stall.HANGS]


def test_a_gpu_that_works_or_whose_memory_changes_is_progress() -> None:
    dog = Watchdog(hang_limit_s=30, idle_limit_s=None)
    assert all(dog.look(second, {0: STILL}, 0, second) == {} for second in range(100))


def test_idle_gpus_are_warned_of_at_half_and_ended_at_the_limit_whatever_the_cpus_do() -> None:
    dog = Watchdog(hang_limit_s=None, idle_limit_s=20)
    told = {}
    for second in range(30):
        working = STILL._replace(cpu_s=float(second))
        for kind, seconds in dog.look(second, {0: working}, 0, 0).items():
            told[kind] = seconds
    assert told == {Stall.IDLE_WARNING: 10, Stall.IDLES: 20}


def test_a_warning_is_repeated_for_the_next_idle_time() -> None:
    dog = Watchdog(hang_limit_s=None, idle_limit_s=20)
    assert look_for(dog, 12) == [Stall.IDLE_WARNING]
    assert dog.look(13, {0: STILL}, 13, 13) == {}
    assert [kind for second in range(14, 30) for kind in dog.look(second, {0: STILL}, 13, 13)] == [Stall.IDLE_WARNING]


def test_nothing_is_judged_before_a_rank_lives() -> None:
    dog = Watchdog(hang_limit_s=5, idle_limit_s=5)
    assert all(dog.look(second, {}, 0, 0) == {} for second in range(50))
    assert all(dog.look(second, {0: STILL}, 0, 0) == {} for second in range(50, 52))


@given(
    limit=st.integers(5, 50),
    moves=st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), min_size=1, max_size=120),
)
def test_it_hangs_exactly_when_neither_gpu_nor_rank_moved_for_the_limit(
    limit: int, moves: list[tuple[int, bool, bool]]
) -> None:
    """``moves``: (seconds since the last look, did a rank compute in them, did a GPU?)."""
    dog = Watchdog(hang_limit_s=limit, idle_limit_s=None)
    dog.look(100, {0: STILL}, 0, 0)
    now, cpu_s, gpu_at, moved_at, hangs = 100, 5.0, 0, 100, False
    for seconds, rank_moves, gpu_moves in moves:
        now += seconds
        if rank_moves:
            cpu_s += seconds
        if gpu_moves:
            gpu_at = now
        if rank_moves or gpu_moves:
            moved_at = now
        found = dog.look(now, {0: STILL._replace(cpu_s=cpu_s)}, gpu_at, gpu_at)
        assert (Stall.HANGS in found) == (now - moved_at >= limit and not hangs)
        hangs = hangs or Stall.HANGS in found
