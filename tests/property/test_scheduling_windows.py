"""Nobody runs in a window who may not, whatever happens in a small world. See ``tests/support/window_worlds.py``.

``WORLDS=2000 pytest tests/property/test_scheduling_windows.py`` looks at more of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.placing.window import WindowPlace, WindowRow
from gpu_platform.scheduling.cluster import windows as scheduling_windows
from gpu_platform.scheduling.cluster.windows import Windows
from gpu_platform.scheduling.preempting.window_clearing import WindowClearing
from tests.support.promise_worlds import Violation
from tests.support.window_worlds import play_windows

WORLDS = int(os.environ.get("WORLDS", "5"))
FIRST = int(os.environ.get("FIRST_WORLD", "0"))
NOTHING_TO_KEEP = (2, 27)
"""Worlds in which jobs were once promised a start in a window that was not for them."""

ROWS = st.builds(
    lambda start, lasts, period, more: WindowRow(
        "w",
        float(start),
        float(start + lasts),
        (WindowPlace("h"),),
        period_s=None if period is None else period,
        until=None if more is None else float(start + more),
    ),
    st.integers(0, 60),
    st.integers(1, 12),
    st.none() | st.sampled_from([14, 42]),
    st.none() | st.integers(1, 120),
)


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(FIRST, FIRST + WORLDS), *NOTHING_TO_KEEP])
def test_nobody_runs_in_a_window_who_may_not(seed: int) -> None:
    play_windows(seed)


FAULTS: dict[str, tuple[object, int, str]] = {
    "windows keep nobody out": (
        patch.object(Windows, "_closes", lambda self, window, row, now: False),
        0,
        "may run until",
    ),
    "graces do not count": (
        patch.object(scheduling_windows, "holds_at_most_s", lambda row: row.time_limit_s or math.inf),
        0,
        "may run until",
    ),
    "reservations are always open": (
        patch.object(Windows, "answer", lambda self, row: None),
        0,
        "without its reservation|may run until",
    ),
    "nobody is stopped when a window begins": (patch.object(WindowClearing, "due", lambda self: []), 0, "runs in"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """Else the worlds would prove nothing."""
    planted, first, words = FAULTS[fault]
    with planted, pytest.raises(Violation, match=words):  # type: ignore[attr-defined]
        play_until_it_fails(first)


def play_until_it_fails(first: int) -> None:
    for seed in range(first, first + 40):
        play_windows(seed)


@given(ROWS, ROWS)
def test_an_overlap_is_found_where_there_is_one(one: WindowRow, other: WindowRow) -> None:
    """Compared with looking at each second of a long time."""

    def is_on(row: WindowRow) -> Callable[[int], bool]:
        spans = [(float(one.start), float(one.end)) for one in _first(row, 400)]
        return lambda second: any(start <= second < end for start, end in spans)

    ours, theirs = is_on(one), is_on(other)
    found = next((second for second in range(400) if ours(second) and theirs(second)), None)
    assert one.overlap(other) == (None if found is None else float(found))
    assert other.overlap(one) == one.overlap(other)


@given(ROWS, st.integers(0, 300))
def test_the_occurrence_after_a_moment_is_the_first_that_has_not_ended(row: WindowRow, now: int) -> None:
    expected = next((one for one in _first(row, 600) if one.end > now), None)
    found = row.ending_after(float(now))
    assert (None if found is None else found.key) == (None if expected is None else expected.key)


def _first(row: WindowRow, until: int) -> list[WindowRow]:
    found = []
    for one in row.occurrences():
        if one.start > until:
            break
        found.append(one)
    return found
