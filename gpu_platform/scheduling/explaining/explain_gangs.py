"""Why a gang of several rank groups, or a total, waits: which group has no place, and why."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpu_platform.domain.jobs.placement import Reason, WaitCode
from gpu_platform.domain.jobs.resources import INSIDE_ONE_HOST, ResourceRequest
from gpu_platform.domain.placing.capacity import describe
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.explaining.chosen_hosts import too_few_chosen
from gpu_platform.scheduling.explaining.explain import BlockedHosts, explain, unknown_level
from gpu_platform.scheduling.placing.candidates import CandidateIndex, Candidates
from gpu_platform.scheduling.placing.domains import is_between_hosts
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.scheduling.placing.splitting import can_hold, capacities


def explain_gang(
    request: PlacementRequest,
    snapshot: Snapshot,
    candidates: CandidateIndex,
    placer: GangPlacer,
    fits_empty: Callable[[PlacementRequest], bool],
    kept: Callable[[PlacementRequest, Candidates], BlockedHosts | None],
    starts_by: float | None = None,
) -> Reason:
    """Say why ``request`` was not placed on ``snapshot``.

    ``fits_empty`` tells whether it would have a place once all jobs have ended, ``kept`` which hosts jobs ahead keep
    from a plain request.
    """
    first_unplaceable = placer.first_unplaceable(request)
    if first_unplaceable is not None:
        reason = _explain_group(first_unplaceable, snapshot, candidates, placer, kept)
        which = f"group {first_unplaceable.group} " if first_unplaceable.group else ""
        step = which + reason.next_step if reason.code is WaitCode.NEVER_FITS else reason.next_step
        update = {"message": which + reason.message, "next_step": step, "starts_by": starts_by}
        return reason.model_copy(update=update)
    asked = " and ".join(f"{group.group or ''} {describe(group.resources)}".strip() for group in request.rank_groups())
    whole = placer.fits(request)
    kept_hosts = (kept(*_example(group, candidates)) for group in request.rank_groups() if whole)
    held_back = next((one for one in kept_hosts if one), None)
    if held_back is not None:
        code = WaitCode.BEHIND_HIGHER_PRIORITY
        message, step = "", f"starts once {held_back.job_id}, ahead in the queue, has started"
    elif not fits_empty(request):
        code, message = WaitCode.NEVER_FITS, ", each of which would fit, but never all at once"
        step = f"asked for {asked}{message}: ask for less, or add hosts"
    else:
        code, message = WaitCode.WAITING_FOR_GPUS, ", each of which would fit, but not all at once"
        step = "running jobs must free GPUs that two groups want"
    return Reason(code=code, message=f"needs {asked}{message}", next_step=step, starts_by=starts_by)


def _explain_group(
    group: PlacementRequest,
    snapshot: Snapshot,
    candidates: CandidateIndex,
    placer: GangPlacer,
    kept: Callable[[PlacementRequest, Candidates], BlockedHosts | None],
) -> Reason:
    if group.resources.total is None:
        answers = candidates.of(group)
        return explain(group.resources, snapshot, answers, kept(group, answers))
    one, answers = _example(group, candidates)
    reason = explain(one.resources, snapshot, answers, kept(one, answers))
    free = capacities(group, snapshot, lambda request: candidates.of(request).fits)
    able = capacities(group, snapshot, lambda request: candidates.of(request).after_health)
    message = f"needs {describe(group.resources)}{_where(group.resources)}: {len(snapshot)} hosts; "
    message += (
        f"{int(free.sum())} free on {int(np.count_nonzero(free))} hosts, at most {int(free.max(initial=0))} together"
    )
    update: dict[str, object] = {"message": message}
    if reason.code is not WaitCode.NO_HOSTS:
        if can_hold(group.resources, snapshot, able).any():
            update |= {
                "code": WaitCode.WAITING_FOR_GPUS,
                "next_step": f"running jobs must free GPUs, or hosts come back: {int(able.sum())} could serve in all",
            }
        else:
            update |= {
                "code": WaitCode.NEVER_FITS,
                "next_step": _less(group.resources, snapshot, able),
            }
    return reason.model_copy(update=update)


def _example(group: PlacementRequest, candidates: CandidateIndex) -> tuple[PlacementRequest, Candidates]:
    """Return a plain request of the same kind, with its candidates."""
    request = group if group.resources.total is None else group.asking_for(group.resources.slices(1))
    return request, candidates.of(request)


def _less(resources: ResourceRequest, snapshot: Snapshot, able: np.ndarray) -> str:
    """Say what was asked, what there is and what to do. ``able``: GPUs that each host could give, by host index."""
    asked = f"asked for {describe(resources)}{_where(resources)}; "
    if too_few := too_few_chosen(resources, snapshot):
        return asked + too_few
    if unknown := unknown_level(resources, snapshot):
        return asked + unknown
    level = resources.gang_level
    if level in INSIDE_ONE_HOST:
        most = int(able.max(initial=0))
    elif level is not None and is_between_hosts(level):
        most = int(np.bincount(snapshot.domains[level], weights=able, minlength=1).max())
    else:
        most = int(able.sum())
        return f"{asked}all hosts together could give {most}: ask for at most {most} GPUs"
    else_ = f"require no {level}" if level == resources.required_level else "for less bandwidth (--min-bandwidth)"
    return f"{asked}at most {most} are to be had so: ask for at most {most} GPUs, or {else_}"


def _where(resources: ResourceRequest) -> str:
    level = resources.gang_level
    if level in INSIDE_ONE_HOST:
        return f" of one {level}"
    return f" under one {level}" if is_between_hosts(level) else ""
