"""The lease protocol holds in every world that can be reached, and the explorer sees what it is there to see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_platform.domain.hosts import lease_protocol
from gpu_platform.domain.hosts.lease_protocol import HostLease, LeaderLeases, LeaseTimes
from tests.model import lease_world
from tests.model.explore import explore
from tests.model.lease_world import LeaseRules

TICKS = LeaseTimes(
    ttl_s=3, run_for_s=3, vote_after_s=2, heard_within_s=2, vote_for_s=2, vote_binds_s=2, end_s=1, kill_s=1
)
"""The smallest whole numbers in the order that the protocol needs; what may be equal is equal."""
DRIFTING = LeaseTimes(
    ttl_s=5, run_for_s=4, vote_after_s=3, heard_within_s=1, vote_for_s=2, vote_binds_s=3, end_s=1, kill_s=2
)
"""With a margin of one tick, for clocks of which one gains or loses a tick."""
SLOWEST, FASTEST = 0.95, 1.05


def check(rules: LeaseRules, limit: int | None = None) -> None:
    way, seen = explore(rules, limit)
    print(f"\n{' -> '.join(rules.lists)}, late={rules.late}, drift={rules.drift}, every={rules.every}: {seen} worlds")
    assert way is None


@pytest.mark.some(2)
@pytest.mark.parametrize("hosts", ["a", "ab", "abc"])
def test_no_attempt_is_replaced_while_it_may_live(hosts: str) -> None:
    check(LeaseRules(TICKS, (hosts,)))


@pytest.mark.some(1)
@pytest.mark.parametrize("hosts", ["a", "ab"])
def test_late_answers_replace_no_attempt(hosts: str) -> None:
    check(LeaseRules(TICKS, (hosts,), late=True))


def test_nor_does_a_clock_that_gains_or_loses_a_tick() -> None:
    check(LeaseRules(DRIFTING, ("ab",), drift=1))


@pytest.mark.scale
def test_steps_that_lead_no_nearer_are_rightly_left_out() -> None:
    check(LeaseRules(TICKS, ("ab",), every=True))


@pytest.mark.scale
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("lists", "options"),
    [
        (("abcd",), {}),
        (("abc",), {"late": True}),
        (("abc",), {"drift": 1}),
        (("ab", "ac"), {}),
        (("abc", "ab"), {}),
        (("ab", "abc"), {}),
        (("a", "abc"), {}),
        (("abc", "abd"), {}),
    ],
    ids=str,
)
def test_no_attempt_is_replaced_in_larger_worlds(lists: tuple[str, ...], options: dict[str, Any]) -> None:
    times = DRIFTING if "drift" in options else TICKS
    check(LeaseRules(times, lists, **options), 6_000_000)


def test_one_host_that_lies_breaks_no_promise_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from five members on, in the smallest cluster in which there are enough honest hosts to see it."""
    monkeypatch.setattr(lease_protocol, "TOLERATES_LIAR_FROM", 3)
    check(LeaseRules(TICKS, ("abc",), liar="c"))


@pytest.mark.scale
@pytest.mark.timeout(7200)
def test_one_host_of_five_that_lies_breaks_no_promise_to_the_others() -> None:
    check(LeaseRules(TICKS, ("abcde",), liar="e"), 6_000_000)


@pytest.mark.parametrize("hosts", ["ab", "abc"])
def test_a_host_that_lies_breaks_one_in_a_cluster_of_fewer_than_five(hosts: str) -> None:
    """The limit that docs/explanation/hosts-that-lie.md states."""
    assert explore(LeaseRules(TICKS, (hosts,), liar=hosts[-1]))[0] is not None


def test_two_members_are_heard_and_vote_where_one_may_lie_and_the_honest_ones_are_enough() -> None:
    for members in range(1, 2000):
        heard = next(count for count in range(members + 1) if lease_protocol.is_at_least_half(count, members))
        needed = lease_protocol.votes_needed(members)
        in_common = heard + needed - members
        assert in_common >= (2 if members >= 5 else 1)
        if members >= 5:
            assert needed <= members - 1, "a host that does not vote ends nobody's ranks in an outage"


@pytest.mark.parametrize(
    "without",
    [
        pytest.param({"vote_binds_s": 1}, id="a vote binds for less than it holds"),
        pytest.param({"run_for_s": 4}, id="ranks run longer than the lease"),
        pytest.param({"heard_within_s": 3, "vote_after_s": 1}, id="members vote while they are heard"),
        pytest.param({"end_s": 2}, id="ranks take longer to end than the leader waits"),
    ],
)
@pytest.mark.parametrize("hosts", ["ab", "abc"])
def test_a_rule_that_is_left_out_is_found(hosts: str, without: dict[str, float]) -> None:
    assert explore(LeaseRules(replace(TICKS, **without), (hosts,)))[0] is not None


def test_a_leader_that_needs_no_majority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes an outage for the loss of a host."""
    monkeypatch.setattr(lease_protocol, "is_at_least_half", lambda count, of: True)
    assert explore(LeaseRules(TICKS, ("abc",)))[0] is not None


def test_a_host_that_goes_on_with_half_of_the_votes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(self: HostLease, now: float) -> HostLease:
        half = len(self.members) // 2
        ends = sorted([*self.votes.values(), now + self.times.vote_for_s], reverse=True)
        return replace(self, run_until=max(self.run_until, ends[half - 1])) if len(ends) >= half > 0 else self

    monkeypatch.setattr(HostLease, "counted", counted)
    assert explore(LeaseRules(TICKS, ("ab",)))[0] is not None


def test_reports_that_do_not_say_voted_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostLease, "voted", lambda self, now: False)
    assert explore(LeaseRules(TICKS, ("ab",)))[0] is not None


def test_a_host_that_forgets_its_vote_as_it_restarts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It remembers its round, so it would be heard while its vote holds."""
    begin = HostLease.begin

    def forgetful(*args: Any, **options: Any) -> HostLease:
        return replace(begin(*args, **options), vote_binds_until=-1.0)

    monkeypatch.setattr(HostLease, "begin", forgetful)
    assert explore(LeaseRules(TICKS, ("abc",)))[0] is not None


def test_a_clock_that_drifts_without_a_margin_is_found() -> None:
    assert explore(LeaseRules(replace(DRIFTING, ttl_s=4, kill_s=1), ("ab",), drift=1))[0] is not None


def test_a_leader_that_asks_only_for_half_of_the_current_list_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = LeaderLeases.look

    def look(self: LeaderLeases, now: float, passed_s: float, rows: Any, members: Any) -> Any:
        newest = {name: replace(row, versions=(max(row.versions),)) for name, row in rows.items()}
        return real(replace(self, lists={}), now, passed_s, newest, members)

    monkeypatch.setattr(LeaderLeases, "look", look)
    assert explore(LeaseRules(TICKS, ("ab", "ac")), 100_000)[0] is not None


def test_a_leader_that_forgets_by_which_list_votes_were_counted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it was found: a host that had learned a newer list still ran by votes that it had counted by the older one."""
    real = LeaderLeases.look

    def look(self: LeaderLeases, *args: Any) -> Any:
        return real(replace(self, lists={}), *args)

    monkeypatch.setattr(LeaderLeases, "look", look)
    assert explore(LeaseRules(TICKS, ("ab", "ac")), 100_000)[0] is not None


def test_a_launch_whose_term_is_not_checked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_world, "may_start", lambda now, leased_until, term, planned: now < leased_until)
    assert explore(LeaseRules(TICKS, ("ab",)))[0] is not None


def test_the_real_times_keep_their_order_on_clocks_that_drift() -> None:
    """In the real world a fast clock measures a duration in less time than a slow one."""
    times = LeaseTimes.of(10.0)
    for longest, shortest in [
        (times.run_for_s, times.ttl_s),
        (times.heard_within_s, times.vote_after_s),
        (times.vote_for_s, times.vote_binds_s),
        (times.end_s, times.kill_s),
    ]:
        assert longest / SLOWEST <= shortest / FASTEST


@pytest.mark.parametrize("holds_s", [1e300, float("inf"), 3.0, float("nan"), -1.0])
def test_no_host_that_lies_makes_a_vote_hold_longer(holds_s: float) -> None:
    """A host that somebody broke into said that all votes hold for ever. So ranks ran on where they had to end."""
    begun = HostLease.begin("a", TICKS, 0.0, run_until=10.0, leased_until=10.0, term=1)
    lease = replace(begun, members=("a", "b", "c")).given(5.0, dict.fromkeys("bc", holds_s))
    assert all(until <= 5.0 + TICKS.vote_for_s for until in lease.votes.values())
