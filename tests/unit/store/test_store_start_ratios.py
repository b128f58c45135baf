"""What a leader learned from estimated starts, in the database."""

from __future__ import annotations

from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.store import Store
from gpu_platform.store.leadership import leader
from tests.support.store_cluster import NOW
from workers.scheduler.start_ratios import KEEP_AGAIN_S, StartRatios

HOUR = 3600.0


def learning(core: Scheduler, jobs: int) -> Scheduler:
    for number in range(jobs):
        core.intervals.told(f"j{number}", number * 1e6, number * 1e6 + HOUR)
        core.intervals.started(f"j{number}", number * 1e6 + 3 * HOUR)
    return core


def test_a_new_leader_goes_on_with_what_the_old_one_learned(store: Store) -> None:
    old = learning(Scheduler(), 50)
    first = StartRatios(store, leader.begin_epoch(store, "old", NOW))
    first.teach(Scheduler())
    first.keep(old, now=1.0)
    new = Scheduler()
    StartRatios(store, leader.begin_epoch(store, "new", NOW)).teach(new)
    low, high = new.intervals.between(0.0, HOUR)
    assert (round(low), round(high)) == tuple(round(at) for at in old.intervals.between(0.0, HOUR))
    assert high > Scheduler().intervals.between(0.0, HOUR)[1]


def test_ratios_are_written_once_a_minute_and_by_the_leader_only(store: Store) -> None:
    ratios = StartRatios(store, leader.begin_epoch(store, "old", NOW))
    core = learning(Scheduler(), 5)
    ratios.keep(core, now=1.0)
    written = leader.start_ratios(store)
    assert {len(values) for values in written.values()} == {5}
    learning(core, 8)
    ratios.keep(core, now=KEEP_AGAIN_S)
    assert leader.start_ratios(store) == written
    ratios.keep(core, now=1.0 + KEEP_AGAIN_S)
    assert leader.start_ratios(store) != written
    newer = leader.begin_epoch(store, "new", NOW)
    kept = leader.start_ratios(store)
    ratios.keep(learning(core, 9), now=1.0 + 2 * KEEP_AGAIN_S)
    assert leader.start_ratios(store) == kept
    assert leader.current_epoch(store) == newer
