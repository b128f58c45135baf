"""What would happen if a job were submitted now. It uses a scheduler core of its own, which cannot be used after it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpu_platform.domain.jobs.placement import EstimateBasis, Placement, Reason
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.preempting.victim_planning import PREEMPT_AGAIN_S
from gpu_platform.scheduling.scheduler import Decision, Scheduler

MAX_FUTURE_DECISIONS = 16
"""At how many future moments a dry run looks whether jobs have then run long enough to be preempted."""


@dataclass(frozen=True)
class DryRunResult:
    """The result of a dry run: a placement now, jobs that would be preempted, or a reason to wait."""

    placement: Placement | None = None
    reason: Reason | None = None
    preempts: tuple[str, ...] = ()
    """Jobs that would be preempted for it. It starts as soon as they have ended."""
    preempts_at: float | None = None
    """When they would be preempted, in Unix seconds, because they have a guaranteed run time. None: now."""


def simulate_submission(core: Scheduler, request: PlacementRequest, now: float) -> DryRunResult:
    """Submit ``request`` to ``core`` and return what happens. Do not use ``core`` after it."""
    core.add(request)
    decision = decide_all(core, now)
    for placed, placement in decision.placements:
        if placed.job_id == request.job_id:
            return DryRunResult(placement)
    reason = core.why(request.job_id, now)
    assert reason is not None, "it was not placed, so it waits"
    victims = _victims(decision, request)
    if victims:
        return DryRunResult(None, _preemption_under_way(reason, None), victims)
    if core.policy.preemption and not decision.preemptions:
        starts_by = reason.starts_by if reason.starts_by is not None else reason.estimated_start
        if starts_by is None or reason.estimate is EstimateBasis.PREEMPTING:
            starts_by = math.inf
        for at in _preemption_times(core, request, now, starts_by):
            core.replace_windows(then for one in [*core.windows] if (then := one.as_of(at)) is not None)
            decision = decide_all(core, at)
            victims = _victims(decision, request)
            if victims:
                return DryRunResult(None, _preemption_under_way(reason, at), victims, at)
            if decision.preemptions or decision.placements:
                break  # other jobs come first, and nobody knows what they leave
    return DryRunResult(None, reason)


def decide_all(core: Scheduler, now: float) -> Decision:
    """Decide until nothing is left for a next decision. Return what all these decisions placed and preempted."""
    decisions = [core.decide(now)]
    while core.unfinished:
        decisions.append(core.decide(now))
    placements = [one for decision in decisions for one in decision.placements]
    return Decision(placements, preemptions=[one for decision in decisions for one in decision.preemptions])


def _victims(decision: Decision, request: PlacementRequest) -> tuple[str, ...]:
    return tuple(job for one in decision.preemptions if one.job_id == request.job_id for job, _ in one.victims)


def _preemption_under_way(reason: Reason, at: float | None) -> Reason:
    """Return the reason without dates from time limits: preemption decides now."""
    dates = {"starts_by": None, "estimated_start": at, "estimated_between": None}
    return reason.model_copy(update={**dates, "estimate": EstimateBasis.PREEMPTING, "next_step": ""})


def _preemption_times(core: Scheduler, request: PlacementRequest, now: float, until: float) -> list[float]:
    """Return the moments at which jobs that might be stopped for ``request`` have had their guaranteed run time."""
    old_enough = (
        job.started_at + core.policy.min_run_s
        for job in core.running_jobs
        if job.preemptible and (job.priority < request.priority or core.quotas.lends)
    )
    looks = {math.ceil(at / PREEMPT_AGAIN_S) * PREEMPT_AGAIN_S for at in old_enough if at > now}
    return sorted(at for at in looks if at < until)[:MAX_FUTURE_DECISIONS]
