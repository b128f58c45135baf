"""Defragmentation: a gang fits nowhere although enough GPUs are free, so jobs that can go on elsewhere are moved
together.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.policy import MoveBudget
from gpu_platform.scheduling.preempting.moves import MovePlan, MovePlanner


def defragment(
    waiting: Sequence[PlacementRequest],
    move_planner: MovePlanner,
    snapshot: Snapshot,
    movable: Sequence[RunningRow],
    budget: MoveBudget,
    now: float,
) -> tuple[PlacementRequest, MovePlan] | None:
    """Return the first of ``waiting`` for which moving jobs helps, and which jobs to move. No job is moved for one of
    lower priority.
    """
    for row in waiting:
        allowed = [job for job in movable if job.priority <= row.priority]
        with Statement(snapshot) as attempt:
            moves = move_planner.smallest_plan(row, allowed, budget, now, attempt)
        if moves is not None:
            return row, moves
    return None
