"""The lease protocol: when a host must end its ranks, and when the leader may call it LOST.

Two goals conflict. A host that is cut off must end its ranks *before* its jobs start elsewhere. But while the control
plane is away, ranks must not end. So both sides count hosts:

* **Leader.** A host that was silent for its whole lease becomes *suspected* while the leader hears at least half of
  all members. It is LOST ``kill_s`` later if it stayed silent and the leader still hears half. Otherwise the verdict
  is held back.
* **Host.** When its newest answer is ``vote_after_s`` old it asks the other members. A member whose own answer is as
  old gives a *vote*: "I do not reach the control plane either". With the votes of more than half of all members it is
  an outage and ranks go on for as long as the votes hold. Without them the host is cut off: it ends its ranks at
  ``run_until``.

"At least half" and "more than half" have a member in common. From five members on a host needs one vote more than that
(``votes_needed``), so they have two in common: one member may lie. An honest member cannot be heard and vote at once:

* The leader counts a member only by a *round*: a number that the leader wrote to the database, that the member got with
  an answer, and that came back with the member's next report. It proves that the member got an answer after the round
  began, at most ``heard_within_s`` ago. Since ``vote_after_s`` is longer, that member gives no vote now.
* A vote binds the member that gave it. For ``vote_binds_s`` the member's reports say ``voted``, and the leader does not
  count them.

A host whose reports arrive while their answers are lost ends its ranks, and the leader must notice: a report that
brings back an old round does not renew the lease (``renews``), so the host becomes silent.

Members change. A host may know an older list than the leader, so the leader asks for half of *every* list that the
host may know (``versions``), or knew while votes that it counted may still hold (``lists``).
A lease that ended is not extended by votes, and nothing is launched on votes.

Times are seconds on steady clocks: each process compares only its own. ``tests/model`` explores these classes.
Pure: the caller gives the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class LeaseTimes:
    """The durations of the protocol, in seconds. All follow from the length of the lease.

    Each clock may run 5 % too fast or too slow, so two clocks differ by up to 10.6 %. Where a duration on one process
    must not be shorter than one on another, it is 10.6 % longer (``run_for_s`` < ``ttl_s``, ``heard_within_s`` <
    ``vote_after_s``, ``vote_for_s`` < ``vote_binds_s``, ``end_s`` < ``kill_s``).
    """

    ttl_s: float
    """A host that was silent for this long is suspected."""
    run_for_s: float
    """Ranks may run for this long after their host sent the report that was answered last."""
    vote_after_s: float
    """A member gives its vote if its newest answer is older than this."""
    heard_within_s: float
    """The leader hears a member whose round is younger than this."""
    vote_for_s: float
    """A vote holds for this long, counted from the moment when the other host asked."""
    vote_binds_s: float
    """A member that voted is not counted by the leader for this long."""
    end_s: float
    """The ranks of a host are dead at most this long after ``run_until``, by the host's clock."""
    kill_s: float
    """A suspected host becomes LOST after this time."""

    @classmethod
    def of(cls, ttl_s: float) -> LeaseTimes:
        """The durations for a lease of ``ttl_s`` seconds."""
        return cls(
            ttl_s=ttl_s,
            run_for_s=0.9 * ttl_s,
            vote_after_s=0.6 * ttl_s,
            heard_within_s=0.5 * ttl_s,
            vote_for_s=0.4 * ttl_s,
            vote_binds_s=0.45 * ttl_s,
            end_s=0.25 * ttl_s,
            kill_s=0.3 * ttl_s,
        )


def answer_within_s(ttl_s: float) -> float:
    """How long a host waits for a service's answer to a report, in seconds. Two tries fit into a lease."""
    return min(5.0, ttl_s / 4)


LOOK_EVERY_S = 1.0
RESTART_LEASE_S = 60.0
"""The lease that a node worker asks for before a planned restart, unless it is configured otherwise."""
"""The leader looks at the leases, and begins a round, so often."""


def renews(times: LeaseTimes, echoed_round: int, current: int) -> bool:
    """True if a report that brings back ``echoed_round`` renews the lease while the leader is at round ``current``."""
    return (current - echoed_round) * LOOK_EVERY_S <= times.heard_within_s


def may_start(now: float, leased_until: float, term: int, planned: int) -> bool:
    """True if a rank may start now that was planned in the host's term ``planned``.

    ``leased_until`` and ``term`` are those of the host's lease. ``planned`` 0: the term is not checked.
    """
    return now < leased_until and planned in (0, term)


def is_at_least_half(count: int, of: int) -> bool:
    """True if ``count`` members are at least half of ``of`` members."""
    return 2 * count >= of


TOLERATES_LIAR_FROM = 5
"""With so many members one of them may lie. With fewer a host would need the votes of all, so that one host that is off
would end all ranks in an outage."""


def votes_needed(members: int) -> int:
    """How many of ``members`` must say that they do not reach the control plane, the host itself included."""
    return members // 2 + 1 + (members >= TOLERATES_LIAR_FROM)


@dataclass(frozen=True)
class HostLease:
    """The state of a host's own lease. Every method returns the new state."""

    name: str
    times: LeaseTimes
    answered_at: float
    """When the newest answer arrived; before the first one, when the process began."""
    run_until: float
    """When ranks must end. Votes move it back, but only before it has passed."""
    leased_until: float
    """As ``run_until``, but without votes. Nothing is launched after it."""
    vote_binds_until: float
    """Reports say ``voted`` until then."""
    round: int = 0
    """The newest round that an answer brought."""
    term: int = 0
    """The term in the newest answer. It grows each time that this host was LOST."""
    members_version: int = 0
    members: frozenset[str] = frozenset()
    votes: Mapping[str, float] = field(default_factory=dict)
    """Member -> until when its vote holds, by this host's clock."""

    @classmethod
    def begin(
        cls,
        name: str,
        times: LeaseTimes,
        now: float,
        *,
        run_until: float = -1.0,
        leased_until: float = -1.0,
        term: int = 0,
        round: int = 0,
    ) -> HostLease:
        """The lease at the start of a process. ``run_until``, ``leased_until``, ``term`` and ``round`` are what its
        predecessor left on disk.

        The predecessor may have voted, and nobody knows. So the new process acts as if it had. The predecessor got the
        answer with ``round``, so the first report of the new process renews the lease if that was lately. Without it
        (0: the file is lost) the second one does, and a node worker that always dies before it would lose its host.
        """
        return cls(
            name=name,
            times=times,
            answered_at=now,
            run_until=run_until,
            leased_until=leased_until,
            vote_binds_until=now + times.vote_binds_s,
            round=round,
            term=term,
        )

    def reporting(self, now: float, lease_s: float | None = None) -> HostLease:
        """The lease before a report is sent that asks for ``lease_s`` seconds (None: the usual lease).

        The leader may get the report although its answer is lost. So a shorter lease counts from now on.
        """
        end = now + self._run_for(lease_s)
        return replace(self, run_until=min(self.run_until, end), leased_until=min(self.leased_until, end))

    def with_times(self, times: LeaseTimes) -> HostLease:
        """The lease after the cluster's lease got another length."""
        return self if times == self.times else replace(self, times=times)

    def voted(self, now: float) -> bool:
        """True while reports must say that this host has voted."""
        return now < self.vote_binds_until

    def answered(
        self,
        now: float,
        *,
        sent_at: float,
        round: int,
        term: int,
        members_version: int,
        members: Iterable[str] | None,
        renewed: bool = True,
        lease_s: float | None = None,
    ) -> HostLease:
        """The lease after an answer arrived at ``now`` to the report sent at ``sent_at``.

        ``members`` None: the list of members did not change.
        """
        end = sent_at + self._run_for(lease_s) if renewed else -1.0
        return replace(
            self,
            answered_at=now,
            run_until=max(self.run_until, end),
            leased_until=max(self.leased_until, end),
            round=round,
            term=term,
            members_version=members_version,
            members=self.members if members is None else frozenset(members),
            votes={},
        )

    def must_ask(self, now: float) -> bool:
        """True if it is time to ask the other members for their votes."""
        return now - self.answered_at >= self.times.vote_after_s

    def vote(self, now: float) -> tuple[HostLease, float]:
        """Answer another member that asks for a vote: the new lease, and for how many seconds the vote holds.

        0.0 seconds means no vote: the control plane answered this host lately.
        """
        if not self.must_ask(now):
            return self, 0.0
        until = max(self.vote_binds_until, now + self.times.vote_binds_s)
        return replace(self, vote_binds_until=until), self.times.vote_for_s

    def given(self, asked_at: float, votes: Mapping[str, float]) -> HostLease:
        """The lease after votes arrived (member -> seconds) for a question that was sent at ``asked_at``.

        No vote holds longer than ``vote_for_s``, whatever a host says: else one that lies lets ranks run for ever.
        """
        known = dict(self.votes)
        for name, holds_s in votes.items():
            if name in self.members and holds_s > 0:
                known[name] = max(known.get(name, 0.0), asked_at + min(holds_s, self.times.vote_for_s))
        return replace(self, votes=known)

    def counted(self, now: float) -> HostLease:
        """Count the votes, with the host's own. Enough of them (``votes_needed``) extend the time for which ranks may
        run."""
        if not self.must_ask(now) or now >= self.run_until or self.name not in self.members:
            return self
        lease, holds_s = self.vote(now)
        ends = sorted([*(end for name, end in lease.votes.items() if name != self.name), now + holds_s], reverse=True)
        needed = votes_needed(len(self.members))
        if len(ends) < needed:
            return lease
        return replace(lease, run_until=max(lease.run_until, ends[needed - 1]))

    def vote_list(self, now: float) -> dict[str, float]:
        """Member -> for how many seconds its vote still holds. Other hosts get this list when they ask; see
        ``given``."""
        return {name: end - now for name, end in self.votes.items() if end > now}

    def may_run(self, now: float) -> bool:
        """True while ranks may run. Afterwards the host must end them."""
        return now < self.run_until

    def _run_for(self, lease_s: float | None) -> float:
        return self.times.run_for_s if lease_s is None else LeaseTimes.of(lease_s).run_for_s


@dataclass(frozen=True)
class LeaseRow:
    """The lease of one host that is not LOST, as the database knows it."""

    stamp: object
    """A value that changes with each report."""
    ttl_s: float
    round: int
    voted: bool
    versions: tuple[int, ...]
    """The versions of every list of members that the host may know, the current one included."""
    counts_rounds: bool = True
    """False: its reports have no numbers. It brings back no rounds and gives no votes."""


@dataclass(frozen=True)
class Verdict:
    """What the leader concludes from one look at the leases."""

    lost: tuple[str, ...]
    """Hosts that must be declared LOST."""
    held: tuple[str, ...]
    """Hosts that were silent for longer than their lease while the leader does not hear half of the members."""
    heard: int
    members: int
    """Number of hosts in the current list of members."""


@dataclass(frozen=True)
class LeaderLeases:
    """What a leader knows of the hosts' leases. A new leader knows nothing: it gives every host a whole lease to
    report.

    Silence is counted from when the leader saw a row change, by the leader's own clock. If a clock is set forward or
    back, no host becomes LOST and no lost host stays hidden.
    """

    times: LeaseTimes
    rounds: Mapping[int, float] = field(default_factory=dict)
    """Round -> when it began. Only rounds that still count."""
    silence: Mapping[str, tuple[object, float]] = field(default_factory=dict)
    """Host -> the last stamp, and for how many seconds it has not changed."""
    suspected: Mapping[str, float] = field(default_factory=dict)
    """Host -> since when it is suspected."""
    lists: Mapping[str, Mapping[frozenset[str], float]] = field(default_factory=dict)
    """Host -> the lists of members by which it may have counted votes that still hold -> when it may have known
    them."""

    def begin_round(self, now: float, number: int) -> LeaderLeases:
        """Remember round ``number``. Call this with the time *before* the number is written to the database."""
        recent = {one: began for one, began in self.rounds.items() if now - began <= self.times.heard_within_s}
        return replace(self, rounds={**recent, number: now})

    def look(
        self,
        now: float,
        passed_s: float,
        rows: Mapping[str, LeaseRow],
        members: Mapping[int, frozenset[str]],
    ) -> tuple[LeaderLeases, Verdict]:
        """Look at the leases and decide who is suspected and who is LOST.

        ``rows``: hosts that are not LOST. ``members``: version -> list of members; the newest version is the current
        one. ``passed_s``: how much longer hosts were silent since the last look, if their row did not change.
        """
        silence: dict[str, tuple[object, float]] = {}
        suspected: dict[str, float] = {}
        lost, held = [], []
        for name, row in rows.items():
            stamp, silent_s = self.silence.get(name, (None, 0.0))
            silence[name] = row.stamp, silent_s + passed_s if stamp == row.stamp else 0.0
        lists = {name: self._lists(now, name, row, members) for name, row in rows.items()}
        heard = {name for name, row in rows.items() if self._hears(now, row, silence[name][1])}
        for name, row in rows.items():
            silent_s = silence[name][1]
            if silent_s < row.ttl_s:
                continue
            since = self.suspected.get(name)
            if not all(is_at_least_half(len(heard & one), len(one)) for one in lists[name]):
                held.append(name)
            elif since is None:
                since = now
            elif now - since >= self.times.kill_s:
                lost.append(name)
            if since is not None:
                suspected[name] = since
        current = members[max(members)] if members else frozenset()
        verdict = Verdict(tuple(lost), tuple(held), len(heard & current), len(current))
        return replace(self, silence=silence, suspected=suspected, lists=lists), verdict

    def _lists(
        self, now: float, name: str, row: LeaseRow, members: Mapping[int, frozenset[str]]
    ) -> dict[frozenset[str], float]:
        """Keep older lists: a host that learns a newer list still runs by the votes that it counted by an older one."""
        recent = {one: at for one, at in self.lists.get(name, {}).items() if now - at <= self.times.vote_binds_s}
        return {**recent, **{members[version]: now for version in row.versions}}

    def _hears(self, now: float, row: LeaseRow, silent_s: float) -> bool:
        if not row.counts_rounds:
            return silent_s <= self.times.heard_within_s
        began = self.rounds.get(row.round)
        return began is not None and now - began <= self.times.heard_within_s and not row.voted
