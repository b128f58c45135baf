"""The clock by which windows begin: what a date that jumps is worth, with and without a database on another machine."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import pytest

from gpu_platform.domain.windows import WindowRequest
from gpu_platform.store import Store, windows
from gpu_platform.store.leadership import leader
from tests.support.store_cluster import NOW, Cluster
from workers.scheduler.window_clock import WindowClock
from workers.scheduler.window_keeper import WindowKeeper

HOUR = 3600.0


@dataclass
class Machines:
    """Clocks of two machines, or of one. ``passed``: real seconds; ``ours`` and ``theirs``: how wrong the dates are."""

    passed: float = 0.0
    ours: float = 0.0
    theirs: float | None = 0.0

    def clock(self) -> WindowClock:
        return WindowClock(self.database, lambda: NOW.timestamp() + self.passed + self.ours, lambda: self.passed)

    def database(self) -> float | None:
        # ``compare`` asks at the real time: what it gets here is as far from that as the clocks are from each other.
        return None if self.theirs is None else time.time() + self.theirs - self.ours


def told(clock: WindowClock, machines: Machines) -> float:
    """Return how far the clock is from the real time of this test."""
    return clock() - NOW.timestamp() - machines.passed


@pytest.mark.parametrize(
    ("began", "then", "expected"),
    [
        (Machines(theirs=None), {"ours": 5 * HOUR}, 0.0),  # nobody else knows what time it is
        (Machines(theirs=0.0), {"ours": 5 * HOUR}, 0.0),  # the database's machine does
        (Machines(theirs=0.0), {"ours": 5 * HOUR, "theirs": 5 * HOUR}, 0.0),  # it is the same machine
        (Machines(ours=-HOUR, theirs=0.0), {"ours": 0.0}, 0.0),  # ours was behind, and was corrected
        (Machines(ours=-HOUR, theirs=None), {"ours": 0.0}, -HOUR),  # nobody can know that
        (Machines(ours=HOUR, theirs=0.0), {}, 0.0),  # ours was ahead when the leader began
        (Machines(theirs=None), {"ours": -HOUR}, -HOUR),  # set back: no window begins early by that
        (Machines(theirs=None), {"ours": 1.0}, 1.0),  # NTP
    ],
)
def test_a_date_that_jumps_forward_is_believed_only_if_the_database_says_so(
    began: Machines, then: dict[str, float], expected: float
) -> None:
    machines = replace(began)
    clock = machines.clock()
    clock()
    machines.passed = 60.0
    for name, value in then.items():
        setattr(machines, name, value)
    assert told(clock, machines) == pytest.approx(expected, abs=1.0)
    machines.passed = 600.0
    assert told(clock, machines) == pytest.approx(expected, abs=1.0)


def test_a_date_that_is_set_back_and_forth_is_believed_again() -> None:
    machines = Machines(theirs=None)
    clock = machines.clock()
    for ours, expected in ((0.0, 0.0), (-HOUR, -HOUR), (0.0, 0.0), (HOUR, 0.0), (0.0, 0.0)):
        machines.ours = ours
        assert told(clock, machines) == expected


def test_no_window_begins_and_no_job_is_stopped_because_the_date_jumped(sqlite_store: Store) -> None:
    Cluster(sqlite_store).host("a", gpus=1)
    epoch = leader.begin_epoch(sqlite_store, "me", NOW)
    asked = {"name": "w", "maintenance": True, "hosts": ["a"], "duration_s": 600}
    windows.create(
        sqlite_store, WindowRequest.model_validate(asked | {"start_at": NOW.replace(hour=NOW.hour + 1)}), "op", NOW
    )
    machines = Machines(theirs=None)
    keeper = WindowKeeper(sqlite_store, epoch, machines.clock())
    assert not keeper.look(windows.read_rows(sqlite_store))
    machines.ours = 24 * HOUR
    assert not keeper.look(windows.read_rows(sqlite_store))
    machines.passed = windows.read_rows(sqlite_store)[0].start - NOW.timestamp()
    assert keeper.look(windows.read_rows(sqlite_store)), "it begins after that time has really passed"
    assert windows.read_rows(sqlite_store)[0].is_open
