"""One round of serving: each group of waiting jobs gets its turn, in order.

A turn has five steps:

1. **order**: who is next? The policy says it (``order``).
2. **quotas**: may the job have so many GPUs more? If not, it waits for quota and is in nobody's way (``quotas``).
3. **place**: is there a place beside everything that others keep? Then the job starts (``places``).
4. **date**: if there is none, when will there be one? What the job waits for is kept from those behind it (``dates``,
   ``kept``).
5. **explain**: what the round found out is noted, so that the user can be told (:class:`Waits`).

One rule prevents starvation: the first job that waits for GPUs of others gets a **planned reservation** with a date
(see ``backfill``), and so do some jobs behind it. If nothing gives a date, the job **keeps the hosts that it could
use**: jobs behind it may start only on other hosts. So the hosts that it keeps become empty, and it starts.

GPUs are kept apart from CPUs and memory: a job that needs only GPUs may start before one that waits only for CPUs. A
job that waits behind the first one without a date blocks its hosts only for jobs without a time limit, because these
might never end.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.backfilling.promises import EarlierPromises, Overruns
from gpu_platform.scheduling.cluster.windows import ALL_CLOSED, holds_at_most_s
from gpu_platform.scheduling.queueing.job_queue import NeedKey
from gpu_platform.scheduling.queueing.quota import QuotaDenial
from gpu_platform.scheduling.round.dates import RoundDates
from gpu_platform.scheduling.round.kept import (
    NO_TURN,
    RespectedReservations,
    RoundKeptHosts,
    hosts_beside_windows,
    usable_hosts,
)
from gpu_platform.scheduling.round.order import (
    EVERYBODY,
    NOBODY,
    WITHOUT_EXCLUSIONS,
    AlsoWait,
    EveryJobCursor,
    QueueCursor,
    ServiceSortKey,
    ShareKeys,
    in_share_order,
)
from gpu_platform.scheduling.round.places import RoundPlaces
from gpu_platform.scheduling.round.quotas import QuotaDenials
from gpu_platform.scheduling.round.screen import Effect, Outlook, RoundView, Screening, Shortage
from gpu_platform.scheduling.round.state import SchedulerState

GIVE_UP_AFTER = 16
"""If this many jobs with exclusions in a row kept no further host, the other jobs of their need are skipped."""


HOSTS_LOOKED_AT, FEWEST_TURNS, FEWEST_STARTS = 8_000, 8, 2
"""After HOSTS_LOOKED_AT / hosts turns, but not fewer than FEWEST_TURNS, the round ends with the next job that starts,
if FEWEST_STARTS jobs have started in it. The next one goes on. Under conservative backfill one start is enough: there a
turn costs more, because each job respects the promises of all others.
"""


@dataclass(frozen=True)
class Waits:
    """The answer of a round to a request that does not start in it."""

    request: PlacementRequest
    turn: float
    denial: QuotaDenial | None = None
    """Why the quotas do not allow it. None: they do, and it waits for GPUs."""
    starts_by: float | None = None
    """The date that it is promised. None: none that anybody knows."""


@dataclass
class SchedulingRound:
    """One pass through the queue. ``placed`` is called with each placement before the round looks at the next job."""

    state: SchedulerState
    now: float
    placed: Callable[[PlacementRequest, Placement], None]
    reservations: list[tuple[int, PlannedReservation]] = field(default_factory=list)
    """Planned reservations with the turns of their jobs."""
    placements: list[tuple[PlacementRequest, Placement]] = field(default_factory=list)
    claims: Sequence[PlannedReservation] = ()
    """GPUs that preemption freed for certain jobs."""
    hold_back_priority: float = -math.inf
    """Jobs of this priority or lower are not served: see ``DisplacedJobs.hold_back_priority``."""
    job_of_turn: dict[int, str] = field(default_factory=dict)
    """Turn -> job id, for jobs that keep or reserve something."""
    waiting: dict[str, Waits] = field(default_factory=dict)
    """For each class of jobs that had a turn, its first job that waits."""
    overdue: dict[str, str] = field(default_factory=dict)
    """Job without a date -> the running job because of which nobody knows it: it has run over its time limit."""
    puts_promises_off: bool = False
    """True if a job that had a promise waits without one now, or with a later one."""
    promised_start: dict[str, float] = field(default_factory=dict)
    """For each class of jobs, the date that was promised to its first job."""

    def __post_init__(self) -> None:
        state, hosts = self.state, len(self.state.snapshot)
        self.turns: list[ServiceSortKey] = []
        """The sort keys of the jobs that had a turn, in order."""
        self.had_turns: set[str] = set()
        """These jobs."""
        overruns = Overruns(state.running_jobs, state.snapshot)
        self._earlier = EarlierPromises(state.remembered, state.queue, overruns, state.backfill, self.now, self.claims)
        self._kept = RoundKeptHosts(hosts, self._earlier.standing)
        self._respected = RespectedReservations(state, self.now, self.claims, self.reservations, self._earlier)
        self._dates = RoundDates(state, self.now, self._earlier, overruns, self._respected, self._kept)
        self._is_conservative = self._dates.is_conservative
        self._denials = QuotaDenials(state, self.claims)
        self._screening = Screening(state.screen, state.queue)
        self._places = RoundPlaces(state, self._screening, self._respected, self._kept)
        self._shares = ShareKeys(state, self.now)
        self._kept_nothing_more: Counter[NeedKey] = Counter()
        """For each need, how many jobs with exclusions in a row kept no further host."""
        self._most_turns = max(FEWEST_TURNS, HOSTS_LOOKED_AT // max(hosts, 1))
        self._not_examined: frozenset[str] = frozenset()
        """Jobs that get no turn, because too many new requests came at once. The next round goes on."""
        self.is_cut = False
        """The round ended early, because it started enough. Jobs behind had no turn."""

    # -- the round -------------------------------------------------------------------------------

    def serve(self) -> None:
        """Give a turn to each group of jobs for which it could change anything."""
        self._serve_claims()
        self.state.gang_trials.begin()
        self.state.empty_fits.begin()
        order = self._begin_order()
        while (following := order.next()) is not None:
            place, request = following
            if request.priority <= self.hold_back_priority:
                order.waits()
                continue
            self.turns.append(place)
            self.had_turns.add(request.job_id)
            if self._starts(request, len(self.turns)):
                order.placed()
                # The next round begins with the first job again. So nobody passes a job that had no turn.
                self.is_cut = self._started_enough()
                if self.is_cut:
                    break
            else:
                order.waits()
                if (outlooks := self._screening.waits()) is not None:
                    order.drop(outlooks)
        self._remember()

    def _serve_claims(self) -> None:
        """Start the jobs for which preemption freed GPUs. They come first: if one of them waited because of a claim, it
        might keep the claim's hosts.
        """
        for claim in self.claims:
            owner = self.state.queue.get(claim.job_id)
            if owner is not None and self.denial(owner) is None:
                with self._respected.nothing_but(claim):
                    self._start(owner)

    def _begin_order(self) -> QueueCursor | EveryJobCursor:
        """Begin with step 1: who has a turn, and when."""
        queue, share = self.state.queue, self._shares.of if self._shares.decide else None
        if self._is_conservative:
            depth, always = self.state.policy.backfill_depth, self._earlier.standing
            order: QueueCursor | EveryJobCursor = EveryJobCursor(queue, share, depth, always)
        else:
            order = QueueCursor(queue, share, self._also_wait)
        told = self.state.remembered.told
        left_out = self._screening.begin(order.numbers(), told, self._view, self._progress)
        if left_out is not None:
            self._not_examined = frozenset(order.leave_out(left_out))
        return order

    def _remember(self) -> None:
        """End the round. Remember for the next one what was promised, computed and tried."""
        if self._is_conservative:
            planned = [reservation for _, reservation in self.reservations]
            # A job that came in goes on putting promises off until a round has asked all whose promises it puts off.
            newcomers = self.state.queue.newcomers if self.is_cut else self._not_examined
            self.puts_promises_off = self._earlier.remember(planned, newcomers)
        self._dates.end()
        self.state.gang_trials.end()

    def _started_enough(self) -> bool:
        fewest_starts = 1 if self._is_conservative else FEWEST_STARTS
        has_worked = len(self.turns) >= self._most_turns and len(self.placements) >= fewest_starts
        return has_worked and len(self.state.queue) > 0

    # -- one turn --------------------------------------------------------------------------------

    def _starts(self, request: PlacementRequest, turn: int) -> bool:
        """Answer a request. Return whether the job starts."""
        denial = self.denial(request)  # step 2
        if denial is not None:
            may_start, may_keep = False, self._keeps_its_promise(request, denial)
        else:
            outlook = self._outlook(request)
            may_start, may_keep = outlook.shortage is Shortage.UNKNOWN, not self._changes_nothing(request, outlook)
        if may_start and self._may_try(request) and self._start(request):  # step 3
            return True
        before = self._amount_kept() if may_keep and denial is None and request.has_exclusions else None
        starts_by = self._wait(request, turn) if may_keep else None  # step 4
        if before is not None:
            need = self.state.queue.need(request)
            kept_nothing_more = self._amount_kept() == before
            self._kept_nothing_more[need] = self._kept_nothing_more[need] + 1 if kept_nothing_more else 0
        answer = Waits(request, turn, denial, starts_by)  # step 5
        if self.waiting.setdefault(request.class_key, answer) is answer and starts_by is not None:
            self.promised_start[request.class_key] = starts_by
        return False

    def _keeps_its_promise(self, request: PlacementRequest, denial: QuotaDenial) -> bool:
        """Tell whether a job that the quotas deny keeps what it was promised. It keeps nothing else: it waits for quota
        and not for GPUs.

        A promise stays if only free GPUs are missing: the job was within its guarantee then, and would lose its date
        only because other jobs of its namespace started.
        """
        keeps = denial.for_want_of_gpus and request.job_id in self._earlier.unrenewed
        if not keeps:
            self._earlier.unrenewed.pop(request.job_id, None)
        return keeps

    def _outlook(self, request: PlacementRequest) -> Outlook:
        """Return what the screen knows about a request that has its turn."""
        outlook = self._screening.of(request)
        if request.job_id in self._earlier.standing or any(claim.job_id == request.job_id for claim in self.claims):
            # Nobody keeps hosts from a job with a promise, nor what it claims itself. So the screen knows only whether
            # enough is free at all.
            return Outlook(Shortage.FULL if outlook.shortage is Shortage.FULL else Shortage.UNKNOWN)
        return outlook

    def _changes_nothing(self, request: PlacementRequest, outlook: Outlook) -> bool:
        """Tell whether the request has no place, and nothing is different for others if it waits."""
        # A job that came in after the last round may put promises off, so it changes something if it waits.
        is_new = self._is_conservative and request.job_id in self.state.queue.newcomers
        needed = Effect.NONE_EVER if is_new else Effect.NONE
        return outlook.shortage is not Shortage.UNKNOWN and outlook.effect >= needed

    def _may_try(self, request: PlacementRequest) -> bool:
        """Tell whether the round looks for a place. Of the jobs that need trials only some are tried in a round, but
        always the first job that waits, and those whose promised dates have come.
        """
        if request.is_plain:
            return True
        promise = self._earlier.standing.get(request.job_id)
        must = not self.job_of_turn or (promise is not None and promise.start <= self.now)
        return self.state.gang_trials.may_try(self.state.queue.group(request), request, must)

    def _start(self, request: PlacementRequest) -> bool:
        """Place the job, if there is a place. Return whether there was one."""
        placement = self._places.hold(request)
        if placement is None:
            return False
        self.state.queue.remove(request.job_id)
        self._earlier.unrenewed.pop(request.job_id, None)
        self.placed(request, placement)
        self._denials.forget()
        self._shares.forget()
        self.placements.append((request, placement))
        return True

    def _wait(self, request: PlacementRequest, turn: int) -> float | None:
        """Make sure that a job that waits for GPUs starts some day. Return its promised date, if it has one."""
        usable = usable_hosts(self.state, request)
        if usable is None or not self.state.snapshot.windows.will_admit(request):
            return None  # it could not start even if it were alone
        self.job_of_turn[turn] = request.job_id
        kept = self._kept.of(request)
        if self.state.policy.backfill == "none":
            if hosts_beside_windows(self.state, request, usable) is not None:
                kept.keep_all(turn)
            return None
        is_first = not kept.are_reserved(request, usable)
        reservation = self._dates.of(request, usable, is_first=is_first)
        if reservation is None:
            self._keep(request, usable, turn, is_first)
            return None
        self._reserve(request, usable, turn, reservation)
        is_known = reservation.is_promised and reservation.start > self.now and not reservation.overdue
        return reservation.start if is_known else None

    def _reserve(
        self, request: PlacementRequest, usable: NDArray[np.bool_], turn: int, reservation: PlannedReservation
    ) -> None:
        """Keep what is reserved for the job from those behind it."""
        self.reservations.append((turn, reservation))
        if reservation.overdue:
            self.overdue[request.job_id] = reservation.overdue
        kept = self._kept.of(request)
        kept.reserve(request, usable)
        if request.time_limit_s is None and not self.state.queue.is_alone(request):
            # Other jobs of its need get no turn. What it keeps is kept for them, too.
            kept.keep_from_unlimited(request, usable, turn)

    def _keep(self, request: PlacementRequest, usable: NDArray[np.bool_], turn: int, is_first: bool) -> None:
        """Keep all hosts that the job could use from those behind it: nobody knows its date."""
        # A job that waits for the end of a window keeps no hosts from jobs that can start before.
        beside = hosts_beside_windows(self.state, request, usable)
        if beside is None:
            return
        kept = self._kept.of(request)
        if is_first:
            kept.keep(request, beside, turn, request.job_id in self.state.queue.newcomers)
        else:
            # Jobs ahead have reservations on some of these hosts. Once they have started, this job gets a date, or
            # hosts of its own. Until then nobody behind it is promised these hosts.
            kept.reserve(request, beside)
            kept.keep_from_unlimited(request, beside, turn)

    # -- who need not be asked any more ----------------------------------------------------------

    def _also_wait(self, request: PlacementRequest) -> AlsoWait:
        """Say which other jobs of its need wait because the job does."""
        if request.priority <= self.hold_back_priority or self.denial(request) is not None:
            return NOBODY
        closed = self.state.snapshot.windows.answer(request)
        if closed == ALL_CLOSED:
            return NOBODY
        outlook, excludes = self._screening.of(request), request.has_exclusions
        alike = AlsoWait(request.time_limit_s or math.inf, request.longest_s or math.inf)
        if outlook.shortage >= Shortage.KEPT and not excludes:
            return WITHOUT_EXCLUSIONS
        if outlook.shortage is not Shortage.UNKNOWN and outlook.effect is not Effect.SOME:
            return alike
        if excludes and (closed is not None or not request.is_plain):
            return NOBODY
        if closed is not None:  # a shorter job may have a place that windows keep from this one, whatever its grace is
            return AlsoWait(holds_at_most_s(request), alike.longest_s)
        if not request.is_plain:
            return alike
        candidates = self.state.candidates
        found = candidates.of(request.without_exclusions()) if excludes else self._places.candidates(request)
        is_open = self._kept.keeping_turns(request) == NO_TURN
        hopeless = bool(np.count_nonzero(found.fits & is_open) < request.resources.hosts)
        if not excludes:
            return WITHOUT_EXCLUSIONS if hopeless else alike
        untaken = is_open & ~self._kept.outside.reserved_for(request)
        if self.state.policy.backfill != "none":
            untaken &= found.after_use
        gives_up = self._kept_nothing_more[self.state.queue.need(request)] >= GIVE_UP_AFTER
        return EVERYBODY if hopeless and (gives_up or not untaken.any()) else NOBODY

    def _view(self) -> RoundView:
        """Return how far the round is, as the screen sees it."""
        kept = self._kept.outside
        keeping, from_unlimited = (turns != NO_TURN for turns in (kept.blocked_by, kept.blocked_for_unlimited_by))
        reservations = [*self.claims, *(reservation for _, reservation in self.reservations)]
        no_more_dates = self._dates.are_out(is_first=False) or self._dates.are_used_up
        return RoundView(self.now, keeping, from_unlimited, kept.has_reservation, reservations, no_more_dates)

    def _progress(self) -> tuple[int, ...]:
        return len(self.placements), self._dates.tentative, *self._amount_kept()

    def _amount_kept(self) -> tuple[int, ...]:
        """Return how much is kept or reserved. It only grows."""
        return (len(self.reservations), *self._kept.outside.amount())

    # -- what the round says afterwards ----------------------------------------------------------

    @property
    def is_bounded(self) -> bool:
        """True if the round left something for the next one, or would in a larger queue."""
        return self._dates.are_bounded

    @property
    def is_unfinished(self) -> bool:
        """True if some jobs had no turn, or got no date, only because the round would have taken too long."""
        refused = self._dates.have_refused or self.state.empty_fits.has_refused
        return self.is_cut or bool(self._not_examined) or refused or self.state.gang_trials.are_left

    def promises(self) -> dict[str, float]:
        """Return job -> the latest start that was promised."""
        return {
            reservation.job_id: reservation.start
            for _, reservation in self.reservations
            if reservation.is_promised and not reservation.overdue
        }

    def denial(self, request: PlacementRequest) -> QuotaDenial | None:
        """Say why the quotas do not allow the job, whatever is free. None: they allow it."""
        return self._denials.of(request)

    def blocking_turns(self, request: PlacementRequest) -> NDArray[np.int64]:
        """Return for each host the turn of the first job that keeps it from ``request``. NO_TURN: no job does."""
        return self._kept.blocking_turns(request)

    def turn_of(self, request: PlacementRequest) -> float:
        """Return a number between the turns that were given. Jobs with smaller turns are ahead."""
        return bisect(self.turns, self._sort_key(request)) + 0.5

    def answer_to(self, request: PlacementRequest) -> Waits:
        """Return the answer to the first job of a class that waits, even if it got no turn."""
        known = self.waiting.get(request.class_key)
        return known or Waits(request, self.turn_of(request), self.denial(request))

    def answer_to_class(self, class_key: str) -> Waits | None:
        """Return the answer to the first job of a class. None: no job of the class waits."""
        if class_key in self.waiting:
            return self.waiting[class_key]
        request = self.state.queue.first_of(class_key)
        return None if request is None else self.answer_to(request)

    def in_order(self) -> Iterator[Waits]:
        """Yield the first job of each class that waits, in the order of service, whether it had a turn or not."""
        jobs, seen = self.state.queue.jobs_in_order.items, set[str]()
        for request in in_share_order(jobs, self._sort_key) if self._shares.decide else jobs:
            if request.class_key not in seen and request.job_id not in self._not_examined:
                seen.add(request.class_key)
                yield self.answer_to(request)

    def _sort_key(self, request: PlacementRequest) -> ServiceSortKey:
        return self._shares.of(request), self.state.queue.order(request)
