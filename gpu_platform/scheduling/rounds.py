"""One round of serving. Each group of waiting jobs gets its turn, in order.

The policy gives the order. One rule prevents starvation: the first job that waits for GPUs of others gets a **planned
reservation** with a date (see ``backfill``), and so do some jobs behind it. If time limits give no date, the job
**keeps the hosts that it could use**: jobs behind it may start only on other hosts. So the hosts that it keeps become
empty, and it starts.

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
from functools import partial

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.backfilling.promises import EarlierPromises, Overruns
from gpu_platform.scheduling.cluster.windows import ALL_CLOSED, holds_at_most_s
from gpu_platform.scheduling.kept_hosts import NO_TURN, RoundKeptHosts
from gpu_platform.scheduling.placing.request_screen import RoundView
from gpu_platform.scheduling.placing.reserved_gpus import ReservedGpus
from gpu_platform.scheduling.queueing.in_share_order import ServiceSortKey, in_share_order
from gpu_platform.scheduling.queueing.job_queue import NeedKey
from gpu_platform.scheduling.queueing.queue_cursor import ALL_BLOCKED, EveryJobCursor, QueueCursor
from gpu_platform.scheduling.queueing.quota import QuotaDenial
from gpu_platform.scheduling.quota_denials import QuotaDenials
from gpu_platform.scheduling.respected_reservations import RespectedReservations
from gpu_platform.scheduling.round_dates import RoundDates
from gpu_platform.scheduling.round_places import RoundPlaces
from gpu_platform.scheduling.round_state import (
    SchedulerState,
    WaitingEntry,
    hosts_beside_windows,
    resources_taken,
    usable_hosts,
)
from gpu_platform.scheduling.screening import Screening, Verdict
from gpu_platform.scheduling.share_keys import ShareKeys

GIVE_UP_AFTER = 16
"""If this many jobs with exclusions in a row kept no further host, the other jobs of their need are skipped."""


HOSTS_LOOKED_AT, FEWEST_TURNS, FEWEST_STARTS = 8_000, 8, 2
"""After HOSTS_LOOKED_AT / hosts turns, but not fewer than FEWEST_TURNS, the round ends with the next job that starts,
if FEWEST_STARTS jobs have started in it. The next one goes on. Under conservative backfill one start is enough: there a
turn costs more, because each job respects the promises of all others.
"""


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
    waiting: dict[str, WaitingEntry] = field(default_factory=dict)
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
        self._overruns = Overruns(state.running_jobs, state.snapshot)
        self._earlier = EarlierPromises(
            state.remembered, state.queue, self._overruns, state.backfill, self.now, self.claims
        )
        self._kept = RoundKeptHosts(hosts, self._earlier.standing)
        self._dates = RoundDates(state, self.now, self._earlier)
        self._is_conservative = self._dates.is_conservative
        self._gang_trials = state.gang_trials
        self._no_windows = not state.snapshot.windows.rows
        """Then only jobs that ask for a reservation must be asked about: the others pay nothing."""
        self._denials = QuotaDenials(state, self.claims)
        self._kept_nothing_more: Counter[NeedKey] = Counter()
        """For each need, how many jobs with exclusions in a row kept no further host."""
        self._screening = Screening(state.screen, state.queue)
        self._respected = RespectedReservations(state, self.now, self.claims, self.reservations, self._earlier)
        self._places = RoundPlaces(state, self._screening, self._respected, self._kept)
        self._shares = ShareKeys(state, self.now)
        self._most_turns = max(FEWEST_TURNS, HOSTS_LOOKED_AT // max(hosts, 1))
        self.is_cut = False
        """The round ended early, because it started enough. Jobs behind had no turn."""

    def serve(self) -> None:
        """Give a turn to each group of jobs for which it could change anything."""
        share = self._shares.of if self._shares.decide else None
        state, queue, policy = self.state, self.state.queue, self.state.policy
        for claim in self.claims:
            # Claims come first. Otherwise a job that waits because of the claim might keep its hosts.
            owner = queue.get(claim.job_id)
            if owner is not None and self.denial(owner) is None:
                with self._respected.nothing_but(claim):
                    self._start(owner)
        self._gang_trials.begin()
        state.empty_fits.begin()
        every = partial(EveryJobCursor, depth=policy.backfill_depth, always=self._earlier.standing)
        turns = every(queue, share) if self._is_conservative else QueueCursor(queue, share)
        self._screening.begin(turns, self._view, self._progress, self.state.remembered.told)
        while (following := turns.next()) is not None:
            place, request = following
            if request.priority <= self.hold_back_priority:
                turns.waits()
                continue
            self.turns.append(place)
            self.had_turns.add(request.job_id)
            if self._place(request, len(self.turns)):
                turns.placed()
                # The next round begins with the first job again. So nobody passes a job that had no turn.
                self.is_cut = self._started_enough()
                if self.is_cut:
                    break
            else:
                turns.waits(*self._also_wait(request))
                self._screening.waits()
        if self._is_conservative:
            planned = [reservation for _, reservation in self.reservations]
            # A job that came in goes on putting promises off until a round has asked all whose promises it puts off.
            newcomers = queue.newcomers if self.is_cut else self._screening.not_examined
            self.puts_promises_off = self._earlier.remember(planned, newcomers)
        self._dates.end()
        self._gang_trials.end()

    @property
    def is_bounded(self) -> bool:
        """True if the round left something for the next one, or would in a larger queue."""
        return self._dates.are_bounded

    @property
    def is_unfinished(self) -> bool:
        """True if some jobs had no turn, or got no date, only because the round would have taken too long."""
        refused = self._dates.have_refused or self.state.empty_fits.has_refused
        return self.is_cut or bool(self._screening.not_examined) or refused or self._gang_trials.are_left

    def _started_enough(self) -> bool:
        fewest_starts = 1 if self._is_conservative else FEWEST_STARTS
        has_worked = len(self.turns) >= self._most_turns and len(self.placements) >= fewest_starts
        return has_worked and len(self.state.queue) > 0

    def _view(self) -> RoundView:
        reservations = [
            ReservedGpus(one.start, one.is_promised, one.is_expected, one.hosts, one.gpus)
            for one in (*self.claims, *(reservation for _, reservation in self.reservations))
        ]
        kept = self._kept.outside
        keeping, from_unlimited = (turns != NO_TURN for turns in (kept.blocked_by, kept.blocked_for_unlimited_by))
        no_more_dates = self._dates.are_out(len(self.reservations), first=False) or self._dates.are_used_up
        return RoundView(self.now, keeping, from_unlimited, kept.has_reservation, reservations, no_more_dates)

    def _progress(self) -> tuple[int, ...]:
        return len(self.placements), self._dates.tentative, *self._amount_kept()

    def promises(self) -> dict[str, float]:
        """Return job -> the latest start that was promised."""
        return {
            reservation.job_id: reservation.start
            for _, reservation in self.reservations
            if reservation.is_promised and not reservation.overdue
        }

    def blocking_turns(self, request: PlacementRequest) -> NDArray[np.int64]:
        """Return for each host the turn of the first job that keeps it from ``request``. NO_TURN: no job does."""
        return self._kept.blocking_turns(request)

    def entry_of_class(self, class_key: str) -> WaitingEntry | None:
        """Return the entry of the class's first job, even if it got no turn. None: no job of the class waits."""
        if class_key in self.waiting:
            return self.waiting[class_key]
        request = self.state.queue.first_of(class_key)
        return None if request is None else WaitingEntry(request, self.turn_of(request), self.denial(request))

    def turn_of(self, request: PlacementRequest) -> float:
        """Return a number between the turns that were given. Jobs with smaller turns are ahead."""
        return bisect(self.turns, self._sort_key(request)) + 0.5

    def in_order(self) -> Iterator[WaitingEntry]:
        """Yield the first job of each class that waits, in the order of service, whether it had a turn or not."""
        jobs, seen = self.state.queue.jobs_in_order.items, set[str]()
        for request in in_share_order(jobs, self._sort_key) if self._shares.decide else jobs:
            if request.class_key not in seen and request.job_id not in self._screening.not_examined:
                seen.add(request.class_key)
                yield self.waiting.get(request.class_key) or WaitingEntry(request, self.turn_of(request), self.denial(request))

    def _sort_key(self, request: PlacementRequest) -> ServiceSortKey:
        return self._shares.of(request), self.state.queue.order(request)

    def denial(self, request: PlacementRequest) -> QuotaDenial | None:
        """Say why the quotas do not allow the job, whatever is free. None: they allow it."""
        return self._denials.of(request)

    def _also_wait(self, request: PlacementRequest) -> tuple[float | None, bool, float | None]:
        """Return which other jobs wait because ``request`` does, as arguments for ``QueueCursor.waits``."""
        if self.denial(request) is not None:
            return None, False, None
        is_free = self._no_windows and request.resources.reservation is None
        closed = None if is_free else self.state.snapshot.windows.answer(request)
        if closed == ALL_CLOSED:
            return None, False, None
        state, verdict = self.state, self._screening.of(request)
        limits = request.time_limit_s or math.inf, False, request.longest_s or math.inf
        if verdict.hopeless and not request.has_exclusions:
            return ALL_BLOCKED, False, None
        if verdict.settled and verdict.no_place:
            return limits
        if closed is not None:  # a shorter job may have a place that windows keep from this one, whatever its grace is
            return (None, False, None) if request.has_exclusions else (holds_at_most_s(request), False, limits[2])
        if not request.is_plain:
            return (None, False, None) if request.has_exclusions else limits
        excludes = request.has_exclusions
        candidates = state.candidates.of(request.without_exclusions()) if excludes else self._places.candidates(request)
        kept = self._kept.keeping_turns(request)
        hopeless = np.count_nonzero(candidates.fits & (kept == NO_TURN)) < request.resources.hosts
        if excludes:
            taken = (kept != NO_TURN) | self._kept.outside.has_reservation[resources_taken(request)].any(axis=0)
            usable = candidates.after_use if state.policy.backfill != "none" else np.ones(len(taken), bool)
            alike = self._kept_nothing_more[state.queue.need(request)] >= GIVE_UP_AFTER
            return None, bool(hopeless and (alike or not (usable & ~taken).any())), None
        return (ALL_BLOCKED, False, None) if hopeless else limits

    def _place(self, request: PlacementRequest, turn: int) -> bool:
        denial = self.denial(request)
        if denial is not None:
            # It waits for quota and not for GPUs, so it keeps no hosts. But an earlier promise stays: the job was
            # within its guarantee then, and would lose its date only because other jobs of its namespace started.
            keeps = denial.for_want_of_gpus and request.job_id in self._earlier.unrenewed
            if not keeps:
                self._earlier.unrenewed.pop(request.job_id, None)
            self._waits(WaitingEntry(request, turn, denial, self._wait(request, turn) if keeps else None))
            return False
        verdict = self._screening.of(request)
        if request.job_id in self._earlier.standing or any(claim.job_id == request.job_id for claim in self.claims):
            # Nobody keeps hosts from a job with a promise, nor what it claims itself. So the screen knows only whether
            # enough is free at all.
            verdict = Verdict(no_place=verdict.full)
        # A job that came in after the last round may put promises off, so it changes something if it waits.
        new = self._is_conservative and request.job_id in self.state.queue.newcomers
        if verdict.no_place and verdict.settled and (verdict.behind or not new):
            self._waits(WaitingEntry(request, turn))
            return False
        if verdict.no_place or not self._may_try(request) or not self._start(request):
            before = self._amount_kept() if request.has_exclusions else None
            starts_by = self._wait(request, turn)
            if before is not None:
                need = self.state.queue.need(request)
                self._kept_nothing_more[need] = (
                    self._kept_nothing_more[need] + 1 if self._amount_kept() == before else 0
                )
            self._waits(WaitingEntry(request, turn, starts_by=starts_by))
            return False
        return True

    def _may_try(self, request: PlacementRequest) -> bool:
        """Tell whether it is looked for a place now. Only a part of the jobs that need trials is, besides the first job
        that waits and those whose promised dates have come."""
        if request.is_plain:
            return True
        promise = self._earlier.standing.get(request.job_id)
        must = not self.job_of_turn or (promise is not None and promise.start <= self.now)
        return self._gang_trials.may_try(self.state.queue.group(request), request, must)

    def _start(self, request: PlacementRequest) -> bool:
        """Place the job, if there is a place. Return whether there was one."""
        state = self.state
        placement = self._places.hold(request)
        if placement is None:
            return False
        state.queue.remove(request.job_id)
        self._earlier.unrenewed.pop(request.job_id, None)
        self.placed(request, placement)
        self._denials.forget()
        self._shares.forget()
        self.placements.append((request, placement))
        return True

    def _waits(self, entry: WaitingEntry) -> None:
        if self.waiting.setdefault(entry.request.class_key, entry) is entry and entry.starts_by is not None:
            self.promised_start[entry.request.class_key] = entry.starts_by

    def _wait(self, request: PlacementRequest, turn: int) -> float | None:
        """Make sure that a job that waits for GPUs starts some day. Return its promised date, if it has one."""
        usable = usable_hosts(self.state, request)
        is_free = self._no_windows and request.resources.reservation is None
        if usable is None or not (is_free or self.state.snapshot.windows.will_admit(request)):
            return None
        self.job_of_turn[turn] = request.job_id
        kept = self._kept.of(request)
        if self.state.policy.backfill == "none":
            if hosts_beside_windows(self.state, request, usable) is not None:
                kept.keep_all(turn)
            return None
        resources = resources_taken(request)
        first = not kept.are_reserved(resources, usable)

        def is_kept() -> bool:
            return bool((usable & (self._kept.keeping_turns(request) != NO_TURN)).any())

        reservation = None if self._dates.is_due(request) else self._kept_promise(request, None)
        if reservation is None:
            found = self._dates.plan(
                request, len(self.reservations), first=first, is_kept=is_kept, respected=lambda: self._respected.of(request)
            )
            reservation = self._kept_promise(request, found)
        if reservation is None and first and (is_free or self.state.snapshot.windows.answer(request) is None):
            reservation = self._dates.plan_expected(
                request, is_kept=is_kept, respected=lambda: self._respected.of_jobs(request)
            )
        if reservation is not None:
            reservation = reservation if reservation.is_expected else self._overruns.mark(reservation)
            self.reservations.append((turn, reservation))
            if reservation.overdue:
                self.overdue[request.job_id] = reservation.overdue
            kept.reserve(resources, usable)
            if request.time_limit_s is None and not self.state.queue.is_alone(request):
                kept.keep_from_unlimited(resources, usable, turn)  # for its like, which get no turn
            is_known = reservation.is_promised and reservation.start > self.now and not reservation.overdue
            return reservation.start if is_known else None
        # A job that waits for the end of a window keeps no hosts from jobs that can start before.
        beside = usable if is_free else hosts_beside_windows(self.state, request, usable)
        if beside is None:
            return None
        if first:
            kept.keep(resources, beside, turn, request.job_id in self.state.queue.newcomers)
        else:  # it gets a date or hosts once the jobs ahead have started, so nobody behind is promised these hosts
            kept.reserve(resources, beside)
            kept.keep_from_unlimited(resources, beside, turn)
        return None

    def _kept_promise(self, request: PlacementRequest, planned: PlannedReservation | None) -> PlannedReservation | None:
        """Return ``planned``, or what was promised before, if that is earlier and can be kept."""
        promise = self._earlier.better(request, planned, self._respected.of(request))
        self._earlier.unrenewed.pop(request.job_id, None)
        if promise is None or self._kept.of(request).newcomers_keep(promise.hosts):
            return planned
        return promise

    def _amount_kept(self) -> tuple[int, ...]:
        """Return how much is kept or reserved. It only grows."""
        return (len(self.reservations), *self._kept.outside.amount())
