"""Recovery: jobs that lost hosts or GPUs get a place, by priority, each with the fewest moves, within one budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.policy import MoveBudget
from gpu_platform.scheduling.preempting.moves import Gain, MovePlan, MovePlanner
from gpu_platform.scheduling.preempting.steps import Steps


def recover(
    displaced: Sequence[PlacementRequest],
    move_planner: MovePlanner,
    movable: Sequence[RunningRow],
    budget: MoveBudget,
    now: float,
    gain: Gain,
) -> Steps[list[MovePlan]]:
    """Search for the jobs to move for each displaced job. Displaced jobs that fit without moves have a plan without
    moves. Those that do not fit, and those for which the moves would cost more than they save, are left out.

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
