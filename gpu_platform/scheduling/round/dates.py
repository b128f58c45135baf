"""Step 4 of a turn: the date of a job that waits. To whom one is given, how many, and by what they are planned.

A date comes from the first of three sources that knows one: what the job was promised before, the time limits of the
jobs in its way, and their learned run times. Each is a planned reservation, and differs only in whom it binds.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation
from gpu_platform.scheduling.backfilling.date_slices import DateSlice
from gpu_platform.scheduling.backfilling.expected_dates import MAX_DATES
from gpu_platform.scheduling.backfilling.gang_backfill import Unfinished
from gpu_platform.scheduling.backfilling.promises import DateMemory, EarlierPromises, Overruns
from gpu_platform.scheduling.placing.gang_trials import needs_trials
from gpu_platform.scheduling.round.kept import RespectedReservations, RoundKeptHosts
from gpu_platform.scheduling.round.state import SchedulerState

MAX_TENTATIVE_DATES = 4
"""How many jobs get a tentative date. Jobs behind them block their hosts instead: this is cheaper, but costs others
more.
"""


class RoundDates:
    """Plans dates within what one round may spend on them."""

    def __init__(
        self,
        state: SchedulerState,
        now: float,
        earlier: EarlierPromises,
        overruns: Overruns,
        respected: RespectedReservations,
        kept: RoundKeptHosts,
    ) -> None:
        """``earlier``: what was promised before the round. ``respected``, ``kept``: what others have in this one."""
        self._state, self._now, self._earlier, self._overruns = state, now, earlier, overruns
        self._respected, self._kept = respected, kept
        self.is_conservative = state.policy.backfill == "conservative"
        hosts, most = len(state.snapshot), state.policy.backfill_depth
        slices, gangs = list[str](), list[str]()
        for job_id in earlier.standing:
            request = state.queue.get(job_id)
            (gangs if request is not None and needs_trials(request) else slices).append(job_id)
        depth = most if self.is_conservative else 0
        self._slices = DateSlice.of_slices(state.remembered, slices, hosts, depth)
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

    def are_out(self, *, is_first: bool, others: int = 0) -> bool:
        """Tell whether no job gets a date by time limits any more in this round.

        ``is_first``: no job ahead has a date for hosts that the job could use. ``others``: how many dates of jobs that
        had no turn yet count, too.
        """
        policy, queue = self._state.policy, self._state.queue
        if policy.backfill == "keep" or self._respected.given + others >= policy.backfill_depth:
            return True
        if is_first or self.is_conservative:
            return False
        # Tentative dates bind only jobs without a time limit.
        return queue.endless == 0 or self.tentative >= MAX_TENTATIVE_DATES

    def of(self, request: PlacementRequest, usable: NDArray[np.bool_], *, is_first: bool) -> PlannedReservation | None:
        """Return what is reserved for a job that waits, from its date on. None: nobody knows a date.

        ``usable``: the hosts that it could use once all jobs have ended. ``is_first``: as in :meth:`are_out`.
        """
        found = None if self._of(request).is_due(request.job_id) else self._promised(request, None)
        if found is None:
            found = self._promised(request, self.plan(request, usable, is_first=is_first))
        if found is None and is_first and self._state.snapshot.windows.answer(request) is None:
            found = self._plan_expected(request, usable)
        return found if found is None or found.is_expected else self._overruns.mark(found)

    def _promised(self, request: PlacementRequest, planned: PlannedReservation | None) -> PlannedReservation | None:
        """Return ``planned``, or what was promised before, if that is earlier and can be kept."""
        promise = None
        if request.job_id in self._earlier.standing:
            promise = self._earlier.better(request, planned, self._respected.of(request))
        self._earlier.unrenewed.pop(request.job_id, None)
        if promise is None or self._kept.of(request).newcomers_keep(promise.hosts):
            return planned
        return promise

    def plan(
        self, request: PlacementRequest, usable: NDArray[np.bool_], *, is_first: bool
    ) -> PlannedReservation | None:
        """Plan a reservation by time limits, or return None. For the arguments see :meth:`of`."""
        state, is_conservative, job_id = self._state, self.is_conservative, request.job_id
        is_promised = is_first or is_conservative
        running, unrenewed = state.running_jobs, self._earlier.unrenewed
        is_known = running.limited or self._respected.given or unrenewed or state.window_bookings
        had_promise = job_id in self._earlier.standing
        # Shares change the order. A job that is served earlier now takes the date of nobody who was promised one.
        others = 0 if had_promise or job_id in state.queue.newcomers else len(unrenewed)
        if not is_known or self.are_out(is_first=is_first, others=others) or self._kept.are_kept(request, usable):
            return None
        dates = self._of(request)
        # With EASY each first job is told its date in each round; there are few.
        is_free = is_first and not is_conservative
        if not had_promise and not is_free and not dates.allows(job_id):
            return None
        if is_free and needs_trials(request):
            dates.use_up()  # no tentative ones in this round
        self.tentative += not is_promised
        found = self._earliest(request, dates, is_promised, had_promise)
        if isinstance(found, Unfinished):
            dates.goes_on(job_id, had_promise, found)
            return None
        dates.computed(job_id, had_promise, found is not None)
        return found

    def _earliest(
        self, request: PlacementRequest, dates: DateSlice, is_promised: bool, had_promise: bool
    ) -> PlannedReservation | Unfinished | None:
        """Return the earliest start beside what others have reserved, or how far the search for it came."""
        state, now, reservations = self._state, self._now, self._respected.of(request)
        if not needs_trials(request):
            return state.backfill.plan_start(request, state.candidates.able(request), now, reservations, is_promised)
        trials = dates.most_trials
        if not self.is_conservative or (had_promise and self._earlier.better(request, None, reservations) is None):
            trials = math.inf  # no date is remembered, or the job would lose its promise meanwhile
        begun = dates.begun(request.job_id)
        return state.gang_backfill.plan_start(request, now, reservations, is_promised, begun=begun, most_trials=trials)

    def _plan_expected(self, request: PlacementRequest, usable: NDArray[np.bool_]) -> PlannedReservation | None:
        """Plan a date by learned run times: see ``expected_dates``."""
        used_up = not self._state.policy.counts_on_run_times or self._expected >= MAX_DATES
        if used_up or self._kept.are_kept(request, usable):
            return None
        self._expected += 1
        return self._state.expected_dates.plan(request, self._now, self._respected.of_jobs(request))

    def end(self) -> None:
        """Remember for the next round what was computed."""
        if not self.is_conservative:
            self._state.remembered.gang_dates = DateMemory()  # EASY computes its dates anew in each round
            return
        for dates in (self._slices, self._gangs):
            dates.end(self._state.remembered.reservations, self._state.queue)

    def _of(self, request: PlacementRequest) -> DateSlice:
        return self._gangs if needs_trials(request) else self._slices
