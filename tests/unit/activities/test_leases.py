"""Silent hosts, and only they, are lost: whatever is done to the clocks, and whoever was away meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.leases import LONGEST_LOOK_S, LeaseWatch
from gpu_platform.age_clock import AgeClock
from gpu_platform.store import Store, hosts
from tests.settable_clock import SettableClock
from tests.store_cluster import Cluster

TTL_S = 10.0
ROUND_S = 1.0


class Watched:
    """Hosts that report to a real store by the date, and a leader that watches them by its steady clock."""

    def __init__(self, store: Store, *names: str) -> None:
        self.clock = SettableClock()
        self.cluster = Cluster(store)
        self.report(*names)
        self.new_leader()

    def new_leader(self) -> None:
        self.watch = LeaseWatch(TTL_S, self.clock.steady)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.wall(), UTC)

    def report(self, *names: str) -> None:
        for name in names:
            self.cluster.report(name, 1, now=self.now())

    def rounds(self, seconds: float, *reporting: str) -> list[str]:
        """Returns who was lost meanwhile."""
        lost: list[str] = []
        for _ in range(int(seconds / ROUND_S)):
            self.clock.pass_s(ROUND_S)
            self.report(*reporting)
            silent = self.watch.silent(hosts.read_leases(self.cluster.store))
            lost += [host.name for host in hosts.expire_leases(self.cluster.store, silent, self.now())]
        return lost


def test_a_silent_host_is_lost_after_its_ttl_and_no_other(store: Store) -> None:
    watched = Watched(store, "a", "b")
    assert watched.rounds(TTL_S, "a") == []
    assert watched.rounds(2 * ROUND_S, "a") == ["b"]
    assert watched.rounds(3 * TTL_S, "a") == [], "once"


@pytest.mark.parametrize("step", [3600.0, -3600.0, 30 * 86_400.0, -30 * 86_400.0])
def test_a_step_of_the_clock_loses_nobody_and_hides_nobody(store: Store, step: float) -> None:
    watched = Watched(store, "a", "b")
    assert watched.rounds(5, "a", "b") == []
    watched.clock.set_by(step)
    assert watched.rounds(TTL_S - ROUND_S, "a") == []
    assert watched.rounds(ROUND_S, "a") == ["b"], "no later than without the step"


def test_under_a_new_leader_every_host_has_a_whole_ttl(store: Store) -> None:
    """The control plane was away for an hour, and the hosts could not report."""
    watched = Watched(store, "a", "b")
    watched.clock.pass_s(3600)
    watched.new_leader()
    assert watched.rounds(TTL_S - ROUND_S) == []
    watched.report("a")
    assert watched.rounds(4 * ROUND_S) == ["b"]


def test_time_in_which_nobody_looked_is_not_held_against_the_hosts(store: Store) -> None:
    """The leader was frozen, or the database away: nobody could report either."""
    watched = Watched(store, "a")
    watched.rounds(1, "a")
    watched.clock.pass_s(600)
    assert watched.rounds(TTL_S - LONGEST_LOOK_S) == []
    assert watched.rounds(LONGEST_LOOK_S) == ["a"]


def test_a_host_that_was_lost_and_came_back_has_a_whole_ttl_again(store: Store) -> None:
    watched = Watched(store, "a")
    assert watched.rounds(2 * TTL_S) == ["a"]
    watched.report("a")
    assert watched.rounds(TTL_S) == []
    assert watched.rounds(2 * ROUND_S) == ["a"]


START = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.lists(st.tuples(st.booleans(), st.floats(-1e6, 1e6)), max_size=60))
def test_lost_means_a_ttl_without_a_report(rounds: list[tuple[bool, float]]) -> None:
    """Each round the host reports or not, and the service's clock is set to anything."""
    clock = SettableClock()
    watch = LeaseWatch(TTL_S, clock.steady)
    lease, last_s = START, clock.steady()
    watch.silent({"a": lease})
    for reports, instant in rounds:
        clock.pass_s(ROUND_S)
        if reports and (told := START + timedelta(seconds=instant)) != lease:
            lease, last_s = told, clock.steady()
        assert bool(watch.silent({"a": lease})) == (clock.steady() - last_s >= TTL_S)


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(-1e6, 1e6)), max_size=20))
def test_nothing_gets_older_than_the_time_that_passed(steps: list[tuple[float, float]]) -> None:
    clock = SettableClock()
    ages = AgeClock(clock.wall, clock.steady)
    began = clock.wall()
    passed = 0.0
    for seconds, set_by in steps:
        clock.pass_s(seconds)
        clock.set_by(set_by)
        passed += seconds
        assert ages() <= began + passed + 1e-3
        assert ages() <= clock.wall()
