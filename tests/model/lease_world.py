"""A small world for the lease protocol: one leader, a database, hosts, and messages that are late or lost.

The hosts and the leader are the classes that production runs (``gpu_platform.domain.lease_protocol``). Time is whole
ticks. Host ``a`` runs an attempt; the others vote. ``broken`` is set when the leader declares ``a`` LOST while ranks
of it may still live.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpu_platform.domain.lease_protocol import HostLease, LeaderLeases, LeaseRow, LeaseTimes

TICKS = LeaseTimes(ttl_s=3, run_for_s=3, vote_after_s=2, heard_within_s=1, vote_for_s=2, promise_s=3, kill_s=1)
"""The smallest whole numbers with the order that the protocol needs."""

Event = tuple[str, str]


@dataclass(frozen=True)
class Report:
    sent_at: int
    round: int
    voted: bool


@dataclass(frozen=True)
class Answer:
    sent_at: int
    round: int
    renewed: bool


@dataclass(frozen=True)
class Host:
    lease: HostLease
    report: Report | None = None
    """On its way to the database."""
    answer: Answer | None = None
    """On its way back."""
    vote: tuple[int, float] | None = None
    """A vote on its way to ``a``: when ``a`` asked, and for how long it holds."""
    row: LeaseRow | None = None


@dataclass(frozen=True)
class World:
    times: LeaseTimes
    hosts: tuple[Host, ...]
    leader: LeaderLeases
    now: int = 0
    round: int = 0
    """As written in the database."""
    looked_at: int = 0
    restarts: int = 0
    """How many more restarts of voters, and changes of the leader, are tried."""
    broken: bool = False

    @classmethod
    def begin(cls, times: LeaseTimes, hosts: int, restarts: int) -> World:
        """Every host was just answered; the leader knows nothing yet."""
        names = "abcd"[:hosts]
        made = []
        for name in names:
            lease = HostLease.begin(name, times, -10).answered(
                0, sent_at=0, round=0, term=0, members_version=1, members=names
            )
            made.append(Host(lease, row=LeaseRow(0, times.ttl_s, 0, False, (1,))))
        return cls(times, tuple(made), LeaderLeases(times), restarts=restarts)

    # -- what can happen next --------------------------------------------------------------------

    def events(self) -> Iterator[Event]:
        yield "tick", ""
        yield "look", ""
        if self.restarts:
            yield "new_leader", ""
        for index, host in enumerate(self.hosts):
            name = host.lease.name
            if host.report is None and host.answer is None:
                yield "report", name
            if host.report is not None:
                yield "write", name
                if not index:
                    yield "write_unrenewed", name
                yield "lose_report", name
            if host.answer is not None:
                yield "answer", name
                yield "lose_answer", name
            if index and host.vote is None and host.lease.must_ask(self.now) and self.hosts[0].lease.may_run(self.now):
                yield "ask", name
            if host.vote is not None:
                yield "give", name
                yield "lose_vote", name
            if index and self.restarts:
                yield "restart", name

    def after(self, event: Event) -> World:
        verb, name = event
        if verb == "tick":
            return replace(self, now=self.now + 1)
        if verb == "look":
            return self._look()
        if verb == "new_leader":
            return replace(self, leader=LeaderLeases(self.times), looked_at=self.now, restarts=self.restarts - 1)
        index = next(number for number, host in enumerate(self.hosts) if host.lease.name == name)
        return self._host(verb, index)

    def _host(self, verb: str, index: int) -> World:
        host, now = self.hosts[index], self.now
        lease = host.lease
        match verb:
            case "report":
                lease = lease.reporting(now)
                host = replace(host, lease=lease, report=Report(now, lease.round, lease.voted(now)))
            case "write" | "write_unrenewed":
                assert host.report is not None
                assert host.row is not None
                renewed = verb == "write"
                row = replace(
                    host.row, stamp=host.row.stamp + renewed, round=host.report.round, voted=host.report.voted
                )
                host = replace(host, report=None, row=row, answer=Answer(host.report.sent_at, self.round, renewed))
            case "answer":
                assert host.answer is not None
                lease = lease.answered(
                    now,
                    sent_at=host.answer.sent_at,
                    round=host.answer.round,
                    term=0,
                    members_version=1,
                    members=None,
                    renewed=host.answer.renewed,
                )
                host = replace(host, lease=lease, answer=None)
            case "ask":
                lease, holds_s = lease.vote(now)
                host = replace(host, lease=lease, vote=(now, holds_s))
            case "give":
                assert host.vote is not None
                asked_at, holds_s = host.vote
                asker = self.hosts[0]
                asking = asker.lease.given(asked_at, {lease.name: holds_s}).counted(now)
                host = replace(host, vote=None)
                hosts = [replace(asker, lease=asking), *self.hosts[1:]]
                hosts[index] = host
                return replace(self, hosts=tuple(hosts))
            case "restart":
                lease = replace(HostLease.begin(lease.name, self.times, now), members=lease.members)
                host = Host(lease, row=host.row)
                return replace(self, hosts=self._with(index, host), restarts=self.restarts - 1)
            case "lose_report":
                host = replace(host, report=None)
            case "lose_answer":
                host = replace(host, answer=None)
            case "lose_vote":
                host = replace(host, vote=None)
        return replace(self, hosts=self._with(index, host))

    def _with(self, index: int, host: Host) -> tuple[Host, ...]:
        return (*self.hosts[:index], host, *self.hosts[index + 1 :])

    def _look(self) -> World:
        names = frozenset(host.lease.name for host in self.hosts)
        rows = {host.lease.name: host.row for host in self.hosts if host.row is not None}
        leader = self.leader.begin_round(self.now, self.round + 1)
        leader, verdict = leader.look(self.now, self.now - self.looked_at, rows, {1: names})
        # Ranks may live for as long as it takes to end them.
        alive = self.now < self.hosts[0].lease.run_until + self.times.kill_s
        return replace(
            self,
            leader=leader,
            round=self.round + 1,
            looked_at=self.now,
            broken=self.broken or ("a" in verdict.lost and alive),
        )

    # -- when are two worlds alike ---------------------------------------------------------------

    def key(self) -> object:
        """Equal for worlds that differ only in the date, or in what no rule looks at any more."""
        now, times, leader = self.now, self.times, self.leader

        def age(round: int) -> int:
            began = leader.rounds.get(round)
            return 9 if began is None or now - began > times.heard_within_s else int(now - began)

        def sent(message: Report | Answer) -> float:
            return min(now - message.sent_at, times.run_for_s)

        asker, *voters = self.hosts
        lease = asker.lease
        stamp, silent_s = leader.silence.get(lease.name, (None, 0.0))
        since = leader.suspected.get(lease.name)
        head = (
            min(now - lease.answered_at, times.vote_after_s),
            max(-times.kill_s, lease.run_until - now),
            asker.report and sent(asker.report),
            asker.answer and (sent(asker.answer), asker.answer.renewed),
            (asker.row is not None and stamp == asker.row.stamp, min(silent_s, times.ttl_s)),
            None if since is None else min(now - since, times.kill_s),
            min(now - self.looked_at, times.ttl_s),
            age(self.round),
            self.restarts,
        )
        others = [
            (
                min(now - voter.lease.answered_at, times.vote_after_s),
                max(0, voter.lease.promised_until - now),
                age(voter.lease.round),
                voter.report and (age(voter.report.round), voter.report.voted),
                voter.answer and age(voter.answer.round),
                voter.vote and max(0, voter.vote[0] + voter.vote[1] - now),
                voter.row and (age(voter.row.round), voter.row.voted),
                max(0, lease.votes.get(voter.lease.name, 0) - now),
            )
            for voter in voters
        ]
        # The voters are alike: their names do not matter.
        return head, tuple(sorted(others, key=repr))
