"""Who must make room: the cheapest set of running jobs without which a whole gang fits as it requires.

Cheaper is, in this order: lower priority (of the highest victim); less work lost since the last checkpoint
(GPU-seconds); fewer victims. For one host, and for gangs among few jobs, the answer is the cheapest there
is; for gangs among many jobs it is a greedy one, of which no victim can be spared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.rows import QueueRow, RunningRow
from gpu_platform.scheduling.cluster.snapshot import ChangeKind, Snapshot
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.placing.candidates import host_query
from gpu_platform.scheduling.placing.domains import domains_of, together
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.topology.subsets import best_subset

EXACT_UP_TO = 12
"""So many possible victims: every set of them is considered (4,096)."""
GANG_EXACT_UP_TO = 6
"""As above where each set costs an attempt to place a whole gang."""

_BORROWED, _BORROWED_IN_PART = -(10**6), 1 - 10**6
"""Below all priorities."""

Cost = tuple[float, int]
"""(lost GPU-seconds, victims); priorities are dealt with before."""


class PreemptionReason(StrEnum):
    PREEMPTION = "preemption"
    """For a job of higher priority, or one whose guarantee it is."""
    DEFRAGMENTATION = "defragmentation"
    """It has a place elsewhere, and the GPUs together are what a gang needs."""
    RECOVERY = "recovery"
    """It has a place elsewhere, and a job that lost hosts or GPUs needs this one."""


@dataclass(frozen=True)
class Preemption:
    """``victims`` (job id, attempt) are to be stopped, so that the job can start."""

    job_id: str
    attempt: int
    victims: tuple[tuple[str, int], ...]
    reason: PreemptionReason = PreemptionReason.PREEMPTION


def lost_work(row: RunningRow, now: float) -> float:
    """GPU-seconds since the last checkpoint; a job without GPUs counts as if it had one."""
    return max(0.0, now - max(row.started_at, row.checkpoint_at or row.started_at)) * max(len(row.gpu_uuids), 1)


def choose_victims(
    row: QueueRow,
    snapshot: Snapshot,
    framework: Framework,
    eligible: Iterable[RunningRow],
    now: float,
    being_preempted: Iterable[RunningRow] = (),
    placer: GangPlacer | None = None,
    allowed: Callable[[Iterable[RunningRow]], bool] | None = None,
) -> tuple[RunningRow, ...] | None:
    """The victims for ``row`` out of ``eligible``; None if not even all of them would do.

    GPUs that are free, and those of jobs that are ``being_preempted`` anyway, count. Empty if they are enough.
    ``placer`` is needed for gangs of groups, for totals, and where parts of GPUs, CPUs or memory are given away.
    ``allowed``: do the quotas allow ``row`` once these jobs have ended? None: whatever ends.
    """
    trial = _victim_trial(row, snapshot, framework, list(being_preempted), placer, allowed)
    jobs = [job for job in eligible if trial.helps(job)]
    if trial.fits(()):
        return ()
    if not trial.fits(jobs):
        return None
    for priority in sorted({job.priority for job in jobs}):
        lower = [job for job in jobs if job.priority <= priority]
        if trial.fits(lower):
            return _cheapest(trial, lower, now)
    return None


def earliest_preemption(
    row: QueueRow,
    snapshot: Snapshot,
    framework: Framework,
    eligible: Callable[[float], Iterable[RunningRow]],
    moments: Sequence[float],
    placer: GangPlacer | None = None,
    allowed: Callable[[Iterable[RunningRow]], bool] | None = None,
) -> float | None:
    """The first of ``moments`` (ascending) at which there are victims enough for ``row``; None if at none of them.

    Also None if it needs no victims: its GPUs are free, and kept for others.
    ``eligible``: who may be stopped at a moment; of whom there are taken to be ever more. The rest as
    :func:`choose_victims`.
    """
    trial = _victim_trial(row, snapshot, framework, [], placer, allowed)

    def enough(at: float) -> bool:
        return trial.fits([job for job in eligible(at) if trial.helps(job)])

    if not moments or trial.fits(()) or not enough(moments[-1]):
        return None
    return moments[bisect_left(moments, True, key=enough)]


def _victim_trial(
    row: QueueRow,
    snapshot: Snapshot,
    framework: Framework,
    being_preempted: Sequence[RunningRow],
    placer: GangPlacer | None,
    allowed: Callable[[Iterable[RunningRow]], bool] | None,
) -> VictimTrial:
    trial: VictimTrial
    if row.is_plain and not row.needs_partial_resources and not snapshot.shared.partly.any():
        trial = SliceVictimTrial(row, snapshot, framework, being_preempted)
    else:
        assert placer is not None, "only plain gangs of whole GPUs can do without"
        trial = GangVictimTrial(row, snapshot, placer, being_preempted)
    return trial if allowed is None else QuotaVictimTrial(trial, snapshot, being_preempted, allowed)


class VictimTrial(Protocol):
    """What would be free without some jobs."""

    exact_up_to: int
    one_host: bool

    def of(self, job: RunningRow) -> dict[int, int]:
        """Host index -> usable GPUs that the job has there."""
        ...

    def helps(self, job: RunningRow) -> bool: ...
    def fits(self, without: Iterable[RunningRow]) -> bool: ...
    def domains(self) -> NDArray[np.intp]:
        """Of every host, the number of the domain that the gang may not leave."""
        ...


class SliceVictimTrial:
    """For equal slices: host by host, without touching the snapshot."""

    exact_up_to = EXACT_UP_TO

    def __init__(
        self, row: QueueRow, snapshot: Snapshot, framework: Framework, being_preempted: Iterable[RunningRow]
    ) -> None:
        self.request, self._snapshot = row.gpus, snapshot
        self.one_host = row.gpus.hosts == 1
        host_indices = np.arange(len(snapshot))
        query = host_query(snapshot, row)
        usable = framework.usable(query, snapshot, host_indices, ChangeKind.USE)
        self._usable = usable.tolist()
        self._free = (usable & snapshot.free & ~snapshot.held).tolist()
        for job in being_preempted:
            for host_index, gpus in self.of(job).items():
                self._free[host_index] |= gpus
        self._ready = np.array([self.offers(host_index, 0) for host_index in host_indices.tolist()], bool)

    def of(self, job: RunningRow) -> dict[int, int]:
        found: dict[int, int] = {}
        for uuid in job.gpu_uuids:
            place = self._snapshot.locate(uuid)
            if place is not None and self._usable[place[0]] >> place[1] & 1:
                found[place[0]] = found.get(place[0], 0) | 1 << place[1]
        return found

    def helps(self, job: RunningRow) -> bool:
        return bool(self.of(job))

    def ready(self, without: Iterable[RunningRow]) -> NDArray[np.bool_]:
        """Hosts that could take a slice then."""
        freed: dict[int, int] = {}
        for job in without:
            for host_index, gpus in self.of(job).items():
                freed[host_index] = freed.get(host_index, 0) | gpus
        ready = self._ready.copy()
        for host_index, gpus in freed.items():
            ready[host_index] = self.offers(host_index, gpus)
        return ready

    def fits(self, without: Iterable[RunningRow]) -> bool:
        request = self.request
        return int(np.count_nonzero(together(request, self._snapshot, self.ready(without)))) >= request.hosts

    def domains(self) -> NDArray[np.intp]:
        return domains_of(self.request, self._snapshot, np.arange(len(self._snapshot)))

    def offers(self, host_index: int, freed: int) -> bool:
        request, machine = self.request, self._snapshot.machines[self._snapshot.machine[host_index]]
        free = self._free[host_index] | freed
        if free.bit_count() < request.gpus_per_host:
            return False
        cross, required = request.allow_cross_numa, request.required_level
        return best_subset(machine, free, request.gpus_per_host, cross, required) is not None


class GangVictimTrial:
    """For groups, totals and parts: by trying to place the whole gang as if the jobs had ended."""

    exact_up_to = GANG_EXACT_UP_TO
    one_host = False

    def __init__(
        self, row: QueueRow, snapshot: Snapshot, placer: GangPlacer, being_preempted: Iterable[RunningRow]
    ) -> None:
        self._row, self._snapshot, self._placer, self._being_preempted = row, snapshot, placer, list(being_preempted)
        usable = placer.usable_hosts(row, lambda candidates: candidates.after_use)
        self._usable_hosts = np.zeros(len(snapshot), bool) if usable is None else usable

    def of(self, job: RunningRow) -> dict[int, int]:
        """Also hosts where it has only CPUs and memory, with no GPU."""
        found = {host_index: 0 for host_index in self._snapshot.host_indices_of(job) if self._usable_hosts[host_index]}
        for uuid in job.gpu_uuids:
            place = self._snapshot.locate(uuid)
            if place is not None and place[0] in found:
                found[place[0]] |= 1 << place[1]
        return found

    def helps(self, job: RunningRow) -> bool:
        return bool(self.of(job))

    def fits(self, without: Iterable[RunningRow]) -> bool:
        with Statement(self._snapshot) as attempt:
            for job in (*self._being_preempted, *without):
                attempt.end(job)
            return self._placer.place_in(self._row, attempt) is not None

    def domains(self) -> NDArray[np.intp]:
        return np.zeros(len(self._snapshot), np.intp)


class QuotaVictimTrial:
    """Another space, where the quotas must allow the gang as well: ending a job may help wherever it runs."""

    one_host = False

    def __init__(
        self,
        trial: VictimTrial,
        snapshot: Snapshot,
        being_preempted: Sequence[RunningRow],
        allowed: Callable[[Iterable[RunningRow]], bool],
    ) -> None:
        self._trial, self._snapshot, self._being_preempted, self._allowed = trial, snapshot, being_preempted, allowed
        self.exact_up_to = trial.exact_up_to

    def of(self, job: RunningRow) -> dict[int, int]:
        found = dict.fromkeys(self._snapshot.host_indices_of(job), 0)
        for uuid in job.gpu_uuids:
            place = self._snapshot.locate(uuid)
            if place is not None:
                found[place[0]] |= 1 << place[1]
        return found

    def helps(self, job: RunningRow) -> bool:
        return bool(self.of(job))

    def fits(self, without: Iterable[RunningRow]) -> bool:
        without = list(without)
        return self._allowed([*self._being_preempted, *without]) and self._trial.fits(without)

    def domains(self) -> NDArray[np.intp]:
        return np.zeros(len(self._snapshot), np.intp)


def _cheapest(trial: VictimTrial, jobs: Sequence[RunningRow], now: float) -> tuple[RunningRow, ...]:
    costs = {(job.job_id, job.attempt): lost_work(job, now) for job in jobs}
    jobs = sorted(jobs, key=lambda job: (costs[job.job_id, job.attempt], job.job_id))
    if len(jobs) <= trial.exact_up_to:
        found = _search(trial, jobs, costs)
    elif trial.one_host:
        found = None
        for host_index in sorted({host_index for job in jobs for host_index in trial.of(job)}):
            there = [job for job in jobs if host_index in trial.of(job)]
            best = _search(trial, there, costs, found[0] if found else None)
            found = best or found
    else:
        found = _greedily(trial, jobs, costs)
    assert found is not None, "all of them together were enough"
    return found[1]


def _search(
    trial: VictimTrial, jobs: Sequence[RunningRow], costs: dict[tuple[str, int], float], bound: Cost | None = None
) -> tuple[Cost, tuple[RunningRow, ...]] | None:
    """The cheapest set out of ``jobs`` (ascending by cost) that is cheaper than ``bound``: branch and bound."""
    best: tuple[Cost, tuple[RunningRow, ...]] | None = None

    def extend(chosen: tuple[RunningRow, ...], cost: Cost, start: int) -> None:
        nonlocal best
        for number in range(start, len(jobs)):
            job = jobs[number]
            new = (cost[0] + costs[job.job_id, job.attempt], cost[1] + 1)
            limit = best[0] if best else bound
            if limit is not None and new >= limit:
                if new[0] > limit[0]:
                    return  # those that follow cost at least as much
                continue
            if trial.fits((*chosen, job)):
                best = (new, (*chosen, job))
            else:
                extend((*chosen, job), new, number + 1)

    # With all that could still be chosen it must fit, or there is nothing to search.
    if trial.fits(jobs):
        extend((), (0.0, 0), 0)
    return best


def _greedily(
    trial: VictimTrial, jobs: Sequence[RunningRow], costs: dict[tuple[str, int], float]
) -> tuple[Cost, tuple[RunningRow, ...]] | None:
    """Per domain: evict, cheapest first, until the gang fits; then spare everyone that can be spared, dearest first."""
    domains, best = trial.domains(), None
    for domain in np.unique(domains).tolist():
        inside = [job for job in jobs if any(domains[host_index] == domain for host_index in trial.of(job))]
        if not trial.fits(inside):
            continue
        low, high = 0, len(inside)
        while low < high:  # the shortest beginning of the list that is enough
            middle = (low + high) // 2
            low, high = (low, middle) if trial.fits(inside[:middle]) else (middle + 1, high)
        victims = inside[:low]
        for job in reversed(inside[:low]):
            without = [other for other in victims if other is not job]
            if trial.fits(without):
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
    """Who may be stopped for a job of ``priority``: preemptible jobs that had their guaranteed run time.

    Without ``excess``: those of lower priority. With it, only those that are borrowed: ``excess`` is the number of GPUs
    by which a namespace exceeds its guarantee. They are the newest jobs that fit into it, so that no guarantee is
    broken; and next one that is borrowed only in part: were it spared, its namespace could keep more than its own for
    ever. If the job is within its own guarantee it ``reclaims``: it may stop them whatever their priority, which counts
    as below all others; and those of lower priority that are not borrowed.
    Else whoever is within a guarantee is safe from it: it would be served first again, and nothing won. Not so in its
    own ``namespace``: there priority decides, whoever is borrowed.
    """
    left = dict(excess or {})
    newest = sorted(running, key=lambda job: (-job.started_at, job.job_id))
    old_enough = [job for job in newest if job.preemptible and now - job.started_at >= min_run_s]
    borrowed, rest = [], []
    for job in old_enough:
        if not job.gpu_uuids:
            rest.append(job)  # guarantees are of GPUs: without any, nothing is borrowed
        elif len(job.gpu_uuids) <= left.get(job.namespace, 0):
            left[job.namespace] -= len(job.gpu_uuids)
            borrowed.append((job, _BORROWED))
        else:
            rest.append(job)
    owned = []
    for job in rest:
        if job.gpu_uuids and left.get(job.namespace, 0) > 0:
            left[job.namespace] -= len(job.gpu_uuids)
            borrowed.append((job, _BORROWED_IN_PART))
        else:
            owned.append(job)
    if reclaims:
        found = [replace(job, priority=min(job.priority, rank)) for job, rank in borrowed]
    else:
        found = [job for job, _ in borrowed if job.priority < priority]
    return found + [
        job for job in owned if job.priority < priority and (reclaims or excess is None or job.namespace == namespace)
    ]
