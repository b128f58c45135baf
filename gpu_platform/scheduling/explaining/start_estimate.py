"""When waiting jobs will probably start, from one run of the queue forward in time: see :mod:`forward_run`.

Running jobs, and then the jobs ahead, run as long as earlier ones did, or to their time limits where nothing was
learned. Jobs that come in later, and failures, let a job start after its estimate. An estimate is no promise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import EstimateBasis
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.backfilling.release_forecast import ReleaseForecast
from gpu_platform.scheduling.explaining.forward_run import ForwardRun
from gpu_platform.scheduling.placing.domains import together
from gpu_platform.scheduling.preempting.window_clearing import holders
from gpu_platform.scheduling.queueing.job_queue import GroupKey
from gpu_platform.scheduling.queueing.quota import QuotaDenial
from gpu_platform.scheduling.round.state import SchedulerState

STEPS = 8
"""So many steps of the run take about as long as a look at a job."""


@dataclass(frozen=True)
class Estimate:
    """A probable start, and what it is based on."""

    start: float | None
    """Seconds, on the clock of ``Scheduler.decide``."""
    basis: EstimateBasis


class Estimates:
    """The estimates of all waiting jobs, made a few looks at a time.

    ``denial``: says why the quotas do not allow a job, or None.
    """

    def __init__(
        self,
        state: SchedulerState,
        forecast: ReleaseForecast,
        denial: Callable[[PlacementRequest], QuotaDenial | None],
        now: float,
    ) -> None:
        self._state, self._denial = state, denial
        # If no running job has a time limit, and nothing was learned of any, only the ends of windows are known.
        running, self._windows = state.running_jobs, state.snapshot.windows
        self._limited = running.limited + running.expected > 0 or bool(self._windows)
        self._basis = EstimateBasis.RUN_TIMES if running.expected else EstimateBasis.TIME_LIMITS
        self._run = ForwardRun(
            state.queue,
            state.snapshot,
            forecast,
            now,
            with_dates=state.policy.backfill in ("easy", "conservative"),
            expected_dates=state.expected_dates if state.policy.counts_on_run_times else None,
            stops=_stops(state, now) if self._windows else None,
        )
        needs = (need.groups for need in state.queue.needs_in_order.copy().items) if self._limited else ()
        self._groups = deque(group for groups in needs for _, group in groups)
        """The groups of waiting jobs that the run does not know yet."""
        self._without: dict[GroupKey, EstimateBasis] = {}
        """Why groups of jobs get no estimate."""
        self.ended = not self._limited
        """True if all jobs have their estimates."""

    def advance(self, looks: int) -> int:
        """Go on, for at most this many looks. Return how many it took."""
        for look in range(looks):
            if self.ended:
                return look
            if self._groups:
                self._look(self._groups.popleft())
            else:
                self.ended = not all(self._run.step() for _ in range(STEPS))
        return looks

    def get(self, request: PlacementRequest) -> Estimate | None:
        """Return a job's estimate. None: it comes later, or not at all: it was not in the queue when the run began."""
        start = self._run.starts.get(request.job_id)
        if start is not None:
            return Estimate(start, self._basis)
        if not self._limited:
            return Estimate(None, EstimateBasis.REPAIR if self._able(request) is None else EstimateBasis.NO_TIME_LIMIT)
        why = self._without.get(self._state.queue.group(request))
        if why is None and self.ended:
            waits_for_window = self._windows.answer(request) is not None
            why = EstimateBasis.WINDOW if waits_for_window else EstimateBasis.NO_TIME_LIMIT
            why = EstimateBasis.TOO_FAR if self._run.is_cut else why
        return None if why is None else Estimate(None, why)

    def _look(self, group: GroupKey) -> None:
        """Let a group of jobs take part in the run, or note why not."""
        queue = self._state.queue
        request = queue.first(group)
        if request is None:
            return
        able = self._able(request)
        if self._denial(request) is not None:
            self._without[group] = EstimateBasis.QUOTA
        elif not self._windows.will_admit(request):
            self._without[group] = EstimateBasis.WINDOW
        elif able is None:
            self._without[group] = EstimateBasis.REPAIR
        elif not has_simple_estimate(request):
            self._without[group] = EstimateBasis.PARTS
        else:
            self._run.add(tuple(queue.members(group)), request, able)

    def _able(self, request: PlacementRequest) -> NDArray[np.bool_] | None:
        """Return the hosts that could serve it once all jobs have ended. None: they are too few."""
        state = self._state
        if not request.is_plain:
            return state.gangs.usable_hosts(request)
        able = together(request.resources, state.snapshot, state.candidates.able(request))
        return able if np.count_nonzero(able) >= request.resources.hosts else None


def _stops(state: SchedulerState, now: float) -> dict[tuple[int, int], float]:
    """Return when running jobs will be stopped for windows: (host index, GPU) -> when they have ended then."""
    windows, found = state.snapshot.windows, dict[tuple[int, int], float]()
    for window in windows.rows.values():
        gone_at = now if window.is_open else max(now, window.start - windows.margin_s / 2)
        for job in holders(window, state.snapshot, state.running_jobs):
            if not windows.allows_running(window, job):
                places = (state.snapshot.locate(uuid) for uuid in job.gpu_uuids)
                found |= {place: min(gone_at, found.get(place, gone_at)) for place in places if place is not None}
    return found


def has_simple_estimate(request: PlacementRequest) -> bool:
    """Tell whether the job asks for equal slices of whole GPUs."""
    return request.is_plain and not request.needs_partial_resources
