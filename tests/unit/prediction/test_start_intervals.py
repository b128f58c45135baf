"""Intervals of estimated starts: learned from what came, and from what did not come in time."""

from __future__ import annotations

import random

import pytest

from gpu_platform.prediction.start_intervals import APART, ASSUMED, FEWEST, WINDOW, StartIntervals

HOUR = 3600.0


def wait(intervals: StartIntervals, name: str, now: float, estimated_s: float, real_s: float) -> bool:
    """Tell one job an estimate, and let it start. Return whether it started within its interval."""
    low, high = intervals.between(now, now + estimated_s)
    intervals.told(name, now, now + estimated_s)
    intervals.pass_time(now + real_s)
    intervals.started(name, now + real_s)
    return low <= now + real_s <= high


@pytest.mark.parametrize(("bias", "spread"), [(1.0, 0.1), (1.0, 1.0), (2.5, 0.3), (0.5, 0.3)])
def test_eighty_percent_start_within_their_intervals_however_far_estimates_are_off(bias: float, spread: float) -> None:
    rng, intervals, now, held = random.Random(5), StartIntervals(), 0.0, list[bool]()
    for number in range(1500):
        estimated_s = rng.choice((600.0, 4 * HOUR))
        held.append(wait(intervals, f"j{number}", now, estimated_s, estimated_s * bias * rng.lognormvariate(0, spread)))
        now += 10 * HOUR
    later = held[500:]
    assert 0.75 <= sum(later) / len(later) <= (0.93 if spread < 0.2 or bias != 1.0 else 0.87)


def test_as_long_as_nothing_was_learned_the_interval_is_about_a_factor_of_two_each_way() -> None:
    low, high = StartIntervals().between(1000.0, 1000.0 + HOUR)
    assert HOUR / 2.6 < low - 1000.0 < HOUR / 2
    assert 2 * HOUR < high - 1000.0 < 2.6 * HOUR


def test_the_estimate_is_in_its_interval_and_nothing_in_it_has_passed() -> None:
    intervals = StartIntervals()
    for number in range(200):
        wait(intervals, f"j{number}", number * 1e6, HOUR, 3 * HOUR)
    low, high = intervals.between(0.0, HOUR)
    assert low <= HOUR < 2.8 * HOUR < high
    assert intervals.between(50.0, 50.0)[0] == 50.0


def test_who_still_waits_after_the_interval_counts_before_it_starts() -> None:
    intervals, now = StartIntervals(), 0.0
    before = intervals.between(0.0, HOUR)[1]
    for number in range(2 * FEWEST):
        now = number * 1.01 * APART * HOUR
        intervals.told(f"j{number}", now, now + HOUR)
    now += 10 * HOUR
    intervals.pass_time(now)
    learned = intervals.between(now, now + HOUR)[1] - now
    assert learned > before, "none has started, but all are late"
    for number in range(2 * FEWEST):
        intervals.started(f"j{number}", now)
    assert intervals.between(now, now + HOUR)[1] - now > learned, "how late they are is known now"
    assert {len(values) for values in intervals.learned().values()} == {2 * FEWEST}, "each counts once"


def test_of_jobs_that_wait_for_the_same_one_counts() -> None:
    intervals = StartIntervals()
    for number in range(WINDOW):
        intervals.told(f"j{number}", 0.01 * number, HOUR)
    for number in range(WINDOW):
        intervals.started(f"j{number}", 5.0)
    assert [len(values) for values in intervals.learned().values()] == [1, 1]


def test_only_the_first_estimate_of_a_wait_counts_and_none_of_a_job_that_leaves() -> None:
    intervals = StartIntervals()
    intervals.told("a", 0.0, HOUR)
    intervals.told("a", 1800.0, 1900.0)
    intervals.told("b", 900.0, 900.0 + HOUR)
    intervals.left("b")
    intervals.started("a", HOUR)
    intervals.started("b", HOUR)
    intervals.pass_time(1e9)
    assert intervals.learned()[-1] == [0.0]


def test_what_was_learned_goes_on_in_another() -> None:
    first, second = StartIntervals(), StartIntervals()
    for number in range(3 * WINDOW):
        wait(first, f"j{number}", number * 1e6, HOUR, (1.0 + number % 3) * HOUR)
    second.restore(first.learned())
    assert second.between(0.0, HOUR) == first.between(0.0, HOUR) != StartIntervals().between(0.0, HOUR)
    assert max(len(values) for values in second.learned().values()) == WINDOW
    assert ASSUMED < WINDOW
