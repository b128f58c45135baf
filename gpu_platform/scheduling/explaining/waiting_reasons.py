"""Publishes the reasons of waiting jobs. Decisions never wait for them, and they are soon up to date again.

A decision may change every reason, and there may be thousands. So each decision renews only a few: those of new
classes of jobs, those whose promise changed, and then as many others as the rate allows, in turn. There are two
passes: the first estimates when jobs will start, the second puts the reasons together.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial

from gpu_platform.domain.jobs.placement import EstimateBasis, Reason, WaitCode
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.prediction.start_intervals import StartIntervals
from gpu_platform.scheduling.explaining.earliest_start import find_earliest_start
from gpu_platform.scheduling.explaining.explain import (
    BlockedHosts,
    behind_displaced_jobs,
    behind_windows,
    explain,
    explain_gang,
    over_quota,
    with_preemption_at,
)
from gpu_platform.scheduling.explaining.forward_run import Estimate, Estimates, has_simple_estimate
from gpu_platform.scheduling.placing.candidates import Candidates
from gpu_platform.scheduling.round.round import SchedulingRound, Waits
from gpu_platform.scheduling.round.state import SchedulerState

SLICE, BUSY_SLICE, IDLE_SLICE = 8, 3, 32
"""How many jobs are looked at during a decision, during one that gave many turns, and if there is nothing to decide. A
look takes about a millisecond in a cluster of 1,000 hosts. In larger clusters they are fewer.
"""
BUSY_TURNS = 16
HOSTS_LOOKED_AT, FEWEST = 12_000, 2
"""In a cluster with more than HOSTS_LOOKED_AT / SLICE hosts the slices are smaller, but never below FEWEST."""
LEFT_FOR_OTHERS = 2
"""So many of these looks, but at most a quarter, are not for new classes. Otherwise a stream of new ones would stop all
others."""
RATE_PER_S, BURST = 256.0, 64.0
"""How many jobs are looked at per second during decisions: on average, and at once."""
ESTIMATE_AGAIN_S = 5.0
"""After an estimated start has passed, estimates begin anew at most this often, unless something changes."""
WINDOWS_AGAIN_S = 30.0
"""While there are windows, reasons are renewed so often: they say how long a job may still run before one begins."""
PREEMPTION_FORECAST_LIMIT = 400
"""With more hosts and running jobs than this, the next preemption is computed only for a job about which somebody
asks.
"""

NextPreemption = Callable[[SchedulingRound, bool], tuple[str, float] | None]
"""Returns the job for which others will be stopped next, and when: ``PreemptionPlanner.next_preemption``."""


class WaitingReasons:
    """The reason of each class of waiting jobs, as last published."""

    def __init__(self, state: SchedulerState, next_preemption: NextPreemption, intervals: StartIntervals) -> None:
        self._state, self._next_preemption, self._intervals = state, next_preemption, intervals
        self.forecast = state.forecast
        self._published: dict[str, Reason] = {}
        self._new: deque[str] = deque()
        self._due: deque[str] = deque()
        self._estimates: Estimates | None = None
        self._estimating: Estimates | None = None
        self._promised: dict[str, float] = {}
        self._seen = (-1, -1)
        self._facts = -1
        self._allowance, self._at = BURST, 0.0
        self._slice = 0
        """How many jobs may still be looked at in this decision: both passes share it."""
        self._first_date = math.inf
        """No published estimate is earlier."""
        self._has_passed = False
        """An estimate has passed since the last run of estimates began."""
        self._estimated_at = -math.inf
        self._windows_told_at = -math.inf

    def current(self) -> dict[str, Reason]:
        """Return the published reason of each class that still waits."""
        return {key: self._published[key] for key in self._state.queue.classes() if key in self._published}

    def pass_time(self, now: float) -> None:
        """Note what time it is. Reasons whose estimated start has passed become pending: a date in the past is no
        estimate."""
        if now > self._first_date:
            dates = {key: one.estimated_start for key, one in self._published.items() if one.estimated_start}
            passed = [key for key, date in dates.items() if date < now]
            self._new.extendleft(passed)
            self._first_date = min((date for date in dates.values() if date >= now), default=math.inf)
            self._has_passed |= bool(passed)
        if self._state.snapshot.windows and now - self._windows_told_at >= WINDOWS_AGAIN_S:
            self._windows_told_at = now
            self._new.extend(self._state.queue.classes())
        if self._has_passed and now - self._estimated_at >= ESTIMATE_AGAIN_S:
            self._has_passed, self._seen = False, (-1, -1)

    def pending(self) -> bool:
        """Tell whether there is more to publish."""
        return bool(self._new or self._due or self._estimating or self._seen != self.stamp())

    def renew(self, last_round: SchedulingRound, now: float, idle: bool = False) -> dict[str, Reason]:
        """Renew some reasons, as things are after ``last_round``. Return those that changed. ``idle``: nothing was
        decided.
        """
        self._allowance = min(BURST, self._allowance + RATE_PER_S * max(0.0, now - self._at))
        self._at, self._slice = now, self._looks(last_round, idle)
        left = min(LEFT_FOR_OTHERS, max(1, self._slice // 4))
        self.pass_time(now)
        self._new.extend(self._state.queue.take_new_classes())
        promised = self._promises(last_round)
        self._new.extendleft(reversed(promised))
        first = min(len(self._new), self._slice - left)
        self._slice = max(self._slice - first, left)
        self._look_ahead(last_round, now, idle)
        keys = dict.fromkeys(self._new.popleft() for _ in range(first))
        for _ in range(self._spend(idle, len(self._due))):
            keys[self._due.popleft()] = None
        return self._publish(keys, last_round, now)

    def _looks(self, last_round: SchedulingRound, idle: bool) -> int:
        """Return how many jobs may be looked at now."""
        most = max(FEWEST, HOSTS_LOOKED_AT // max(len(self._state.snapshot), 1))
        if idle:
            return min(IDLE_SLICE, IDLE_SLICE // SLICE * most)
        return min(most, BUSY_SLICE if len(last_round.turns) > BUSY_TURNS else SLICE)

    def stamp(self) -> tuple[int, int]:
        """Return what is another value after each change, and after each trial."""
        return self._state.snapshot.version, self._state.queue.version

    def only_tried(self, before: tuple[int, int]) -> None:
        """Note that since the stamp ``before`` things were only tried. This changes no reason."""
        if self._seen == before:
            self._seen = self.stamp()

    def renew_all(self, last_round: SchedulingRound, now: float) -> None:
        """Renew every reason."""
        self._new.clear()
        self._due.clear()
        self._state.queue.take_new_classes()
        self._estimates, self._estimating = self._begin(last_round, now), None
        while not self._estimates.ended:
            self._estimates.advance(IDLE_SLICE)
        self._seen = self.stamp()
        self._publish(dict.fromkeys(self._state.queue.classes()), last_round, now)

    def why(self, request: PlacementRequest, last_round: SchedulingRound, now: float) -> Reason:
        """Return the reason of one waiting job, not of its class, at this moment."""
        estimates = self._begin(last_round, now)
        while estimates.get(request) is None and not estimates.ended:
            estimates.advance(1)
        given = last_round.waiting.get(request.class_key)
        if given is None or given.request.job_id != request.job_id:
            starts_by = last_round.promises().get(request.job_id)
            given = Waits(request, last_round.turn_of(request), last_round.denial(request), starts_by)
        reason = self.reason(given, last_round, estimates, now)
        if reason.code in (WaitCode.WAITING_FOR_GPUS, WaitCode.WINDOW) and not has_simple_estimate(request):
            reason = self._with_trial_estimate(reason, request, now)
        return self._if_others_stop(reason, request, last_round, now, math.inf)

    def _with_trial_estimate(self, reason: Reason, request: PlacementRequest, now: float) -> Reason:
        earliest = find_earliest_start(request, self._state, now)
        if earliest is None:
            return reason
        update: dict[str, object] = {"holders": earliest.holders, "more_holders": earliest.more_holders}
        if reason.starts_by is None:
            basis = EstimateBasis.ALONE if earliest.start is not None else EstimateBasis.NO_TIME_LIMIT
            update |= {"estimated_start": earliest.start, "estimate": basis, "estimated_between": None}
        return reason.model_copy(update=update)

    def reason(self, entry: Waits, last_round: SchedulingRound, estimates: Estimates | None, now: float) -> Reason:
        """Say why a job waits, whatever was published before. No estimate in it is before ``now``."""
        reason, faults = self._reason(entry, last_round, estimates, now), self._state.policy.plugin_faults
        if reason.estimate is EstimateBasis.RUN_TIMES and reason.estimated_start is not None:
            self._intervals.told(entry.request.job_id, now, reason.estimated_start)
            low, high = self._intervals.between(now, reason.estimated_start)
            high = high if reason.starts_by is None else min(high, reason.starts_by)
            reason = reason.model_copy(update={"estimated_between": (low, high)})
        if not faults:
            return reason
        return reason.model_copy(update={"message": "; ".join([reason.message, *(fault.brief for fault in faults)])})

    def _reason(self, entry: Waits, last_round: SchedulingRound, estimates: Estimates | None, now: float) -> Reason:
        state, request = self._state, entry.request
        if entry.denial is not None:
            reason = over_quota(request.resources, entry.denial)
            at, basis = entry.starts_by, EstimateBasis.QUOTA if entry.starts_by is None else EstimateBasis.PROMISED
            update = {"first_job": request.job_id, "starts_by": at, "estimated_start": at, "estimate": basis}
            reason = reason.model_copy(update=update)
            return self._if_others_stop(reason, request, last_round, now, PREEMPTION_FORECAST_LIMIT)
        if request.is_plain:
            candidates = state.candidates.of(request)
            kept = _kept(entry, last_round, request, candidates)
            reason = explain(request.resources, state.snapshot, candidates, kept, entry.starts_by)
        else:
            kept_of = partial(_kept, entry, last_round)
            reason = explain_gang(
                request, state.snapshot, state.candidates, state.gangs, state.empty_fits.fits, kept_of, entry.starts_by
            )
        if request.priority <= last_round.hold_back_priority and reason.code is WaitCode.WAITING_FOR_GPUS:
            reason = behind_displaced_jobs(reason)
        update: dict[str, object] = {"first_job": request.job_id}
        estimate = _estimate(request, reason, estimates)
        if estimate is not None and (estimate.start is None or estimate.start >= now):
            update["estimated_start"], update["estimate"] = estimate.start, estimate.basis
        if reason.code is WaitCode.WAITING_FOR_GPUS and has_simple_estimate(request):
            able = state.candidates.of(request).after_use
            update["holders"], update["more_holders"] = self.forecast.holders(request, able)
        if overdue := last_round.overdue.get(request.job_id):
            update["next_step"] = f"{overdue} has run over its time limit: a start is promised again once it has ended"
        dated = update.get("estimated_start") is not None
        update |= behind_windows(request, reason, state.snapshot, is_dated=dated)
        if any(claim.job_id == request.job_id for claim in last_round.claims):
            # Dates from time limits do not count: jobs are being preempted for it.
            update |= {"starts_by": None, "estimated_start": None, "estimate": EstimateBasis.PREEMPTING}
        reason = reason.model_copy(update=update)
        return self._if_others_stop(reason, request, last_round, now, PREEMPTION_FORECAST_LIMIT)

    def _if_others_stop(
        self, reason: Reason, request: PlacementRequest, last_round: SchedulingRound, now: float, up_to: float
    ) -> Reason:
        """Return the reason with a preemption, if running jobs will be stopped before the job would start anyway.

        ``up_to``: with more hosts and running jobs than this it is not computed. Infinity: however long it takes.
        """
        too_many = len(self._state.snapshot) + len(self._state.running_jobs) > up_to
        next_preemption = None if too_many else self._next_preemption(last_round, up_to == math.inf)
        if next_preemption is None or next_preemption[0] != request.job_id or next_preemption[1] < now:
            return reason
        other = reason.starts_by if reason.starts_by is not None else reason.estimated_start
        return (
            reason
            if other is not None and other <= next_preemption[1]
            else with_preemption_at(reason, next_preemption[1])
        )

    def _look_ahead(self, last_round: SchedulingRound, now: float, idle: bool) -> None:
        """Begin a new run of estimates if something changed, once the last run is published."""
        if not self._state.queue:
            self._published, self._due, self._estimating, self._seen = {}, deque(), None, self.stamp()
            return
        if self._estimating is not None and self._facts != self._state.snapshot.facts_version:
            self._estimating = self._begin(last_round, now)
        elif self._estimating is None and not self._due and self._seen != self.stamp():
            self._published = self.current()
            self._seen = self.stamp()
            self._estimating = self._begin(last_round, now)
        if self._estimating is not None:
            self._spend(idle, self._estimating.advance(self._may_spend(idle, self._slice)))
            if self._estimating.ended:
                self._estimates, self._estimating = self._estimating, None
                self._due.extend(self._state.queue.classes())

    def _begin(self, last_round: SchedulingRound, now: float) -> Estimates:
        self._facts, self._estimated_at = self._state.snapshot.facts_version, now
        return Estimates(self._state, self.forecast, last_round.denial, now)

    def _spend(self, idle: bool, wanted: int) -> int:
        """Return how many of ``wanted`` looks may be made now. They count as made."""
        spent = self._may_spend(idle, wanted)
        self._slice -= spent
        self._allowance -= 0 if idle else spent
        return spent

    def _may_spend(self, idle: bool, wanted: int) -> int:
        return min(wanted, self._slice if idle else min(self._slice, int(self._allowance)))

    def _promises(self, last_round: SchedulingRound) -> list[str]:
        """Return the classes whose promised start changed, or for whose first job others are stopped now."""
        claimed = (self._state.queue.get(claim.job_id) for claim in last_round.claims)
        stopping = {request.class_key: -math.inf for request in claimed if request is not None}
        promised = {**last_round.promised_start, **stopping}
        changed = [key for key in {**self._promised, **promised} if self._promised.get(key) != promised.get(key)]
        self._promised = promised
        return changed

    def _publish(self, keys: dict[str, None], last_round: SchedulingRound, now: float) -> dict[str, Reason]:
        changed, before = {}, self.stamp()
        for key in keys:
            entry = last_round.answer_to_class(key)
            if entry is None:
                self._published.pop(key, None)
                continue
            reason = self.reason(entry, last_round, self._estimates, now)
            self._first_date = min(self._first_date, reason.estimated_start or math.inf)
            if self._published.get(key) != reason:
                self._published[key] = changed[key] = reason
        self.only_tried(before)
        return changed


def _kept(
    entry: Waits, last_round: SchedulingRound, request: PlacementRequest, candidates: Candidates
) -> BlockedHosts | None:
    """Return the hosts that jobs ahead of ``entry`` keep from ``request``: its job, or one of its rank groups."""
    blocked_by = last_round.blocking_turns(entry.request)
    blocked = blocked_by < entry.turn
    ahead = [int(blocked_by[blocked].min())] if blocked.any() else []
    for turn, reservation in last_round.reservations if candidates.fits.any() else ():
        if turn < entry.turn and reservation.binds(request, last_round.now):
            around = last_round.state.backfill.without_reserved([reservation], request, candidates)
            closed = candidates.fits & ~around.fits
            if closed.any():
                blocked = blocked | closed
                ahead.append(turn)
    for claim in last_round.claims:
        if claim.job_id != entry.request.job_id:
            closed = candidates.fits & ~last_round.state.backfill.without_reserved([claim], request, candidates).fits
            if closed.any() and not ahead:
                return BlockedHosts(blocked | closed, claim.job_id)
            blocked = blocked | closed
    return BlockedHosts(blocked, last_round.job_of_turn[min(ahead)]) if ahead else None


def _estimate(request: PlacementRequest, reason: Reason, estimates: Estimates | None) -> Estimate | None:
    if reason.starts_by is not None:
        found = estimates.get(request) if estimates is not None else None
        if found is None or found.basis is not EstimateBasis.RUN_TIMES or (found.start or math.inf) >= reason.starts_by:
            return Estimate(reason.starts_by, EstimateBasis.PROMISED)
        return found
    if reason.code in (WaitCode.NEVER_FITS, WaitCode.NO_HOSTS):
        return Estimate(None, EstimateBasis.REPAIR)
    return estimates.get(request) if estimates is not None else None
