"""When a job that is more than equal slices of whole GPUs could start, and who must end first: found by trying.

Gangs of groups, totals, parts of GPUs, CPUs and memory get in each other's way as no look-up knows. So jobs are
let end, in the order of their time limits, until the real placer finds a place. That touches every host it
looks at: it is for one job that somebody asks about, never beside decisions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_platform.domain.placement import BlockingJob
from gpu_platform.domain.rows import QueueRow, RunningRow
from gpu_platform.scheduling.backfilling.release_forecast import HOLDERS
from gpu_platform.scheduling.cluster.running_jobs import latest_end
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.rounds import SchedulerState

MAX_SPARED = 64
"""Of so many jobs in the way it is tried whether each of them could stay."""


@dataclass(frozen=True)
class EarliestStart:
    start: float | None
    """Seconds, on the clock of ``Scheduler.decide``; None: somebody in the way may run for ever."""
    holders: list[BlockingJob]
    """Who must end, nobody of whom can be spared: those whose end is nearest."""
    more_holders: int


def find_earliest_start(row: QueueRow, state: SchedulerState, now: float) -> EarliestStart | None:
    """For ``row``, as if nobody waited ahead of it. None: not even if all jobs had ended."""
    running = sorted(state.running_jobs, key=lambda job: (latest_end(job), job.job_id, job.attempt))
    low, high = 0, len(running)
    if _hosts_without(row, running, state) is None:
        return None
    while low < high:  # what fits early also fits when more jobs have ended
        middle = (low + high) // 2
        low, high = (low, middle) if _hosts_without(row, running[:middle], state) is not None else (middle + 1, high)
    hosts = _hosts_without(row, running[:low], state) or frozenset()
    needed = [job for job in running[:low] if hosts & _hosts_of(job, state)]
    if len(needed) <= MAX_SPARED:
        for job in needed[:]:
            without = [other for other in needed if other is not job]
            if _hosts_without(row, without, state) is not None:
                needed = without
    end = max((latest_end(job) for job in needed), default=now)
    return EarliestStart(
        start=max(now, end) if end < math.inf else None,
        holders=[_holder(job, hosts, state) for job in needed[:HOLDERS]],
        more_holders=max(0, len(needed) - HOLDERS),
    )


def _hosts_without(row: QueueRow, ended: Sequence[RunningRow], state: SchedulerState) -> frozenset[str] | None:
    """Where it would be placed if ``ended`` had; None: nowhere."""
    with Statement(state.snapshot) as attempt:
        for job in ended:
            attempt.end(job)
        placement = state.gangs.place_in(row, attempt)
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
