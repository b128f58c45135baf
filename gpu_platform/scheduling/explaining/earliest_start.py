"""When a job could start that is more than equal slices of whole GPUs, and which jobs must end first. Found by
trying.

Rank groups, totals, shares, CPUs and memory get in each other's way, so no table gives the answer. Instead, jobs end
one after another in a statement, in the order of their time limits, until the placer finds a place. That touches
every host that it looks at. So it is done only for one job about which somebody asks, never during a decision.

Windows come and go meanwhile: a place may be closed when it is free. So with windows later moments are tried, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpu_platform.domain.jobs.placement import BlockingJob
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.backfilling.release_forecast import HOLDERS
from gpu_platform.scheduling.cluster.running_jobs import latest_end
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.cluster.windows import WindowPhases, reservation_of
from gpu_platform.scheduling.round.state import SchedulerState

MAX_MOMENTS = 32
"""At so many later moments it is looked whether windows leave the job a place."""
MAX_SPARED = 64
"""For at most this many jobs it is checked whether each of them could stay."""


@dataclass(frozen=True)
class EarliestStart:
    """The earliest start of one job, as if no other job waited."""

    start: float | None
    """Seconds on the clock of ``Scheduler.decide``. None: a job that must end first has no time limit, or nobody knows
    when windows leave it enough."""
    holders: list[BlockingJob]
    """The jobs that must end first. None of them can be spared. Those that end first are named."""
    more_holders: int


def find_earliest_start(request: PlacementRequest, state: SchedulerState, now: float) -> EarliestStart | None:
    """Return the earliest start of ``request``, as if no job waited ahead of it. None: it has no place even if all jobs
    end.
    """
    with state.snapshot.windows.set_aside():
        found = _without_windows(request, state, now)
    if found is None or not (state.snapshot.windows or reservation_of(request)):
        return found
    return replace(found, start=_beside_windows(request, state, found.start))


def _beside_windows(request: PlacementRequest, state: SchedulerState, start: float | None) -> float | None:
    """Return the first moment, not before ``start``, at which windows leave the job a place. None: nobody knows it."""
    if start is None or not state.snapshot.windows.will_admit(request):
        return None
    ends = ((latest_end(job), job) for job in state.running_jobs)
    later = sorted(((end, job) for end, job in ends if end < math.inf), key=lambda one: one[0])
    moments = {start, *(end for end, _ in later), *WindowPhases(state.snapshot.windows).moments}
    for moment in sorted(at for at in moments if at >= start)[:MAX_MOMENTS]:
        ended = [job for end, job in later if end <= moment]
        with state.snapshot.windows.looking_at(moment):
            if _hosts_without(request, ended, state) is not None:
                return moment
    return None


def _without_windows(request: PlacementRequest, state: SchedulerState, now: float) -> EarliestStart | None:
    running = sorted(state.running_jobs, key=lambda job: (latest_end(job), job.job_id, job.attempt))
    low, high = 0, len(running)
    if _hosts_without(request, running, state) is None:
        return None
    while low < high:  # what fits early also fits after more jobs have ended
        middle = (low + high) // 2
        fits = _hosts_without(request, running[:middle], state) is not None
        low, high = (low, middle) if fits else (middle + 1, high)
    hosts = _hosts_without(request, running[:low], state) or frozenset()
    needed = [job for job in running[:low] if hosts & _hosts_of(job, state)]
    if len(needed) <= MAX_SPARED:
        for job in needed[:]:
            without = [other for other in needed if other is not job]
            if _hosts_without(request, without, state) is not None:
                needed = without
    end = max((latest_end(job) for job in needed), default=now)
    return EarliestStart(
        start=max(now, end) if end < math.inf else None,
        holders=[_holder(job, hosts, state) for job in needed[:HOLDERS]],
        more_holders=max(0, len(needed) - HOLDERS),
    )


def _hosts_without(
    request: PlacementRequest, ended: Sequence[RunningRow], state: SchedulerState
) -> frozenset[str] | None:
    """Return the hosts on which the job would be placed if ``ended`` had ended. None: there is no place."""
    with Statement(state.snapshot) as attempt:
        for job in ended:
            attempt.end(job)
        placement = state.gangs.place_in(request, attempt)
    return None if placement is None else frozenset(placement.hosts)


def _hosts_of(job: RunningRow, state: SchedulerState) -> frozenset[str]:
    return frozenset(state.snapshot.names[host_index] for host_index in state.snapshot.host_indices_of(job))


def _holder(job: RunningRow, hosts: frozenset[str], state: SchedulerState) -> BlockingJob:
    there = [
        uuid
        for uuid in job.gpu_uuids
        if (place := state.snapshot.locate(uuid)) is not None and state.snapshot.names[place[0]] in hosts
    ]
    end = latest_end(job)
    return BlockingJob(
        job_id=job.job_id,
        attempt=job.attempt,
        gpus=len(there),
        hosts=sorted(hosts & _hosts_of(job, state)),
        ends_by=end if end < math.inf else None,
    )
