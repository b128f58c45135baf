"""Which waiting requests surely find no place now: one look at all of them at once, before a round looks at each.

A round would examine each request on each host that changed. With thousands of different requests in a full cluster
nearly all of that finds nothing. So the screen asks a simpler question that is never stricter: are there as many hosts
with enough free GPUs, CPUs and memory, of a machine that the request accepts? It counts hosts of one kind together.
A request for which the answer is no has no place. For the others the round looks itself, and tells the screen what it
found. Then only hosts that changed since count as possible.

A request without a place still has its turn if it would get a date there, or keep hosts from those behind it. The
screen knows which requests would do neither (:class:`Effect`). They need no turn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.host_choice import HostChoice
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, GpuSets, HostIndices, Snapshot
from gpu_platform.scheduling.placing.candidates import Candidates, shape_of
from gpu_platform.scheduling.placing.domains import is_between_hosts
from gpu_platform.scheduling.placing.framework import Framework, HostQuery
from gpu_platform.scheduling.queueing.job_queue import GroupKey, JobQueue

Flags = NDArray[np.bool_]
FEWEST = 24
"""With fewer groups the screen would cost more than it saves."""
FIRST_IN_VAIN, MOST_IN_VAIN, REQUESTS_PER_TURN = 4, 8, 300
"""After so many jobs without a place the screen looks again. The number doubles each time, up to MOST_IN_VAIN, or
requests / REQUESTS_PER_TURN if that is more: a look at so many requests costs about as much as a turn.
"""
FIRST_GROUPS = 256
NEW_GROUPS = 128
"""How many new groups are examined in one round. Each takes about 0.1 ms."""
NOT_EXAMINED, NOT_FOR_SCREEN = -1, -2
UNUSED_ROUNDS = 64
"""Requests that no round has seen for so long are forgotten when room is needed."""
TAKES_GPUS, TAKES_BOTH, TAKES_ROOM = range(3)
"""What a request takes of hosts: GPUs; GPUs and CPUs or memory; CPUs or memory only."""
_TAKEN = {TAKES_GPUS: [0], TAKES_BOTH: [0, 1], TAKES_ROOM: [1]}
"""Row numbers in the arrays of :class:`RoundView`."""


@dataclass(frozen=True)
class RoundView:
    """How far a round is. Arrays are [GPUs, CPUs and memory; hosts]."""

    now: float
    kept: Flags
    """Hosts that are kept for a job."""
    kept_from_unlimited: Flags
    """Hosts that are kept only from jobs without a time limit."""
    has_reservation: Flags
    """Hosts that a job with a planned reservation could use."""
    reservations: Sequence[PlannedReservation]
    no_more_dates: bool
    """A job gets no date any more, unless no job ahead has one for hosts that it could use."""


class Shortage(IntEnum):
    """Why a request surely finds no place. Each answer includes those before it."""

    UNKNOWN = 0
    """It may find one."""
    RESERVED = 1
    """Too few hosts have enough left beside what is kept and reserved for others."""
    KEPT = 2
    """Too few of the hosts that are not kept have enough left, whatever is reserved."""
    FULL = 3
    """Too few hosts have enough left, whatever is kept and reserved."""


class Effect(IntEnum):
    """What is different for others if a request waits. Each answer includes those before it."""

    SOME = 0
    """It may get a date, or keep hosts from others."""
    NONE = 1
    """Nothing: all hosts that it could use are kept already. Only known of requests without exclusions."""
    NONE_EVER = 2
    """The same if it came in after the last decision, and so might keep hosts from jobs with a promise: a job ahead has
    a reservation for hosts that it could use, so it keeps none."""


@dataclass(frozen=True)
class Outlook:
    """What is known about a request before the round looks at it."""

    shortage: Shortage = Shortage.UNKNOWN
    effect: Effect = Effect.SOME


NOTHING_KNOWN = Outlook()


@dataclass(frozen=True)
class Outlooks:
    """The outlooks of many requests, as arrays."""

    shortage: NDArray[np.int8]
    effect: NDArray[np.int8]

    def at(self, indices: NDArray[np.intp]) -> Outlooks:
        """Return the outlooks at these indices, and that nothing is known where an index is below 0."""
        known = indices >= 0
        return Outlooks(np.where(known, self.shortage[indices], 0), np.where(known, self.effect[indices], 0))


class Screening:
    """The screen in one round. It looks at all requests when the round begins, and again when the round has looked at
    several jobs in vain and something changed since. What it found stays true in the round: there GPUs are only taken,
    and hosts are only kept.
    """

    def __init__(self, screen: RequestScreen, queue: JobQueue) -> None:
        self._screen, self._queue = screen, queue
        self._outlooks: Outlooks | None = None
        self._in_vain, self._most, self._limit = 0, FIRST_IN_VAIN, MOST_IN_VAIN

    def begin(
        self,
        numbers: NDArray[np.intp],
        always: Iterable[str],
        view: Callable[[], RoundView],
        stamp: Callable[[], Hashable],
    ) -> Flags | None:
        """Look at all groups that wait, by their numbers in the queue. Return which of them must have no turn in this
        round, because too many new requests came at once. None: all may.

        ``always``: jobs that always have their turn. ``view`` says how far the round is; ``stamp`` changes with it.
        """
        if not self._screen.works or min(len(self._queue), len(numbers)) < FEWEST:
            return None
        self._view, self._stamp = view, stamp
        self._limit = max(MOST_IN_VAIN, len(numbers) // REQUESTS_PER_TURN)
        self._indices = self._screen.begin(numbers, self._queue)
        left_out: Flags | None = None
        if (self._indices == NOT_EXAMINED).any():
            requests = (self._queue.get(job_id) for job_id in always)
            theirs = [self._queue.numbers_for(request) for request in requests if request is not None]
            left_out = (self._indices == NOT_EXAMINED) & ~np.isin(numbers, theirs)
        self._look()
        return left_out

    def of(self, request: PlacementRequest) -> Outlook:
        """Return what is known about a job."""
        outlooks, index = self._outlooks, self._index(request)
        if outlooks is None or index < 0:
            return NOTHING_KNOWN
        return Outlook(Shortage(int(outlooks.shortage[index])), Effect(int(outlooks.effect[index])))

    def possible_hosts(self, request: PlacementRequest) -> HostIndices | None:
        """Return the hosts of which one may fit the job: no other does. None: nothing is known."""
        index = self._index(request)
        return None if index < 0 else self._screen.possible_hosts(index)

    def looked(self, request: PlacementRequest, candidates: Candidates) -> None:
        """Note that the round looked at all hosts for a job and found no place."""
        index = -1 if request.has_exclusions else self._index(request)
        if index >= 0:
            self._screen.looked(index, candidates)

    def waits(self) -> Outlooks | None:
        """Note that the round looked at a job, and the job waits. Return new outlooks of all groups, in the order of
        their numbers, if it was time to look again.
        """
        self._in_vain += 1
        if self._outlooks is None or self._in_vain < self._most:
            return None
        self._in_vain = 0
        if self._stamp() == self._seen:
            return None
        self._most = min(2 * self._most, self._limit)
        return self._look().at(self._indices)

    def _index(self, request: PlacementRequest) -> int:
        """Return the index of the job's group in the screen. -1: it has none."""
        return -1 if self._outlooks is None else self._screen.index(self._queue.group(request))

    def _look(self) -> Outlooks:
        self._seen, self._outlooks = self._stamp(), self._screen.judge(self._view())
        return self._outlooks


class RequestScreen:
    """Finds requests without a place. Only for equal slices; with a filter that it does not know it is off."""

    def __init__(self, framework: Framework, snapshot: Snapshot) -> None:
        self._framework, self._snapshot = framework, snapshot
        self._classes = HostClasses(snapshot)
        self._groups = KnownGroups.of(FIRST_GROUPS)
        self._of: dict[GroupKey, int] = {}
        self._index_of = np.full(FIRST_GROUPS, NOT_EXAMINED, np.intp)
        """By the number of a group in the queue."""
        self._key_of: dict[int, GroupKey] = {}
        self._answers: dict[tuple[object, ...], int] = {}
        self._queries: list[HostQuery] = []
        self._choices = {HostChoice(): 0}
        """Choice of hosts, by labels and names -> its number: its place in this."""
        self._can: Flags = np.zeros((FIRST_GROUPS, 1), bool)
        """[answer, class of hosts]: could such a host serve the request if it were empty and in order? Labels and
        names of hosts are left out: hosts of one class may have different ones.
        """
        self._round = 0
        self._free: tuple[int, NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def works(self) -> bool:
        """False if there is a filter that may look at more than the screen knows: see ``Filter.is_screened``."""
        return all(step.is_screened for step in self._framework.filters)

    def index(self, key: GroupKey) -> int:
        """Return the index of a group, or -1 if it has none."""
        return self._of.get(key, -1)

    def begin(self, numbers: NDArray[np.intp], queue: JobQueue) -> NDArray[np.intp]:
        """Note which groups wait in this round, by their numbers in the queue. Return the index of each of them, or
        NOT_FOR_SCREEN, or NOT_EXAMINED: at most NEW_GROUPS that nobody has asked for before are examined in a round,
        the first ones.
        """
        self._round += 1
        self._learn_classes(self._classes.update())
        for number, key in queue.take_new_groups().items():
            self._note(number, self._of.get(key, NOT_EXAMINED), key)
        indices = self._index_of[numbers]
        self._groups.used[indices[indices >= 0]] = self._round
        unknown = np.flatnonzero(indices == NOT_EXAMINED)
        if not len(unknown):
            return indices
        _, places = np.unique(numbers[unknown], return_index=True)
        new = numbers[unknown[np.sort(places)[:NEW_GROUPS]]].tolist()
        if len(self._of) + len(new) > len(self._groups.key):
            self._make_room(len(new))
        for number in new:
            key = self._key_of[number]
            request = queue.first(key)
            if request is not None:
                self._note(number, self._add(key, request) if _is_screened(request) else NOT_FOR_SCREEN, key)
        return self._index_of[numbers]

    def _note(self, number: int, index: int, key: GroupKey) -> None:
        """Note the index of the group that has the number now."""
        if number >= len(self._index_of):
            more = np.full(2 * number - len(self._index_of), NOT_EXAMINED, np.intp)
            self._index_of = np.concatenate([self._index_of, more])
        self._index_of[number], self._key_of[number] = index, key

    def possible_hosts(self, index: int) -> HostIndices:
        """Return the hosts that have enough of everything for a group, whatever is kept or reserved. No other host fits
        it."""
        hosts = np.flatnonzero(self._with_shared() >= max(1, int(self._groups.gpus[index])))
        if not self._groups.gpus[index]:
            hosts = np.arange(len(self._snapshot))
        passes = self._passes(np.array([index]), hosts, self._whole()[hosts], self._with_shared()[hosts])
        return hosts[passes[0]]

    def looked(self, index: int, candidates: Candidates) -> None:
        """Note that a round looked at all hosts for the request."""
        self._groups.checked_at[index] = self._snapshot.version
        self._groups.fitted[index] = np.count_nonzero(candidates.fits)

    def judge(self, view: RoundView) -> Outlooks:
        """Return the outlooks of all groups of this round. They stay true for the rest of the round."""
        n = len(self._groups.key)
        shortage, effect = np.zeros(n, np.int8), np.zeros(n, np.int8)
        here = np.flatnonzero(self._groups.used == self._round)
        for takes, rows in _TAKEN.items():
            alike = here[self._groups.takes[here] == takes]
            if not len(alike):
                continue
            kept = _any(view.kept[rows])
            effect[alike] = self._effect(alike, view, rows)
            maybe = self._without_place(alike, np.ones(len(kept), bool), Shortage.FULL, shortage)
            if kept.any():
                maybe = self._without_place(maybe, ~kept, Shortage.KEPT, shortage)
            for group, closed, reserved in self._by_binding(maybe, view, rows, kept):
                shortage[group] = Shortage.RESERVED * self._too_few_left(group, ~closed, reserved)
        return Outlooks(shortage, effect)

    # -- the questions -----------------------------------------------------------------------------

    def _without_place(
        self, indices: NDArray[np.intp], open_hosts: Flags, why: Shortage, shortage: NDArray[np.int8]
    ) -> NDArray[np.intp]:
        """Note in ``shortage`` for which groups too few of the hosts have enough left. Return the other groups."""
        for too_few in (self._too_few, self._too_few_since):
            answer = too_few(indices, open_hosts)
            shortage[indices[answer]] = why
            indices = indices[~answer]
        return indices

    def _too_few(self, indices: NDArray[np.intp], open_hosts: Flags) -> Flags:
        """Tell for which groups too few hosts have enough free GPUs. Hosts of a class are counted together."""
        shares = self._groups.shares[indices]
        result = np.zeros(len(indices), bool)
        for which, free in ((~shares, self._whole()), (shares, self._with_shared())):
            if not which.any():
                continue
            some = indices[which]
            width = int(self._snapshot.size.max(initial=0)) + 1
            counted = np.flatnonzero(open_hosts & (free >= 0))
            cells = np.bincount(self._classes.of[counted] * width + free[counted], minlength=self._classes.n * width)
            at_least = cells.reshape(self._classes.n, width)[:, ::-1].cumsum(axis=1)[:, ::-1]
            gpus = self._groups.gpus[some]
            there = at_least[:, np.minimum(gpus, width - 1)].T * (gpus < width)[:, None]
            result[which] = (there * self._can_of(some)).sum(axis=1) < self._groups.hosts[some]
        return result

    def _too_few_since(self, indices: NDArray[np.intp], open_hosts: Flags) -> Flags:
        """Do the same host by host, for groups at which a round looked: what fitted then, and what changed since."""
        result = np.zeros(len(indices), bool)
        which = np.flatnonzero(self._groups.checked_at[indices] >= 0)
        known = indices[which]
        if len(known):
            changed = self._snapshot.changed_at[ChangeKind.USE]
            hosts = np.flatnonzero(open_hosts & (changed > self._groups.checked_at[known].min()))
            new = self._passes(known, hosts, self._whole()[hosts], self._with_shared()[hosts])
            new &= changed[hosts] > self._groups.checked_at[known, None]
            result[which] = new.sum(axis=1) + self._groups.fitted[known] < self._groups.hosts[known]
        return result

    def _too_few_left(self, indices: NDArray[np.intp], open_hosts: Flags, reserved: GpuSets | None) -> Flags:
        """Do the same host by host, without GPUs that are reserved for others."""
        snapshot, shared = self._snapshot, self._with_shared()
        hosts = np.flatnonzero(open_hosts & (shared >= 0))
        free, either = self._whole()[hosts], shared[hosts]
        if reserved is not None:
            left = snapshot.available(hosts) & ~reserved[hosts]
            free = np.bitwise_count(left).astype(np.int64)
            either = np.bitwise_count(left | snapshot.shared.partly[hosts] & ~reserved[hosts]).astype(np.int64)
        least = int(self._groups.gpus[indices].min())
        some = either >= least
        return self._passes(indices, hosts[some], free[some], either[some]).sum(axis=1) < self._groups.hosts[indices]

    def _passes(
        self, indices: NDArray[np.intp], hosts: HostIndices, free: NDArray[np.int64], either: NDArray[np.int64]
    ) -> Flags:
        """Return [groups, hosts]: has the host enough of everything?"""
        asked, snapshot = self._groups, self._snapshot
        passes = self._can[np.ix_(asked.answer[indices], self._classes.of[hosts])]
        gpus = asked.gpus[indices, None]
        shares = asked.shares[indices, None]
        passes &= gpus <= (np.where(shares, either, free) if shares.any() else free)
        if asked.choice[indices].any():
            choices = list(self._choices)
            for number in np.unique(asked.choice[indices]).tolist():
                passes[asked.choice[indices] == number] &= snapshot.accepted_by(choices[number])[hosts]
        if asked.takes[indices[0]] != TAKES_GPUS:
            cpus = snapshot.cpus[hosts] - snapshot.cpus_used[hosts] - snapshot.cpus_held[hosts]
            ram = snapshot.ram_mib[hosts] - snapshot.ram_mib_used[hosts] - snapshot.ram_mib_held[hosts]
            passes &= (asked.cpus[indices, None] <= cpus) & (asked.ram_mib[indices, None] <= ram)
        return passes

    def _by_binding(
        self, indices: NDArray[np.intp], view: RoundView, rows: list[int], kept: Flags
    ) -> Iterable[tuple[NDArray[np.intp], Flags, GpuSets | None]]:
        """Yield the groups for which the same reservations count, together, with the hosts and GPUs that are closed."""
        limit = self._groups.limit_s[indices]
        endless = limit == math.inf
        expected = self._groups.is_expected[indices]
        firm = (one for one in view.reservations if one.is_promised or one.is_expected)
        promised = sorted(firm, key=lambda one: one.start)
        starts = np.array([one.start for one in promised])
        binding = np.searchsorted(starts, view.now + limit)  # those that start before the job ends
        reserved: GpuSets | None = None
        done = 0
        for count in np.unique(binding[~endless]).tolist():
            reserved = _with_more(reserved, promised[done:count], len(kept))
            done = count
            yield indices[(binding == count) & ~endless], kept, None if reserved is None else reserved.copy()
        if expected.any():  # others bind it only if it will run beyond them
            firmly = _with_more(None, (one for one in view.reservations if one.is_promised), len(kept))
            yield indices[expected], kept, firmly
        endless &= ~expected
        if endless.any():
            closed = _any(view.kept[rows] | view.kept_from_unlimited[rows])
            yield indices[endless], closed, _with_more(None, view.reservations, len(kept))

    def _effect(self, indices: NDArray[np.intp], view: RoundView, rows: list[int]) -> NDArray[np.int8]:
        """Return for each group what is different for others if it waits."""
        classes, can = self._classes, self._can_of(indices)
        reserved = _any(view.has_reservation[rows])
        is_kept = ~(can & classes.among(_any(~view.kept[rows]))).any(axis=1)
        covered = ~(can & classes.among(_any(~view.kept_from_unlimited[rows]))).any(axis=1)
        covered &= ~(can & classes.among(~reserved)).any(axis=1)
        none = is_kept & (covered | ~(can & classes.among(reserved)).any(axis=1))
        none_ever = np.zeros(len(indices), bool)
        if view.no_more_dates:
            snapshot = self._snapshot
            sound = snapshot.ready & (snapshot.working == snapshot.all_gpus) & (snapshot.hot == 0)
            # A host behind a reservation must surely be usable. Of a gang inside one domain this is not known, nor of a
            # request that takes only some hosts of a class.
            follows = (can & classes.among(reserved & sound)).any(axis=1)
            follows &= ~self._groups.spans[indices] & (self._groups.choice[indices] == 0)
            none_ever = follows & covered
        effect = np.where(none_ever, Effect.NONE_EVER, np.where(none, Effect.NONE, Effect.SOME))
        return np.where(self._groups.excludes[indices], Effect.SOME, effect).astype(np.int8)

    # -- what is remembered ------------------------------------------------------------------------

    def _can_of(self, indices: NDArray[np.intp]) -> Flags:
        return self._can[self._groups.answer[indices], : self._classes.n]

    def _whole(self) -> NDArray[np.int64]:
        return self._counts()[1]

    def _with_shared(self) -> NDArray[np.int64]:
        return self._counts()[2]

    def _counts(self) -> tuple[int, NDArray[np.int64], NDArray[np.int64]]:
        """Return (version, free GPUs, free or shared GPUs) of each host; -1 for a host that is away."""
        snapshot = self._snapshot
        if self._free is None or self._free[0] != snapshot.version:
            available = snapshot.available()
            whole = np.bitwise_count(available).astype(np.int64)
            either = np.bitwise_count(available | snapshot.shared.partly[: len(snapshot)]).astype(np.int64)
            whole[~snapshot.ready] = either[~snapshot.ready] = -1
            self._free = snapshot.version, whole, either
        return self._free

    def _add(self, key: GroupKey, request: PlacementRequest) -> int:
        known, resources, index = self._groups, request.resources, len(self._of)
        self._of[key] = index
        known.key[index] = key
        known.gpus[index], known.hosts[index] = resources.gpus_per_host, resources.hosts
        known.cpus[index], known.ram_mib[index] = resources.cpus_per_host, resources.ram_mib_per_host
        known.limit_s[index] = math.inf if request.time_limit_s is None else request.time_limit_s
        known.is_expected[index] = request.assumed_limit_s is not None
        known.takes[index] = TAKES_GPUS
        if request.needs_host_resources:
            known.takes[index] = TAKES_BOTH if request.gpu_count else TAKES_ROOM
        known.shares[index], known.excludes[index] = resources.share is not None, request.has_exclusions
        known.spans[index] = resources.hosts > 1 and is_between_hosts(resources.gang_level)
        known.checked_at[index], known.used[index] = -1, self._round
        known.answer[index] = self._answer(request.asking_for(resources.on_any_host()))
        known.choice[index] = self._choices.setdefault(resources.host_choice, len(self._choices))
        return index

    def _make_room(self, more: int) -> None:
        """Forget groups that were not seen for long, and get room for ``more``."""
        indices = np.flatnonzero(self._groups.used[: len(self._of)] >= self._round - UNUSED_ROUNDS)
        place_of = np.full(len(self._of), NOT_EXAMINED, np.intp)
        place_of[indices] = np.arange(len(indices))
        known = self._index_of >= 0
        self._index_of[known] = place_of[self._index_of[known]]
        self._groups = self._groups.taken(indices, 2 * (len(indices) + more))
        self._of = {key: index for index, key in enumerate(self._groups.key[: len(indices)]) if key is not None}
        kept, answer = np.unique(self._groups.answer[: len(indices)], return_inverse=True)
        self._groups.answer[: len(indices)] = answer
        new = {number: place for place, number in enumerate(kept.tolist())}
        self._answers = {key: new[number] for key, number in self._answers.items() if number in new}
        self._queries = [self._queries[number] for number in kept.tolist()]
        can = np.zeros((len(self._groups.key), self._can.shape[1]), bool)
        can[: len(kept)] = self._can[kept]
        self._can = can
        choices = list(self._choices)
        used = np.union1d(0, self._groups.choice[: len(indices)])  # 0 stays 0
        self._groups.choice[: len(indices)] = np.searchsorted(used, self._groups.choice[: len(indices)])
        self._choices = {choices[number]: place for place, number in enumerate(used.tolist())}

    def _answer(self, request: PlacementRequest) -> int:
        shape = shape_of(request)
        number = self._answers.get(shape)
        if number is None:
            number = self._answers[shape] = len(self._queries)
            self._queries.append(query := HostQuery(request.resources, tenant=request.tenant))
            self._can[number] = False
            self._ask(number, query, self._classes.present)
        return number

    def _ask(self, number: int, query: HostQuery, classes: NDArray[np.intp]) -> None:
        hosts = self._classes.example[classes]
        self._can[number, classes] = self._framework.could_serve(query, self._snapshot, hosts, ChangeKind.HEALTH)

    def _learn_classes(self, new: NDArray[np.intp]) -> None:
        """Ask all requests about new classes of hosts."""
        if self._classes.n > self._can.shape[1]:
            wider = np.zeros((len(self._can), 2 * self._classes.n), bool)
            wider[:, : self._can.shape[1]] = self._can
            self._can = wider
        for number, query in enumerate(self._queries) if len(new) else ():
            self._ask(number, query, new)


@dataclass
class KnownGroups:
    """What the screen knows of each group of jobs. Arrays by index of the group."""

    key: list[GroupKey | None]
    gpus: NDArray[np.int64]
    hosts: NDArray[np.int64]
    cpus: NDArray[np.int64]
    ram_mib: NDArray[np.int64]
    limit_s: NDArray[np.float64]
    is_expected: Flags
    """It has no time limit, but its run time is known."""
    takes: NDArray[np.int8]
    shares: Flags
    excludes: Flags
    spans: Flags
    """All its hosts must be in one domain."""
    choice: NDArray[np.intp]
    """The number of its choice of hosts, by labels and names. 0: it takes any."""
    answer: NDArray[np.intp]
    """The number of its answers: see ``RequestScreen._can``."""
    checked_at: NDArray[np.int64]
    """The version of the snapshot at which a round looked at all hosts."""
    fitted: NDArray[np.int64]
    """On how many hosts it fitted then."""
    used: NDArray[np.int64]
    """The last round that asked."""

    @classmethod
    def of(cls, n: int) -> KnownGroups:
        """Return room for ``n`` groups."""
        whole = {name: np.zeros(n, np.int64) for name in ("gpus", "hosts", "cpus", "ram_mib", "fitted", "used")}
        flags = {name: np.zeros(n, bool) for name in ("shares", "excludes", "spans", "is_expected")}
        return cls(
            key=[None] * n,
            limit_s=np.full(n, math.inf),
            takes=np.zeros(n, np.int8),
            choice=np.zeros(n, np.intp),
            answer=np.zeros(n, np.intp),
            checked_at=np.full(n, -1, np.int64),
            **whole,
            **flags,
        )

    def taken(self, indices: NDArray[np.intp], room: int) -> KnownGroups:
        """Return these groups, in their order, with room for ``room``."""
        result = KnownGroups.of(room)
        for name, array in vars(self).items():
            if name == "key":
                result.key[: len(indices)] = [self.key[index] for index in indices.tolist()]
            else:
                getattr(result, name)[: len(indices)] = array[indices]
        return result


class HostClasses:
    """The class of each host, by its machine, CUDA versions, isolation, MPS, CPUs and memory. Hosts of one class give
    every request the same answer once they are empty. Labels and names are asked host by host.

    A filter that reads another fact of a host is not screened: see ``framework.Filter.is_screened``.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._numbers: dict[tuple[int, ...], int] = {}
        self._seen = 0
        self.of: NDArray[np.intp] = np.zeros(0, np.intp)
        """The class of each host, by host index."""
        self.present: NDArray[np.intp] = np.zeros(0, np.intp)
        """The classes that have hosts."""
        self.example: NDArray[np.intp] = np.zeros(0, np.intp)
        """A host of each class, by class."""

    @property
    def n(self) -> int:
        """The number of classes, also of those that have no hosts any more."""
        return len(self.example)

    def among(self, hosts: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return by class whether one of ``hosts`` (by host index) is of it."""
        found = np.zeros(self.n, bool)
        found[self.of[hosts]] = True
        return found

    def update(self) -> NDArray[np.intp]:
        """Follow the facts of the snapshot. Return the classes that have hosts now and had none before."""
        snapshot = self._snapshot
        if self._seen == snapshot.facts_version and len(self.of) == len(snapshot):
            return np.zeros(0, np.intp)
        columns = (snapshot.machine, snapshot.cuda, snapshot.isolates, snapshot.mps, snapshot.cpus, snapshot.ram_mib)
        facts = zip(*(column.tolist() for column in columns), strict=True)
        self.of = np.array([self._numbers.setdefault(one, len(self._numbers)) for one in facts], np.intp)
        before, (self.present, first) = self.present, np.unique(self.of, return_index=True)
        self.example = np.zeros(len(self._numbers), np.intp)
        self.example[self.present] = first
        self._seen = snapshot.facts_version
        return np.setdiff1d(self.present, before)


def _is_screened(request: PlacementRequest) -> bool:
    """Tell whether the screen knows such requests. It knows no windows: what it rules out has no place anyway."""
    return request.is_plain and request.resources.reservation is None


def _any(rows: Flags) -> Flags:
    """Tell for each host whether any of the rows has it."""
    return np.asarray(rows.any(axis=0), bool)


def _with_more(reserved: GpuSets | None, more: Iterable[PlannedReservation], hosts: int) -> GpuSets | None:
    """Add the GPUs of reservations to a set by host, which is changed. None: nothing is reserved."""
    for one in more:
        reserved = np.zeros(hosts, np.uint64) if reserved is None else reserved
        reserved[one.hosts] |= one.gpus
    return reserved
