"""The dates that one round gives to jobs that wait: to whom, how many, and by what they are planned."""

from __future__ import annotations

import math
from collections.abc import Callable

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.backfilling.date_slices import DateSlice
from gpu_platform.scheduling.backfilling.expected_dates import MAX_DATES
from gpu_platform.scheduling.backfilling.gang_backfill import Unfinished
from gpu_platform.scheduling.backfilling.promises import DateMemory, EarlierPromises
from gpu_platform.scheduling.gang_trials import needs_trials
from gpu_platform.scheduling.round_state import SchedulerState

MAX_TENTATIVE_DATES = 4
"""How many jobs get a tentative date. Jobs behind them block their hosts instead: this is cheaper, but costs others
more.
"""


class RoundDates:
    """Plans dates within what one round may spend on them."""

    def __init__(self, state: SchedulerState, now: float, earlier: EarlierPromises) -> None:
        """``earlier``: what was promised before the round."""
        self._state, self._now, self._earlier = state, now, earlier
        self.is_conservative = state.policy.backfill == "conservative"
        hosts, most = len(state.snapshot), state.policy.backfill_depth
        standing = earlier.standing
        gangs = [one for one in standing if (request := state.queue.get(one)) is not None and needs_trials(request)]
        depth = most if self.is_conservative else 0
        self._slices = DateSlice.of_slices(state.remembered, standing.keys() - set(gangs), hosts, depth)
        self._gangs = DateSlice.of_gangs(state.remembered, gangs, hosts, most)
        self.tentative = 0
        """How many tentative dates were planned."""
        self._expected = 0

    @property
    def are_bounded(self) -> bool:
        """True if the round left some for the next one, or would in a larger queue."""
        return self._slices.is_bounded

    @property
    def have_refused(self) -> bool:
        """True if a job got no date only because the round would have taken too long."""
        # EASY remembers no dates, so the next round would refuse the same jobs.
        return self._slices.has_refused or (self.is_conservative and self._gangs.has_refused)

    @property
    def are_used_up(self) -> bool:
        """True if no further job with equal slices gets a date in this round."""
        return self._slices.is_used_up

    def is_due(self, request: PlacementRequest) -> bool:
        """Tell whether the job's date is to be computed anew in this round."""
        return self._of(request).is_due(request.job_id)

    def are_out(self, given: int, *, first: bool, others: int = 0) -> bool:
        """Tell whether no job gets a date any more in this round.

        ``given``: reservations so far. ``first``: no job ahead has a date for hosts that the job could use. ``others``:
        how many dates of jobs that had no turn yet count, too.
        """
        policy, queue = self._state.policy, self._state.queue
        if policy.backfill == "keep" or given + others >= policy.backfill_depth:
            return True
        # Tentative dates bind only jobs without a time limit.
        needed = first or self.is_conservative or queue.endless > 0
        return not needed or (not first and not self.is_conservative and self.tentative >= MAX_TENTATIVE_DATES)

    def plan(
        self,
        request: PlacementRequest,
        given: int,
        *,
        first: bool,
        is_kept: Callable[[], bool],
        respected: Callable[[], list[PlannedReservation]],
    ) -> PlannedReservation | None:
        """Plan a reservation for the job, or return None. ``given``, ``first``: as in :meth:`are_out`.

        ``is_kept``: tells whether jobs ahead keep hosts that it could use. ``respected``: returns the reservations that
        it must respect.
        """
        state, is_conservative = self._state, self.is_conservative
        is_promised = first or is_conservative
        is_known = state.running_jobs.limited or given or self._earlier.unrenewed or state.window_bookings
        # Shares change the order. A job that is served earlier now takes the date of nobody who was promised one.
        may_put_off = request.job_id in state.queue.newcomers or request.job_id in self._earlier.standing
        others = 0 if may_put_off else len(self._earlier.unrenewed)
        if not is_known or self.are_out(given, first=first, others=others) or is_kept():
            return None
        had_promise = request.job_id in self._earlier.standing
        dates = self._of(request)
        # With EASY each first job is told its date in each round; there are few.
        is_free = first and not is_conservative
        if not had_promise and not is_free and not dates.allows(request.job_id):
            return None
        if is_free and needs_trials(request):
            dates.use_up()  # no tentative ones in this round
        self.tentative += not is_promised
        if needs_trials(request):
            reservations, trials = respected(), dates.most_trials
            if not is_conservative or (had_promise and self._earlier.better(request, None, reservations) is None):
                trials = math.inf  # no date is remembered, or the job would lose its promise meanwhile
            found = state.gang_backfill.plan_start(
                request, self._now, reservations, is_promised, begun=dates.begun(request.job_id), most_trials=trials
            )
            if isinstance(found, Unfinished):
                dates.goes_on(request.job_id, had_promise, found)
                return None
        else:
            able = state.candidates.able(request)
            found = state.backfill.plan_start(request, able, self._now, respected(), is_promised)
        dates.computed(request.job_id, had_promise, found is not None)
        return found

    def plan_expected(
        self,
        request: PlacementRequest,
        *,
        is_kept: Callable[[], bool],
        respected: Callable[[], list[PlannedReservation]],
    ) -> PlannedReservation | None:
        """Plan a date by learned run times: see ``expected_dates``. For the rest see :meth:`plan`."""
        if not self._state.policy.counts_on_run_times or self._expected >= MAX_DATES or is_kept():
            return None
        self._expected += 1
        return self._state.expected_dates.plan(request, self._now, respected())

    def end(self) -> None:
        """Remember for the next round what was computed."""
        if not self.is_conservative:
            self._state.remembered.gang_dates = DateMemory()  # EASY computes its dates anew in each round
            return
        for dates in (self._slices, self._gangs):
            dates.end(self._state.remembered.reservations, self._state.queue)

    def _of(self, request: PlacementRequest) -> DateSlice:
        return self._gangs if needs_trials(request) else self._slices
