"""Recovery: jobs that lost hosts or GPUs get a place, by priority, each with the fewest moves, within one budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.policy import MoveBudget
from gpu_platform.scheduling.preempting.moves import Gain, MovePlan, MovePlanner


def recover(
    displaced: Sequence[PlacementRequest],
    move_planner: MovePlanner,
    snapshot: Snapshot,
    movable: Sequence[RunningRow],
    budget: MoveBudget,
    now: float,
    gain: Gain,
) -> list[tuple[PlacementRequest, MovePlan]]:
    """Return which jobs to move for which displaced job. Displaced jobs that fit without moves, or not at all, are
    left out, and so are those for which the moves would cost more than they save.

    The place of a displaced job counts as taken for those that follow, and so do the new places of moved jobs. So all
    moves that are returned can happen together.
    """
    found: list[tuple[PlacementRequest, MovePlan]] = []
    left, lost = budget.jobs, budget.lost_gpu_s
    moved: set[str] = set()
    with Statement(snapshot) as attempt:
        for row in sorted(displaced, key=lambda row: (-row.priority, row.enqueued_at, row.job_id)):
            if move_planner.try_moving(row, (), attempt, keep=True) is not None:
                continue
            allowed = [job for job in movable if job.job_id not in moved and job.priority <= row.priority]
            limits = replace(budget, jobs=left, lost_gpu_s=min(lost, gain(row)))
            moves = move_planner.smallest_plan(row, allowed, limits, now, attempt) if left > 0 else None
            if moves is None or not moves.pays(gain(row), budget.restart_s):
                continue
            move_planner.try_moving(row, moves.jobs, attempt, keep=True)
            moved |= {job.job_id for job in moves.jobs}
            left, lost = left - len(moves.jobs), lost - moves.lost_gpu_s
            found.append((row, moves))
    return found
