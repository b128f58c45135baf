"""No service answers for minutes: whatever the size of the cluster, no host ends its ranks, and none is LOST."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest

from gpu_platform.domain.hosts.lease_protocol import (
    HostLease,
    LeaderLeases,
    LeaseRow,
    LeaseTimes,
    answer_within_s,
    renews,
)
from workers.node.peer_votes import ALL_ARE_ASKED, ASKED_AT_ONCE, ToldVotes
from workers.node.temporal_turns import ALL_MAY, SELDOM_LEASES, TemporalTurns

TTL_S = 10.0
TICK_S = 0.25
INTERVAL_S = 2.0
TEMPORAL_PER_S = 12
"""Reports that Temporal takes in a second. The others get no answer in time, as on a machine with two processors."""
TIMES = LeaseTimes.of(TTL_S)


def lease_of(name: str, members: int, now: float) -> HostLease:
    """A host that was answered just now."""
    names = [f"h{number}" for number in range(members)]
    lease = HostLease.begin(name, TIMES, now - TTL_S)
    return lease.answered(now, sent_at=now, round=0, term=1, members_version=1, members=names)


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("members", "silent_s", "voters", "often"),
    [
        (20, 2.0, None, True),
        (1000, 2.0, None, False),
        (1000, 7.5, 900, False),
        (60, 7.5, 40, False),
        (60, 7.5, 12, True),
        (1000, 7.5, 4, True),
        (60, 6.2, 0, False),
    ],
    ids=[
        "few hosts",
        "it has not asked",
        "votes let ranks run on",
        "votes let ranks run on, in a smaller cluster",
        "too few votes",
        "a few have no answer",
        "it has just begun to ask",
    ],
)
def test_a_host_reports_through_temporal_when_nothing_else_keeps_its_lease(
    members: int, silent_s: float, voters: int | None, often: bool
) -> None:
    turns = TemporalTurns(0.0)
    tries, came = 1200, 0
    for number in range(tries):
        now = number / 2
        lease = replace(lease_of("h0", members, now), answered_at=now - silent_s)
        lease = lease.given(now, {f"h{one}": 4.0 for one in range(1, (voters or 0) + 1)})
        came += turns.is_turn(lease, now, INTERVAL_S, knows_votes=voters is not None)
    assert came == tries if often else 0 < came <= 2.5 * (tries / 2) / (SELDOM_LEASES * TTL_S)


@dataclass
class Host:
    lease: HostLease
    turns: TemporalTurns
    tries_at: float
    stamp: int = 0
    round: int = 0
    voted: bool = False
    knows_votes: bool = False
    reports: int = 0
    again: bool = False
    """Its newest answer did not renew the lease. It follows that up, see ``LeaseKeeper``."""
    told: ToldVotes = field(default_factory=ToldVotes)


@dataclass
class World:
    """Hosts and their leader. No service answers; Temporal answers at once what it can take."""

    hosts: dict[str, Host]
    random: random.Random
    leader: LeaderLeases = field(default_factory=lambda: LeaderLeases(TIMES))
    round: int = 0
    now: float = 0.0
    taken: int = 0

    @classmethod
    def of(cls, count: int) -> World:
        chance = random.Random(count)
        names = [f"h{number}" for number in range(count)]
        hosts = {name: Host(lease_of(name, count, 0.0), TemporalTurns(0.0), chance.random()) for name in names}
        return cls(hosts, chance)

    def tick(self) -> None:
        self.now += TICK_S
        if self.now.is_integer():
            self.taken = 0
            self._leader_looks()
        for name, host in self.hosts.items():
            assert host.lease.may_run(self.now), f"{name} ends its ranks after {self.now} s"
            if host.lease.must_ask(self.now) and host.lease.run_until - self.now <= 0.75 * TIMES.vote_for_s:
                self._ask(host)
            if self.now >= host.tries_at:
                self._report(host)

    def _leader_looks(self) -> None:
        self.round += 1
        self.leader = self.leader.begin_round(self.now, self.round)
        rows = {
            name: LeaseRow(stamp=host.stamp, ttl_s=TTL_S, round=host.round, voted=host.voted, versions=(1,))
            for name, host in self.hosts.items()
        }
        self.leader, verdict = self.leader.look(self.now, 1.0, rows, {1: frozenset(self.hosts)})
        assert verdict.lost == (), f"after {self.now} s, {verdict.heard} of {verdict.members} are heard"

    def _ask(self, host: Host) -> None:
        others = [other for other in self.hosts.values() if other is not host]
        given: dict[str, dict[str, float]] = {}
        passed_on = len(others) > ALL_ARE_ASKED
        for other in self.random.sample(others, ASKED_AT_ONCE) if passed_on else others:
            other.lease, holds_s = other.lease.vote(self.now)
            given[other.lease.name] = {**other.lease.vote_list(self.now), other.lease.name: holds_s}
        votes = host.told.add(given, self.now, self.hosts if passed_on else ())
        host.lease = host.lease.given(self.now, votes).counted(self.now)
        host.knows_votes = True

    def _report(self, host: Host) -> None:
        host.tries_at = self.now + self.random.uniform(0.25, 0.75)
        if not host.again and not host.turns.is_turn(host.lease, self.now, INTERVAL_S, knows_votes=host.knows_votes):
            return
        host.reports, self.taken = host.reports + 1, self.taken + 1
        if self.taken > TEMPORAL_PER_S:
            host.tries_at = self.now + answer_within_s(TTL_S)
            return
        renewed = renews(TIMES, host.lease.round, self.round)
        host.round, host.voted = host.lease.round, host.lease.voted(self.now)
        host.stamp += renewed
        host.lease = host.lease.answered(
            self.now, sent_at=self.now, round=self.round, term=1, members_version=1, members=None, renewed=renewed
        )
        host.knows_votes, host.again = False, not renewed
        host.tries_at = self.now + (INTERVAL_S if renewed else TICK_S)


@pytest.mark.some(1)
@pytest.mark.parametrize("count", [4, 20, 21, 40, pytest.param(80, marks=pytest.mark.scale)])
def test_services_may_be_away_for_minutes_in_a_cluster_of_any_size(count: int) -> None:
    world = World.of(count)
    seconds = 120.0
    while world.now < seconds:
        world.tick()
    reports_per_s = sum(host.reports for host in world.hosts.values()) / seconds
    assert reports_per_s <= ALL_MAY / INTERVAL_S + 2, "a report costs Temporal as much as a job"
