"""Which jobs to preempt: the cheapest set of running jobs without which a whole gang fits as it requires.

A set is cheaper if, in this order: its highest priority is lower; less work is lost since the last checkpoints (in
GPU-seconds); it has fewer victims. For one host, and for gangs among few jobs, the answer is the cheapest set. For
gangs among many jobs it is found greedily, and no victim of it can be spared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.preempting.steps import Steps
from gpu_platform.scheduling.preempting.victim_trials import TrialCluster, VictimTrial, victim_trial

_BORROWED, _BORROWED_IN_PART = -(10**6), 1 - 10**6
"""Priorities below all others."""

Cost = tuple[float, int]
"""(lost GPU-seconds, number of victims). Priorities are compared first."""
_Found = tuple[Cost, tuple[RunningRow, ...]]

HOSTS_TO_BEGIN, JOBS_TO_BEGIN = 2, 4
"""What it costs to begin a search, in the unit of ``steps``: one for so many hosts, and one for so many jobs."""


class PreemptionReason(StrEnum):
    """Why a job is stopped for another."""

    PREEMPTION = "preemption"
    """A job of higher priority needs the GPUs, or a job within its guarantee."""
    DEFRAGMENTATION = "defragmentation"
    """The job has a place elsewhere, and a gang needs its GPUs together with free ones."""
    RECOVERY = "recovery"
    """The job has a place elsewhere, and a job that lost hosts or GPUs needs this place."""


@dataclass(frozen=True)
class Preemption:
    """The ``victims`` (job id, attempt) must be stopped so that the job can start."""

    job_id: str
    attempt: int
    victims: tuple[tuple[str, int], ...]
    reason: PreemptionReason = PreemptionReason.PREEMPTION

    @property
    def is_move(self) -> bool:
        """True if each victim has a place elsewhere."""
        return self.reason is not PreemptionReason.PREEMPTION


def lost_work(row: RunningRow, now: float) -> float:
    """Return GPU-seconds since the last checkpoint. A job without GPUs counts as if it had one."""
    return max(0.0, now - max(row.started_at, row.checkpoint_at or row.started_at)) * max(len(row.gpu_uuids), 1)


def choose_victims(
    request: PlacementRequest,
    snapshot: Snapshot,
    framework: Framework,
    eligible: Iterable[RunningRow],
    now: float,
    being_preempted: Iterable[RunningRow] = (),
    trial_cluster: TrialCluster | None = None,
    allowed: Callable[[Iterable[RunningRow]], bool] | None = None,
) -> Steps[tuple[RunningRow, ...] | None]:
    """Return the victims for ``request`` out of ``eligible``. None: not even all of them would be enough.

    Free GPUs count, and so do those of jobs in ``being_preempted``. The answer is empty if they are enough.
    ``trial_cluster`` is needed for gangs of several groups, for totals, and for requests for shares, CPUs or memory; no
    other search may use it before this one has ended. ``allowed`` tells whether the quotas allow it once the given
    jobs have ended. None: there are no quotas.
    """
    trial = victim_trial(request, snapshot, framework, list(being_preempted), trial_cluster, allowed)
    yield len(request.requests) * len(snapshot) // HOSTS_TO_BEGIN
    if (yield from trial.fits(())):
        return ()
    jobs = [job for job in eligible if trial.helps(job)]
    yield len(jobs) // JOBS_TO_BEGIN
    if not (yield from trial.fits(jobs)):
        return None
    for priority in sorted({job.priority for job in jobs}):
        lower = [job for job in jobs if job.priority <= priority]
        if (yield from trial.fits(lower)):
            return (yield from _cheapest(trial, lower, now))
    return None


def earliest_preemption(
    request: PlacementRequest,
    snapshot: Snapshot,
    framework: Framework,
    eligible: Callable[[float], Iterable[RunningRow]],
    moments: Sequence[float],
    trial_cluster: TrialCluster | None = None,
    allowed: Callable[[Iterable[RunningRow]], bool] | None = None,
) -> Steps[float | None]:
    """Return the first of ``moments`` (ascending) at which there are enough victims for ``request``. None: at none of
    them.

    Also None if it needs no victims: its GPUs are free, but kept for other jobs. ``eligible``: which jobs may be
    stopped at a moment. It is assumed that they only become more. For the other parameters see
    :func:`choose_victims`.
    """
    if not moments:
        return None
    trial = victim_trial(request, snapshot, framework, [], trial_cluster, allowed)
    yield len(request.requests) * len(snapshot) // HOSTS_TO_BEGIN

    def enough(at: float) -> Steps[bool]:
        jobs = [job for job in eligible(at) if trial.helps(job)]
        yield len(jobs) // JOBS_TO_BEGIN
        return (yield from trial.fits(jobs))

    if (yield from trial.fits(())) or not (yield from enough(moments[-1])):
        return None
    low, high = 0, len(moments) - 1
    while low < high:  # the first moment that is enough
        middle = (low + high) // 2
        low, high = (low, middle) if (yield from enough(moments[middle])) else (middle + 1, high)
    return moments[low]


def _cheapest(trial: VictimTrial, jobs: Sequence[RunningRow], now: float) -> Steps[tuple[RunningRow, ...]]:
    costs = {(job.job_id, job.attempt): lost_work(job, now) for job in jobs}
    jobs = sorted(jobs, key=lambda job: (costs[job.job_id, job.attempt], job.job_id))
    if len(jobs) <= trial.exact_up_to:
        found = yield from _search(trial, jobs, costs)
    elif trial.one_host:
        found, jobs_of = None, dict[int, list[RunningRow]]()
        for job in jobs:
            for host_index in trial.of(job):
                jobs_of.setdefault(host_index, []).append(job)
        for _, there in sorted(jobs_of.items(), key=lambda entry: entry[0]):
            best = yield from _search(trial, there, costs, found[0] if found else None)
            found = best or found
    else:
        found = yield from _greedily(trial, jobs, costs)
    assert found is not None, "all of them together were enough"
    return found[1]


def _search(
    trial: VictimTrial, jobs: Sequence[RunningRow], costs: dict[tuple[str, int], float], bound: Cost | None = None
) -> Steps[_Found | None]:
    """Return the cheapest set out of ``jobs`` (ascending by cost) that is cheaper than ``bound``. Branch and bound."""
    best: _Found | None = None

    def extend(chosen: tuple[RunningRow, ...], cost: Cost, start: int) -> Steps[None]:
        nonlocal best
        for number in range(start, len(jobs)):
            job = jobs[number]
            new = (cost[0] + costs[job.job_id, job.attempt], cost[1] + 1)
            limit = best[0] if best else bound
            if limit is not None and new >= limit:
                if new[0] > limit[0]:
                    return  # the jobs that follow cost at least as much
                continue
            if (yield from trial.fits((*chosen, job))):
                best = (new, (*chosen, job))
            else:
                yield from extend((*chosen, job), new, number + 1)

    # If the gang does not fit without all of them, no set is enough.
    if (yield from trial.fits(jobs)):
        yield from extend((), (0.0, 0), 0)
    return best


def _greedily(
    trial: VictimTrial, jobs: Sequence[RunningRow], costs: dict[tuple[str, int], float]
) -> Steps[_Found | None]:
    """In each domain: stop jobs, cheapest first, until the gang fits. Then spare each that can be spared, dearest
    first.
    """
    domains = trial.domains().tolist()
    best: _Found | None = None
    inside_of: dict[int, list[RunningRow]] = {domain: [] for domain in sorted(set(domains))}
    for job in jobs:
        for domain in {domains[host_index] for host_index in trial.of(job)}:
            inside_of[domain].append(job)
    for inside in inside_of.values():
        if not (yield from trial.fits(inside)):
            continue
        low, high = 0, len(inside)
        while low < high:  # the shortest beginning of the list that is enough
            middle = (low + high) // 2
            low, high = (low, middle) if (yield from trial.fits(inside[:middle])) else (middle + 1, high)
        victims = inside[:low]
        for job in reversed(inside[:low]):
            without = [other for other in victims if other is not job]
            if (yield from trial.fits(without)):
                victims = without
        cost = (sum(costs[job.job_id, job.attempt] for job in victims), len(victims))
        if best is None or cost < best[0]:
            best = (cost, tuple(victims))
    return best


def eligible_victims(
    priority: int,
    running: Iterable[RunningRow],
    min_run_s: float,
    now: float,
    excess: dict[str, int] | None = None,
    reclaims: bool = False,
    namespace: str | None = None,
) -> list[RunningRow]:
    """Return which jobs may be stopped for a job of ``priority``: preemptible jobs past their guaranteed run time.

    Without ``excess``: those of lower priority. With ``excess`` (namespace -> GPUs beyond its guarantee) only jobs
    that run on borrowed GPUs: see :func:`_borrowers`.

    ``reclaims``: the job is within its own guarantee. Then it may stop borrowers of any priority; they count as lower
    than all others. It may also stop jobs of lower priority that do not borrow.

    Otherwise jobs within a guarantee are safe from it: they would be served first again, and nothing would be won. In
    its own ``namespace`` only priority decides.
    """
    running = list(running)
    old_enough = [job for job in running if job.preemptible and now - job.started_at >= min_run_s]
    if excess is None and not reclaims:
        # No quotas, so it does not matter which job is the newest.
        return [job for job in old_enough if job.priority < priority]
    borrowed = _borrowers(running, old_enough, excess or {})
    borrowing = {(job.job_id, job.attempt) for job, _ in borrowed}
    owned = [job for job in old_enough if (job.job_id, job.attempt) not in borrowing]
    if reclaims:
        found = [replace(job, priority=min(job.priority, rank)) for job, rank in borrowed]
    else:
        found = [job for job, _ in borrowed if job.priority < priority]
    return found + [
        job for job in owned if job.priority < priority and (reclaims or excess is None or job.namespace == namespace)
    ]


def _borrowers(
    running: Sequence[RunningRow], old_enough: Sequence[RunningRow], excess: dict[str, int]
) -> list[tuple[RunningRow, int]]:
    """Return the jobs out of ``old_enough`` that run on borrowed GPUs, newest first, with a priority below all others.

    A guarantee belongs to jobs that cannot be stopped, and then to the oldest ones that fit into it. So a job that
    starts takes it from nobody. Otherwise two jobs could stop each other without an end. The last borrower may borrow
    only some of its GPUs: otherwise its namespace could keep more than its guarantee for ever.
    """
    stoppable = {(job.job_id, job.attempt) for job in old_enough}
    borrowed: list[tuple[RunningRow, int]] = []
    for namespace, more in excess.items():
        # A guarantee counts GPUs, so a job without GPUs borrows nothing.
        there = [job for job in running if job.namespace == namespace and job.gpu_uuids] if more else []
        there.sort(key=lambda job: ((job.job_id, job.attempt) in stoppable, job.started_at, job.job_id))
        room, outside = sum(len(job.gpu_uuids) for job in there) - more, list[RunningRow]()
        for job in there:
            if (job.job_id, job.attempt) not in stoppable or len(job.gpu_uuids) <= room:
                room -= len(job.gpu_uuids)
            else:
                outside.append(job)
        parts = []
        for job in reversed(outside):
            if len(job.gpu_uuids) <= more:
                more -= len(job.gpu_uuids)
                borrowed.append((job, _BORROWED))
            else:
                parts.append(job)
        for job in parts:
            if more > 0:
                more -= len(job.gpu_uuids)
                borrowed.append((job, _BORROWED_IN_PART))
    return borrowed
