"""Silent hosts, and only they, are lost: whatever is done to the clocks, and whoever was away meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import update

from gpu_platform.age_clock import AgeClock
from gpu_platform.domain.errors import StaleReport
from gpu_platform.domain.hosts.lease_protocol import RESTART_LEASE_S, LeaseTimes
from gpu_platform.store import Store, events
from gpu_platform.store.leadership import leader, leases
from gpu_platform.store.models import leader as leader_table
from gpu_platform.store.restoring import restoring
from tests.support.settable_clock import SettableClock
from tests.support.store_cluster import NOW, Cluster
from workers.scheduler.leases import LONGEST_LOOK_S, LeaseWatch

TTL_S = 10.0
ROUND_S = 1.0
LOST_AFTER_S = TTL_S + LeaseTimes.of(TTL_S).kill_s


class Watched:
    """Hosts that report to a real store by the date, and a leader that watches them by its steady clock."""

    def __init__(self, store: Store, *names: str) -> None:
        self.clock = SettableClock()
        self.cluster = Cluster(store)
        self._rounds = dict.fromkeys(names, 0)
        self._versions = dict.fromkeys(names, 0)
        self._seq = 0
        leader.begin_epoch(store, "test", NOW)
        self.report(*names)
        self.new_leader()

    def new_leader(self) -> None:
        self.watch = LeaseWatch(self.cluster.store, TTL_S, self.clock.steady)

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.clock.wall(), UTC)

    def report(self, *names: str, voted: bool = False) -> None:
        for name in names:
            self._seq += 1
            answer = self.cluster.report(
                name,
                1,
                now=self.now(),
                seq=self._seq,
                round=self._rounds[name],
                members_version=self._versions[name],
                voted=voted,
            )
            self._rounds[name], self._versions[name] = answer.round, answer.members_version

    def rounds(self, seconds: float, *reporting: str, voted: bool = False) -> list[str]:
        """Returns who was lost meanwhile."""
        lost: list[str] = []
        for _ in range(int(seconds / ROUND_S)):
            self.clock.pass_s(ROUND_S)
            self.report(*reporting, voted=voted)
            lost += [host.name for host in self.watch.look(self.now())]
        return lost


def test_a_silent_host_is_lost_after_its_lease_and_no_other(store: Store) -> None:
    watched = Watched(store, "a", "b")
    assert watched.rounds(LOST_AFTER_S, "a") == []
    assert watched.rounds(2 * ROUND_S, "a") == ["b"]
    assert watched.rounds(3 * TTL_S, "a") == [], "once"


def test_an_older_database_may_not_know_of_the_lease_of_a_restart(store: Store) -> None:
    """Granted after the copy: its ranks live for as long as it lasts."""
    watched = Watched(store, "a", "b")
    restoring.note_older(store, watched.now())
    assert watched.rounds(RESTART_LEASE_S, "a") == []
    assert watched.rounds(LOST_AFTER_S - TTL_S + 2 * ROUND_S, "a") == ["b"]
    watched.report("b")
    assert watched.rounds(ROUND_S, "a", "b") == []
    assert watched.rounds(LOST_AFTER_S + 2 * ROUND_S, "a") == ["b"], "it has reported since"


@pytest.mark.parametrize("step", [3600.0, -3600.0, 30 * 86_400.0, -30 * 86_400.0])
def test_a_step_of_the_clock_loses_nobody_and_hides_nobody(store: Store, step: float) -> None:
    watched = Watched(store, "a", "b")
    assert watched.rounds(5, "a", "b") == []
    watched.clock.set_by(step)
    assert watched.rounds(LOST_AFTER_S - ROUND_S, "a") == []
    assert watched.rounds(ROUND_S, "a") == ["b"], "no later than without the step"


def test_under_a_new_leader_every_host_has_a_whole_lease(store: Store) -> None:
    """The control plane was away for an hour, and the hosts could not report."""
    watched = Watched(store, "a", "b")
    watched.clock.pass_s(3600)
    watched.new_leader()
    assert watched.rounds(LOST_AFTER_S - ROUND_S, "a") == []
    assert watched.rounds(2 * ROUND_S, "a") == ["b"]


def test_time_in_which_nobody_looked_is_not_held_against_the_hosts(store: Store) -> None:
    """The leader was frozen, or the database away: nobody could report either."""
    watched = Watched(store, "a", "b")
    watched.rounds(1, "a", "b")
    watched.clock.pass_s(600)
    assert watched.rounds(LOST_AFTER_S - LONGEST_LOOK_S, "a") == []
    assert watched.rounds(LONGEST_LOOK_S, "a") == ["b"]


def test_a_host_that_was_lost_and_came_back_has_a_whole_lease_again(store: Store) -> None:
    watched = Watched(store, "a", "b")
    watched.rounds(3, "a", "b")
    assert watched.rounds(2 * TTL_S, "b") == ["a"]
    watched.report("a")
    assert watched.rounds(LOST_AFTER_S, "b") == []
    assert watched.rounds(2 * ROUND_S, "b") == ["a"]


@pytest.mark.long
def test_no_verdict_while_less_than_half_is_heard_and_it_is_said(store: Store) -> None:
    """The service or the network is away, not the hosts."""
    watched = Watched(store, "a", "b", "c")
    watched.rounds(3, "a", "b", "c")
    assert watched.rounds(600, "a") == []
    held = leases.held_verdict(store)
    assert held is not None
    assert (held.silent, held.heard, held.members) == (["b", "c"], 1, 3)
    assert "hosts declare-lost" in held.message
    assert watched.rounds(3, "a", "b", "c") == []
    assert leases.held_verdict(store) is None
    kinds = [event.kind for event in events.read_events(store, 0) if event.kind.startswith("hosts.")]
    assert kinds == ["hosts.verdict_held", "hosts.verdict_resumed"]


def test_a_host_that_voted_is_not_heard(store: Store) -> None:
    """It has told another host that it does not reach the control plane: that one may let its ranks run on."""
    watched = Watched(store, "a", "b")
    watched.rounds(3, "a", "b")
    assert watched.rounds(60, "a", voted=True) == []
    assert watched.rounds(5, "a") == ["b"]


def test_a_host_whose_answers_are_lost_is_not_heard(store: Store) -> None:
    """Its reports arrive, but it does not know: it brings back no round."""
    watched = Watched(store, "a", "b")
    watched.rounds(3, "a", "b")
    watched._rounds = dict.fromkeys("ab", 1)
    for _ in range(60):
        watched.clock.pass_s(ROUND_S)
        watched.report("a")
        watched._rounds["a"] = 1
        assert watched.watch.look(watched.now()) == []


def test_members_are_those_that_are_not_lost(store: Store) -> None:
    """So that one host after the other can be lost."""
    watched = Watched(store, "a", "b", "c", "d")
    watched.rounds(3, "a", "b", "c", "d")
    assert watched.rounds(20, "a", "b", "c") == ["d"]
    assert watched.rounds(20, "a", "b") == ["c"]
    assert watched.rounds(20, "a") == ["b"]
    assert watched.rounds(60) == [], "the last one has nobody to say that it is not the leader who is cut off"


@pytest.mark.long
def test_a_list_of_members_that_a_silent_host_may_know_is_asked_too(store: Store) -> None:
    """Hosts that joined since cannot outvote those that the silent host would ask."""
    watched = Watched(store, "a", "b", "c")
    watched.rounds(3, "a", "b", "c")
    watched._rounds |= dict.fromkeys("xyz", 0)
    watched._versions |= dict.fromkeys("xyz", 0)
    assert watched.rounds(120, "c", "x", "y", "z") == [], "a and b are a majority of what they know"
    held = leases.held_verdict(store)
    assert held is not None
    assert held.silent == ["a", "b"]


def test_a_report_that_arrives_after_a_newer_one_is_refused(store: Store) -> None:
    watched = Watched(store, "a")
    watched.report("a")
    with pytest.raises(StaleReport):
        watched.cluster.report("a", 1, now=watched.now(), seq=1)


def test_a_planned_restart_has_a_longer_lease(store: Store) -> None:
    watched = Watched(store, "a", "b")
    watched.rounds(3, "a", "b")
    watched.cluster.report("b", 1, now=watched.now(), seq=1000, lease_s=60.0, round=watched._rounds["b"])
    assert watched.rounds(60, "a") == []
    assert watched.rounds(10, "a") == ["b"]


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


def test_a_host_that_knows_no_other_is_not_lost(store: Store) -> None:
    """It was answered once, when it was alone: its own vote is more than half of all members that it knows."""
    watched = Watched(store, "a", "b", "c")
    assert watched.rounds(3 * TTL_S, "b", "c") == []
    assert leases.held_verdict(store) is not None


def test_no_round_comes_twice_though_the_leader_finds_an_older_copy_of_the_database(store: Store) -> None:
    """Of the same epoch, so it goes on. Rounds are faster than the clock here, so the date alone does not help."""
    watched = Watched(store, "a")
    rounds: list[int] = []

    def look() -> None:
        watched.watch.look(NOW)
        rounds.append(watched.watch.round)

    for _ in range(3):
        look()
    with store.write() as session:
        session.execute(update(leader_table).values(round=rounds[0]))
    for _ in range(3):
        look()
    assert rounds == sorted(set(rounds))
