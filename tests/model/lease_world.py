"""A small world for the lease protocol: leaders, a database, hosts, and messages that are late or lost.

The hosts and the leader are the classes that production runs (``gpu_platform.domain.hosts.lease_protocol``): each step
of a process builds the class from a few whole numbers, lets it decide, and reads the numbers back. Attempt 1 of a job
runs
on host ``a``, or its launch is on the way there; the others, ``b`` to ``d``, vote. A world is broken when attempt 1 may
live although ``a`` was declared LOST: from then on attempt 2 may live anywhere, ``a`` itself included. What holds for
attempts 1 and 2 holds for 2 and 3.

Time is whole ticks. Messages are lost by not happening. What is left out hides no broken world:

* *Dates.* Rules compare only ages on one clock, and no rule tells ages apart that are beyond its longest duration.
* *Names of voters.* Voters that are in the same lists of members have the same rules, so their order does not matter.
* *Late reports of voters.* A report can only bring the round that its host knew, and being heard more only brings the
  verdict LOST nearer. So the best report without ``voted`` that a host could have sent so far counts as arrived.
* *Late answers to voters.* A host gains more, and at the same time, by a new report that is answered at once: the round
  is newer. So answers to voters are not late, only lost.
* *Late reports of* ``a``. A lease counts from sending, silence from the arrival: a late report only gives more time.
* *Late votes.* A vote counts from the question, so a late one holds for less; and votes are counted at any time.
* *A leader's two steps.* It begins a round before it reads, and judges after it: later verdicts are safer.
* *Two leaders.* Another leader only writes rounds that this one does not know. Either one may be the one explored.
* *Hosts that leave or are LOST* may still report: then the leader hears more than in truth.

* *Steps that lead nowhere nearer.* Rules are monotonic: heard more, silent longer, with more votes, a world can do all
  that it could. So a step after which no number is more dangerous (``_dangers``) is not followed, and the leader looks
  after every step. Restarts of voters and new leaders are such steps. ``every`` follows them all.

Answers to ``a`` may be late (``late``), since its lease, its list of members and its term come with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from gpu_platform.domain.hosts.lease_protocol import HostLease, LeaderLeases, LeaseRow, LeaseTimes, may_start
from tests.model.explore import BROKEN

NOW = 1000
PLANNED_TERM = 1
NEW_TERM = 2


class Host(NamedTuple):
    """What matters of one host, in ticks."""

    answered: int
    """Age of the newest answer."""
    promised: int
    """For so long its reports say ``voted``."""
    round: int
    """Age of the round that it knows, by the leader's clock."""
    heard: int
    """Age of the newest round that the leader has from it without ``voted``."""
    vote: int = 0
    """For so long its newest vote holds, by the clock of ``a``."""


class Asker(NamedTuple):
    """Host ``a``."""

    host: Host
    run_left: int
    """Until ``run_until``."""
    version: int = 1
    """Of the list of members that it knows; 0: none."""


class Answer(NamedTuple):
    """On its way to ``a``."""

    sent: int
    """Age of the report, by the clock of ``a``."""
    renewed: bool
    round: int
    version: int


class World(NamedTuple):
    asker: Asker
    voters: tuple[Host, ...]
    answer: Answer | None
    silent: int | None
    """Since the row of ``a`` changed, as the leader saw it; None: it changed since the last look."""
    suspected: int | None
    current: int
    """Age of the round in the database."""
    newest: int = 1
    """The newest list of members."""
    lists: tuple[tuple[int, int], ...] = ()
    """As in ``LeaderLeases``: version, age."""
    drift: int = 0
    """So many more ticks will be lost or gained by the clock of a single process."""


class Fenced(NamedTuple):
    """After ``a`` was declared LOST: only the old launch that is still on its way matters."""

    leased_left: int
    term: int
    sent: int | None
    """Age of the report whose answer, with the new term, is on its way to ``a``."""


@dataclass(frozen=True)
class LeaseRules:
    times: LeaseTimes
    lists: tuple[str, ...]
    """The lists of members, in the order in which they are written; ``"ab"``: hosts a and b."""
    late: bool = False
    drift: int = 0
    every: bool = False
    liar: str = ""
    """A member that lies: the leader always hears it, it always votes, and says what is best for a double run. Its own
    jobs are not looked at. It may do so whatever the others do, so it has no state."""

    def __post_init__(self) -> None:
        for name in ("_voter_steps", "_aged_host", "_counted", "_answered", "_looked"):
            object.__setattr__(self, name, lru_cache(None)(getattr(self, name)))

    @property
    def _old(self) -> int:
        return int(self.times.heard_within_s) + 1

    @property
    def _names(self) -> str:
        """Of the honest hosts."""
        return "".join(sorted(set("".join(self.lists)) - {self.liar}))

    def begin(self) -> World:
        """Every host was just answered; the leader knows nothing yet."""
        host = Host(0, 0, self._old, self._old)
        asker = Asker(host, int(self.times.run_for_s))
        world = World(asker, (host,) * (len(self._names) - 1), None, None, None, self._old, drift=self.drift)
        found = self._look(world)
        assert isinstance(found, World)
        return found

    # -- what can happen next --------------------------------------------------------------------

    def steps(self, world: World | Fenced) -> Iterator[tuple[str, World | Fenced | str]]:
        if isinstance(world, Fenced):
            yield from self._fenced_steps(world)
        elif self.every:
            yield from self._every_step(world)
            yield "look", self._look(world)
        else:
            for event, following in self._every_step(world):
                if not _is_nowhere_nearer(following, world):
                    yield event, self._look(following)

    def _every_step(self, world: World) -> Iterator[tuple[str, World]]:
        yield "tick", self._aged(world, 1, 1, (1,) * len(world.voters))
        yield "new leader", self._new_leader(world)
        yield "other leader begins a round", world._replace(current=self._old)
        if world.newest < len(self.lists):
            yield f"members: {self.lists[world.newest]}", world._replace(newest=world.newest + 1)
        if world.drift:
            yield from self._drifts(world)
        for index, voter in enumerate(world.voters):
            for verb, following in self._voter_steps(voter, world.current):
                yield f"{verb} {self._names[index + 1]}", self._with(world, index, following)
        yield from self._asker_steps(world)

    def _asker_steps(self, world: World) -> Iterator[tuple[str, World]]:
        asker = world.asker
        for renewed in (True, False):
            if world.answer is None:
                answer = Answer(0, renewed, world.current, world.newest)
                silent = None if renewed else world.silent
                word = "renew" if renewed else "report"
                yield f"{word}, answer", world._replace(asker=self._answered(asker, answer), silent=silent)
                if self.late:
                    yield f"{word}, late answer", world._replace(answer=answer, silent=silent)
        if world.answer is not None:
            yield "late answer", world._replace(asker=self._answered(asker, world.answer), answer=None)
            yield "late answer lost", world._replace(answer=None)
        counted = self._counted(asker, world.voters)
        if counted != asker:
            yield "count votes", world._replace(asker=counted)
        for verb, round in (("restart", asker.host.round), ("restart without its file", self._old)):
            begun = HostLease.begin("a", self.times, NOW, run_until=NOW + asker.run_left, round=-round)
            host = self._read(begun, -begun.round, asker.host.heard, 0)
            yield f"{verb} a", world._replace(asker=Asker(host, int(begun.run_until) - NOW, 0), answer=None)

    def _voter_steps(self, voter: Host, current: int) -> list[tuple[str, Host]]:
        lease = self._lease(voter)
        answered = lease.answered(NOW, sent_at=NOW, round=0, term=1, members_version=1, members=None)
        voted, holds_s = lease.vote(NOW)
        begun = HostLease.begin("b", self.times, NOW, round=-voter.round)
        found = [
            ("answer", self._read(answered, current, voter.heard, voter.vote)),
            ("vote", self._read(voted, voter.round, voter.heard, max(voter.vote, int(holds_s)))),
            ("restart", self._read(begun, -begun.round, voter.heard, voter.vote)),
            ("restart without its file", self._read(begun, self._old, voter.heard, voter.vote)),
        ]
        return [(verb, host) for verb, host in found if host != voter]

    def _look(self, world: World) -> World | Fenced | str:
        heard = (world.asker.host.heard, *(voter.heard for voter in world.voters))
        versions = {world.asker.version, world.newest} | ({world.answer.version} if world.answer else set())
        silent, suspected, lists, lost = self._looked(
            world.silent, world.suspected, world.lists, heard, tuple(sorted(versions - {0}))
        )
        if not lost:
            return world._replace(silent=silent, suspected=suspected, lists=lists, current=0)
        if world.asker.run_left > -self.times.end_s:
            return BROKEN
        # By now every answer to an older report is worth nothing: the lease that it brings has ended.
        return Fenced(0, PLANNED_TERM, None)

    def _looked(
        self,
        silent: int | None,
        suspected: int | None,
        lists: tuple[tuple[int, int], ...],
        heard: tuple[int, ...],
        versions: tuple[int, ...],
    ) -> tuple[int, int | None, tuple[tuple[int, int], ...], bool]:
        rounds = {-age: float(NOW - age) for age in range(self._old)}
        members = {version: frozenset(one) for version, one in enumerate(self.lists, 1)}
        leader = LeaderLeases(
            self.times,
            rounds=rounds,
            silence={"a": ("stamp", silent or 0.0)},
            suspected={} if suspected is None else {"a": float(NOW - suspected)},
            lists={"a": {members[version]: float(NOW - age) for version, age in lists}},
        )
        rows = {
            name: LeaseRow("stamp", self.times.ttl_s, -age, False, versions)
            for name, age in zip(self._names, heard, strict=True)
        }
        if self.liar:
            rows[self.liar] = LeaseRow("lie", self.times.ttl_s, 0, False, versions)
        if silent is None:
            rows["a"] = replace(rows["a"], stamp="changed")
        leader, verdict = leader.begin_round(NOW, 1).look(NOW, 0.0, rows, members)
        since = leader.suspected.get("a")
        known = leader.lists["a"]
        return (
            int(leader.silence["a"][1]),
            None if since is None else NOW - int(since),
            tuple((version, NOW - int(known[one])) for version, one in members.items() if one in known),
            "a" in verdict.lost,
        )

    def _new_leader(self, world: World) -> World:
        """It knows no rounds and no silence."""
        old = self._old
        asker = world.asker._replace(host=world.asker.host._replace(round=old, heard=old))
        voters = tuple(sorted(voter._replace(round=old, heard=old) for voter in world.voters))
        answer = world.answer and world.answer._replace(round=old)
        world = world._replace(asker=asker, answer=answer, silent=None, suspected=None, current=old, lists=())
        return world._replace(voters=voters if len(self.lists) == 1 else self._sorted(voters))

    # -- time ------------------------------------------------------------------------------------

    def _drifts(self, world: World) -> Iterator[tuple[str, World]]:
        """The clock of one process gains a tick, or loses one."""
        world = world._replace(drift=world.drift - 1)
        count = 2 + len(world.voters)
        for index in range(count):
            gains = [int(other == index) for other in range(count)]
            loses = [1 - gain for gain in gains]
            name = ["leader", *self._names][index]
            yield f"{name} gains a tick", self._aged(world, gains[0], gains[1], tuple(gains[2:]))
            yield f"{name} loses a tick", self._aged(world, loses[0], loses[1], tuple(loses[2:]))

    def _aged(self, world: World, leader: int, own: int, voters: tuple[int, ...]) -> World:
        """``leader``, ``own`` (of ``a``), ``voters``: how many ticks pass on each clock."""
        asker, answer, times = world.asker, world.answer, self.times
        end = int(times.end_s)
        if answer is not None:
            sent = min(answer.sent + own, int(times.run_for_s) + end)
            answer = answer._replace(sent=sent, round=min(answer.round + leader, self._old))
        return world._replace(
            asker=asker._replace(
                host=self._aged_host(asker.host, own, leader, own), run_left=max(-end, asker.run_left - own)
            ),
            voters=self._sorted(
                tuple(
                    self._aged_host(voter, ticks, leader, own)
                    for voter, ticks in zip(world.voters, voters, strict=True)
                )
            ),
            answer=answer,
            silent=None if world.silent is None else min(world.silent + leader, int(times.ttl_s)),
            suspected=None if world.suspected is None else min(world.suspected + leader, int(times.kill_s)),
            current=min(world.current + leader, self._old),
            lists=tuple((version, min(age + leader, int(times.vote_binds_s) + 1)) for version, age in world.lists),
        )

    def _aged_host(self, host: Host, own: int, leader: int, asker: int) -> Host:
        older = Host(
            host.answered + own,
            max(0, host.promised - own),
            min(host.round + leader, self._old),
            min(host.heard + leader, self._old),
            max(0, host.vote - asker),
        )
        return self._read(self._lease(older), older.round, older.heard, older.vote)

    # -- from numbers to classes and back ----------------------------------------------------------

    def _lease(self, host: Host) -> HostLease:
        return HostLease(
            name="a",
            times=self.times,
            answered_at=NOW - host.answered,
            run_until=-1.0,
            leased_until=-1.0,
            vote_binds_until=NOW + host.promised,
        )

    def _read(self, lease: HostLease, round: int, heard: int, vote: int) -> Host:
        """``heard`` becomes the round of a report that is sent now, if the leader would hear it."""
        row = LeaseRow(0, self.times.ttl_s, -round, lease.voted(NOW), (1,))
        leader = LeaderLeases(self.times, rounds={-round: float(NOW - round)})
        if round < self._old and leader.look(NOW, 0.0, {"a": row}, {1: frozenset("a")})[1].heard:
            heard = min(heard, round)
        answered = min(NOW - int(lease.answered_at), int(self.times.vote_after_s))
        return Host(answered, max(0, int(lease.vote_binds_until) - NOW), round, heard, vote)

    def _asker_lease(self, asker: Asker) -> HostLease:
        members = frozenset(self.lists[asker.version - 1] if asker.version else "")
        return replace(self._lease(asker.host), run_until=float(NOW + asker.run_left), members=members)

    def _answered(self, asker: Asker, answer: Answer) -> Asker:
        lease = self._asker_lease(asker).answered(
            NOW,
            sent_at=NOW - answer.sent,
            round=0,
            term=PLANNED_TERM,
            members_version=answer.version,
            members=self.lists[answer.version - 1],
            renewed=answer.renewed,
        )
        host = self._read(lease, answer.round, asker.host.heard, 0)
        return Asker(host, int(lease.run_until) - NOW, lease.members_version)

    def _counted(self, asker: Asker, voters: tuple[Host, ...]) -> Asker:
        votes = {name: float(voter.vote) for name, voter in zip(self._names[1:], voters, strict=True)}
        votes |= {self.liar: float(self.times.vote_for_s)} if self.liar else {}
        lease = self._asker_lease(asker).given(NOW, votes).counted(NOW)
        host = self._read(lease, asker.host.round, asker.host.heard, 0)
        return Asker(host, int(lease.run_until) - NOW, asker.version)

    def _with(self, world: World, index: int, voter: Host) -> World:
        voters = (*world.voters[:index], voter, *world.voters[index + 1 :])
        return world._replace(voters=self._sorted(voters))

    def _sorted(self, voters: tuple[Host, ...]) -> tuple[Host, ...]:
        """Voters that are in the same lists are alike."""
        if len(self.lists) == 1:
            return tuple(sorted(voters))
        alike: dict[str, list[int]] = {}
        for index, name in enumerate(self._names[1:]):
            alike.setdefault("".join(str(int(name in one)) for one in self.lists), []).append(index)
        found = list(voters)
        for indices in alike.values():
            for index, voter in zip(indices, sorted(voters[index] for index in indices), strict=True):
                found[index] = voter
        return tuple(found)

    # -- after the loss ----------------------------------------------------------------------------

    def _fenced_steps(self, world: Fenced) -> Iterator[tuple[str, Fenced | str]]:
        lease = replace(
            self._lease(Host(0, 0, self._old, self._old)),
            run_until=float(NOW + world.leased_left),
            leased_until=float(NOW + world.leased_left),
            term=world.term,
        )
        older = None if world.sent is None else min(world.sent + 1, int(self.times.run_for_s))
        yield "tick", Fenced(max(0, world.leased_left - 1), world.term, older)
        if world.sent is None:
            yield "report", world._replace(sent=0)
        else:
            yield "answer lost", world._replace(sent=None)
            lease = lease.answered(
                NOW, sent_at=NOW - world.sent, round=0, term=NEW_TERM, members_version=1, members="a"
            )
            yield "answer", Fenced(max(0, int(lease.leased_until) - NOW), lease.term, None)
        yield "reboot a", Fenced(0, 0, None)
        if may_start(NOW, NOW + world.leased_left, world.term, PLANNED_TERM):
            yield "the launch of attempt 1 arrives", BROKEN


def _is_nowhere_nearer(following: World, world: World) -> bool:
    """Is ``following`` in no number nearer to a double run? Then whatever breaks it breaks ``world`` as well."""
    if (following.answer, following.newest, following.drift) != (world.answer, world.newest, world.drift):
        return False
    if following.lists != world.lists and world.newest > 1:
        return False
    if following.asker.version != world.asker.version and world.newest > 1:
        return False
    return all(new <= old for new, old in zip(_dangers(following), _dangers(world), strict=True))


def _dangers(world: World) -> tuple[int, ...]:
    """The more, the nearer to a double run: silent, heard, with votes, and with ranks that may run."""
    hosts = (world.asker.host, *world.voters)
    of_hosts = [(host.answered, -host.promised, -host.round, -host.heard, host.vote) for host in hosts]
    silent = -1 if world.silent is None else world.silent
    suspected = -1 if world.suspected is None else world.suspected
    return (world.asker.run_left, silent, suspected, -world.current, *(one for host in of_hosts for one in host))
