"""Defragmentation: a gang fits nowhere although enough GPUs are free, so jobs that can go on elsewhere are moved
together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.policy import MoveBudget
from gpu_platform.scheduling.preempting.move_solver import SolverTime
from gpu_platform.scheduling.preempting.moves import Gain, MovePlan, MovePlanner
from gpu_platform.scheduling.preempting.steps import Steps

LOOK_LIMIT = 0.05
"""The solver's time for one look, in its own unit: all requests of one look together."""


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
