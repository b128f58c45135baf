"""Searches for jobs to move. One at a time, each in several decisions.

**Recovery** comes first: jobs that lost hosts or GPUs get a place. Then **defragmentation**: a gang fits nowhere
although enough GPUs are free, so jobs that can go on elsewhere are moved together.

While a search goes on the cluster may change, and the search goes on with what it knows. Else a busy cluster would
never have an answer. So its answer is only adopted as far as the cluster allows it then: see :meth:`_adopt`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.running_jobs import AttemptId
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.policy import MoveBudget
from gpu_platform.scheduling.preempting.claims import Claims
from gpu_platform.scheduling.preempting.displaced_jobs import DisplacedJobs
from gpu_platform.scheduling.preempting.move_solver import SolverTime
from gpu_platform.scheduling.preempting.moves import Gain, MovePlan, MovePlanner
from gpu_platform.scheduling.preempting.preemption import Preemption, PreemptionReason, lost_work
from gpu_platform.scheduling.preempting.steps import Search, Steps
from gpu_platform.scheduling.round.round import SchedulingRound, Waits
from gpu_platform.scheduling.round.state import SchedulerState

ALLOWANCE = 4_000
"""How many jobs and hosts one decision looks at. This takes 10 to 15 ms."""
GANGS = 8
"""At how many waiting gangs defragmentation looks, at most."""
DISPLACED_WAIT_S = 3600.0
"""How long a job that lost its GPUs is supposed to wait for others. Nobody knows."""
LOOK_LIMIT = 0.05
"""The solver's time for one look, in its own unit: all requests of one look together."""


@dataclass(frozen=True)
class _Answer:
    """The answer of a search: plans to be carried out together, in this order."""

    reason: PreemptionReason
    plans: Sequence[MovePlan]


class MoveSearches:
    """Decides which jobs are moved. ``aside``: where the solver works meanwhile. None: it is waited for."""

    def __init__(
        self, state: SchedulerState, displaced: DisplacedJobs, claims: Claims, aside: Executor | None = None
    ) -> None:
        self._state, self._displaced, self._claims = state, displaced, claims
        self._planner = MovePlanner(state.snapshot, state.framework, state.candidates, state.gangs, aside)
        self._search: Search[_Answer | None] | None = None
        self._moved: dict[str, list[float]] = {}
        """When each job was moved, within the last hour."""
        self._next_look = -math.inf
        self._looked_at: set[str] = set()
        """The jobs at which defragmentation looked already. When it has looked at all, it begins again."""
        self._budget = state.policy.recovery_budget
        """What is left of the budget for the jobs that are displaced now."""

    @property
    def is_searching(self) -> bool:
        """True if a search goes on."""
        return self._search is not None

    def restore(self, moved: Mapping[str, Iterable[float]]) -> None:
        """Note when jobs were moved."""
        self._moved = {job_id: list(at) for job_id, at in moved.items()}

    def begin(
        self, found: SchedulingRound, waiting: Iterable[Waits], staying: Sequence[RunningRow], now: float
    ) -> None:
        """Begin a search after a round, unless one goes on. ``waiting``: in order, without those over their quota.
        ``staying``: the running jobs that were not ordered to stop.
        """
        self._planner.avoid([one for _, one in found.reservations if one.is_promised])
        self._displaced.forget_settled(staying, now)
        if not self._displaced:
            self._budget = self._state.policy.recovery_budget
        if self._search is None:
            gain = partial(_gain, found.promises(), now)
            self._search = Search(self._look(self._due(waiting, now), staying, now, gain))

    def stop(self) -> None:
        """Give up the search. What it knows is of no use: other jobs were ordered to stop, or hosts were lost."""
        self._search = None

    def go_on(
        self, found: SchedulingRound, staying: Callable[[], Sequence[RunningRow]], now: float
    ) -> list[Preemption]:
        """Do a part of the search. Return which jobs are to be moved now, if that is its answer."""
        if self._search is None:
            return []
        self._search.go_on(ALLOWANCE)
        if not self._search.has_ended:
            return []
        answer, self._search = self._search.answer, None
        return [] if answer is None else self._adopt(answer, found, staying(), now)

    # -- searching -------------------------------------------------------------------------------

    def _due(self, waiting: Iterable[Waits], now: float) -> list[PlacementRequest]:
        """Return the gangs at which defragmentation looks now: they have waited long enough."""
        policy = self._state.policy
        if not policy.defragmentation or now < self._next_look:
            return []
        requests = (entry.request for entry in waiting if now - entry.request.enqueued_at >= policy.defragment_after_s)
        gangs = islice((request for request in requests if request.gpu_count > 1), GANGS)
        return [request for request in gangs if request.job_id not in self._looked_at]

    def _look(
        self, gangs: Sequence[PlacementRequest], staying: Sequence[RunningRow], now: float, gain: Gain
    ) -> Steps[_Answer | None]:
        """Search for moves for displaced jobs. If none help, search for the first of ``gangs`` that moves help."""
        policy = self._state.policy
        displaced = self._displaced.due(now) if policy.recovery else []
        if displaced:
            movable = self._movable(staying, policy.recovery_budget, now)
            plans = yield from recover(displaced, self._planner, movable, self._budget, now, _gain_of_displaced)
            if any(plan.jobs for plan in plans):
                return _Answer(PreemptionReason.RECOVERY, plans)
        if not policy.defragmentation or now < self._next_look:
            return None
        budget = policy.defragmentation_budget
        movable = self._movable(staying, budget, now)
        looks, found = yield from defragment(gangs, self._planner, movable, budget, now, gain)
        self._looked_at |= {request.job_id for request in gangs[:looks]}
        if found is not None or looks == len(gangs):
            self._looked_at.clear()
            self._next_look = now + policy.defragment_every_s  # else the next decision looks at the others
        return None if found is None else _Answer(PreemptionReason.DEFRAGMENTATION, [found])

    def _movable(self, staying: Iterable[RunningRow], budget: MoveBudget, now: float) -> list[RunningRow]:
        """Return the jobs that may be moved now."""
        self._moved = {job: recent for job, at in self._moved.items() if (recent := [t for t in at if t > now - 3600])}
        min_run_s = self._state.policy.min_run_s
        able = [row for row in staying if row.checkpoints and now - row.started_at >= min_run_s]
        return self._not_too_often(able, budget)

    def _not_too_often(self, movable: list[RunningRow], budget: MoveBudget) -> list[RunningRow]:
        return [row for row in movable if len(self._moved.get(row.job_id, ())) < budget.per_job_hour]

    # -- adopting an answer ----------------------------------------------------------------------

    def _adopt(
        self, answer: _Answer, found: SchedulingRound, staying: Sequence[RunningRow], now: float
    ) -> list[Preemption]:
        """Order the moves that are still possible, all together, and claim the places."""
        policy, is_recovery = self._state.policy, answer.reason is PreemptionReason.RECOVERY
        budget = policy.recovery_budget if is_recovery else policy.defragmentation_budget
        gain = _gain_of_displaced if is_recovery else partial(_gain, found.promises(), now)
        movable = {(row.job_id, row.attempt): row for row in self._movable(staying, budget, now)}
        left = self._budget if is_recovery else budget
        adopted: list[MovePlan] = []
        with Statement(self._state.snapshot) as attempt:
            for plan in answer.plans:
                possible = self._still_possible(plan, movable, left, gain, now, attempt)
                if possible is not None and possible.jobs:
                    adopted.append(possible)
                    lost = left.lost_gpu_s - possible.lost_gpu_s
                    left = replace(left, jobs=left.jobs - len(possible.jobs), lost_gpu_s=lost)
        if is_recovery:
            self._budget = left
        return [self._order(plan, answer.reason, now) for plan in adopted]

    def _still_possible(
        self,
        plan: MovePlan,
        movable: Mapping[AttemptId, RunningRow],
        budget: MoveBudget,
        gain: Gain,
        now: float,
        attempt: Statement,
    ) -> MovePlan | None:
        """Return the plan with the jobs and places as they are now, and hold the places in ``attempt``. None: the gang
        or a job to move is not there any more, or the moves cost too much, or somebody finds no place.
        """
        request = self._state.queue.get(plan.request.job_id)
        jobs = [job for one in plan.jobs if (job := movable.get((one.job_id, one.attempt)))]
        if request is None or request.attempt != plan.request.attempt or len(jobs) < len(plan.jobs):
            return None
        renewed = replace(plan, request=request, jobs=tuple(jobs), lost_gpu_s=sum(lost_work(job, now) for job in jobs))
        if not jobs:
            self._planner.carry_out(renewed, attempt)
            return renewed
        if any(job.priority > request.priority for job in jobs) or not renewed.pays(gain(request), budget.restart_s):
            return None
        if len(jobs) > budget.jobs or renewed.lost_gpu_s > budget.lost_gpu_s:
            return None
        places = self._planner.try_moving(request, jobs, attempt, keep=True)
        return None if places is None else replace(renewed, placement=places[0], new_places=places[1])

    def _order(self, plan: MovePlan, reason: PreemptionReason, now: float) -> Preemption:
        self._claims.make(plan.request.job_id, plan.placement, now)
        for job_id, placement in plan.new_places.items():
            self._claims.make(job_id, placement, now)
            self._moved.setdefault(job_id, []).append(now)
        return Preemption(
            plan.request.job_id, plan.request.attempt, tuple((job.job_id, job.attempt) for job in plan.jobs), reason
        )


def _gain(promised: Mapping[str, float], now: float, request: PlacementRequest) -> float:
    """Return the GPU-seconds that are saved if ``request`` need not wait on: as long as it has waited so far, but only
    until it would start anyway. So moves begin when waiting has cost as much as they do (as in the ski-rental problem).
    """
    return request.gpu_count * min(now - request.enqueued_at, promised.get(request.job_id, math.inf) - now)


def _gain_of_displaced(request: PlacementRequest) -> float:
    return request.gpu_count * DISPLACED_WAIT_S


def recover(
    displaced: Sequence[PlacementRequest],
    move_planner: MovePlanner,
    movable: Sequence[RunningRow],
    budget: MoveBudget,
    now: float,
    gain: Gain,
) -> Steps[list[MovePlan]]:
    """Search for the jobs to move for each displaced job, by priority, within one budget. Displaced jobs that
    fit without moves have a plan without moves. Those that do not fit, and those for which the moves would cost more
    than they save, are left out.

    The place of a displaced job counts as taken for those that follow, and so do the new places of moved jobs. So all
    plans that are returned can be carried out together, in this order.
    """
    plans: list[MovePlan] = []
    left, lost = budget.jobs, budget.lost_gpu_s
    moved: set[str] = set()
    for request in sorted(displaced, key=lambda request: (-request.priority, request.enqueued_at, request.job_id)):
        if left <= 0:
            break
        moves = yield from move_planner.without_moves(request, plans)
        if moves is None:
            allowed = [job for job in movable if job.job_id not in moved and job.priority <= request.priority]
            limits = replace(budget, jobs=left, lost_gpu_s=min(lost, gain(request)))
            moves = yield from move_planner.smallest_plan(request, allowed, limits, now, None, plans)
        if moves is None or (moves.jobs and not moves.pays(gain(request), budget.restart_s)):
            continue
        moved |= {job.job_id for job in moves.jobs}
        left, lost = left - len(moves.jobs), lost - moves.lost_gpu_s
        plans.append(moves)
    return plans


def defragment(
    waiting: Sequence[PlacementRequest],
    move_planner: MovePlanner,
    movable: Sequence[RunningRow],
    budget: MoveBudget,
    now: float,
    gain: Gain,
) -> Steps[tuple[int, MovePlan | None]]:
    """Search for the first of ``waiting`` for which moving jobs pays, and for the jobs to move. No job is moved for one
    of lower priority.

    The first number of the answer says at how many of ``waiting`` it looked. It stops when the solver's time for one
    look is used up: then look at the others next time.
    """
    time = SolverTime(LOOK_LIMIT)
    for number, request in enumerate(waiting):
        if time.left <= 0:
            return number, None
        allowed = [job for job in movable if job.priority <= request.priority]
        limits = replace(budget, lost_gpu_s=min(budget.lost_gpu_s, gain(request)))
        moves = yield from move_planner.smallest_plan(request, allowed, limits, now, time)
        if moves is not None and moves.pays(gain(request), budget.restart_s):
            return number + 1, moves
    return len(waiting), None
