"""The smallest set of running jobs to move so that a waiting gang fits, and so that each moved job has a new place.

Smallest means: fewest jobs, then least work lost since their last checkpoints. A set counts only if the gang, with
the topology that it requires, and every moved job have a place at the same time. That is tried in a statement. A
solver says which sets to try, and in what order (:mod:`move_solver`). Its model does not know how GPUs are connected.
So a set that it finds may fail, but no possible set is missing. A set that failed is forbidden, and the solver is
asked again. So the answer is the best one. If the model would be too large, it has only the hosts that are cheapest
to clear; then a smaller set may exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.backfilling.backfill import PlannedReservation, around
from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.placing.candidates import CandidateIndex
from gpu_platform.scheduling.placing.domains import domains_of
from gpu_platform.scheduling.placing.framework import Framework
from gpu_platform.scheduling.placing.gangs import GangPlacer
from gpu_platform.scheduling.policy import MoveBudget
from gpu_platform.scheduling.preempting.move_solver import HostModel, JobModel, MoveModel, SolverTime, cheapest_sets
from gpu_platform.scheduling.preempting.preemption import lost_work
from gpu_platform.scheduling.preempting.victim_trials import SliceVictimTrial

MAX_TRIES = 64
"""How many sets of jobs are tried before the gang goes on waiting."""
MAX_PAIRS = 4_000
"""Jobs times hosts. Up to this size the whole cluster goes into the model, which takes about a second."""
MAX_TARGETS = 40
"""In a larger cluster, how many hosts may take moved jobs: those with the most free GPUs."""
MAX_SUBSETS_OF = 8
"""If a host has at most this many jobs, every subset of them is looked at."""


Gain = Callable[[PlacementRequest], float]
"""Returns the GPU-seconds of waiting that a waiting job would save if it started now."""


@dataclass(frozen=True)
class MovePlan:
    """The gang gets ``placement`` once ``jobs`` are moved."""

    jobs: tuple[RunningRow, ...]
    lost_gpu_s: float
    placement: Placement
    new_places: dict[str, Placement]
    """Where the moved jobs go, by job."""
    is_smallest: bool
    """False: there may be a smaller set, because not all hosts were looked at or the solver's time was up."""

    def pays(self, gain_gpu_s: float, restart_s: float) -> bool:
        """Tell whether the moves save more than they cost: lost work, and ``restart_s`` for each moved GPU."""
        return gain_gpu_s > self.lost_gpu_s + restart_s * sum(len(job.gpu_uuids) for job in self.jobs)


@dataclass(frozen=True)
class _MoveProblem:
    jobs: Sequence[RunningRow]
    """The jobs that may be moved."""
    targets: Sequence[int]
    """Host indices of the hosts to which they may go."""


class MovePlanner:
    """Finds the smallest set of jobs to move for a gang."""

    def __init__(
        self, snapshot: Snapshot, framework: Framework, candidates: CandidateIndex, placer: GangPlacer
    ) -> None:
        self._snapshot, self._framework = snapshot, framework
        self._candidates, self._placer = candidates, placer
        self._promised: Sequence[PlannedReservation] = ()

    def avoid(self, promised: Sequence[PlannedReservation]) -> None:
        """Set what the next plans must leave alone, besides the own promise of a job."""
        self._promised = promised

    def smallest_plan(
        self,
        row: PlacementRequest,
        movable: Iterable[RunningRow],
        budget: MoveBudget,
        now: float,
        attempt: Statement,
        time: SolverTime | None = None,
    ) -> MovePlan | None:
        """Return which of ``movable`` to move for ``row``. None: no set within the budget is enough. ``attempt`` is
        left as it was. ``time`` is used up; by default the solver's own limit counts.
        """
        jobs = sorted(
            (job for job in movable if _can_move(job) and lost_work(job, now) <= budget.lost_gpu_s),
            key=lambda job: (lost_work(job, now), job.job_id),
        )
        if not jobs or (not row.needs_partial_resources and self._free() < row.gpu_count):
            return None  # moved jobs need as many GPUs elsewhere as they free
        whole = _MoveProblem(jobs, range(len(self._snapshot)))
        exact = len(whole.jobs) * len(whole.targets) <= MAX_PAIRS
        problem = whole if exact else self._cheapest_part(row, jobs, now)
        if problem is None:
            return None
        model = self._model(self._unpromised(row), problem, budget, now)
        for candidate in cheapest_sets(model, MAX_TRIES, time):
            chosen = [problem.jobs[number] for number in candidate.jobs]
            places = self.try_moving(row, chosen, attempt)
            if places is not None:
                lost = sum(lost_work(job, now) for job in chosen)
                return MovePlan(tuple(chosen), lost, *places, is_smallest=exact and candidate.is_optimal)
        return None

    def try_moving(
        self, row: PlacementRequest, jobs: Sequence[RunningRow], attempt: Statement, keep: bool = False
    ) -> tuple[Placement, dict[str, Placement]] | None:
        """Return the gang's placement and those of ``jobs``, if they are moved and all of them find another place, or
        None.

        ``keep``: what was found stays held in ``attempt``.
        """
        before = attempt.checkpoint()
        for job in jobs:
            attempt.end(job)
        placement = self._placer.place_in(self._unpromised(row), attempt)
        new_places: dict[str, Placement] = {}
        for job in sorted(jobs, key=lambda job: (-len(job.gpu_uuids), job.job_id)) if placement is not None else ():
            found = self._placer.place_in(self._unpromised(job.requeued()), attempt)
            if found is None:
                break
            new_places[job.job_id] = found
        if placement is None or len(new_places) < len(jobs):
            attempt.rollback(before)
            return None
        if not keep:
            attempt.rollback(before)
        return placement, new_places

    def _unpromised(self, row: PlacementRequest) -> PlacementRequest:
        """Return the request without the places that other jobs were promised."""
        return around(row, (one for one in self._promised if one.job_id != row.job_id), self._snapshot)

    # -- which sets to try -----------------------------------------------------------------------

    def _model(self, row: PlacementRequest, problem: _MoveProblem, budget: MoveBudget, now: float) -> MoveModel:
        snapshot, jobs, targets = self._snapshot, problem.jobs, set(problem.targets)
        held = [self._held(job) for job in jobs]
        free = np.bitwise_count(snapshot.available() & snapshot.working) * snapshot.ready
        jobs_on = _jobs_by_host(held)
        hosts = [
            HostModel(
                free=int(free[host_index]),
                freed={n: held[n][host_index].bit_count() for n in jobs_on.get(host_index, ())},
            )
            for host_index in range(len(snapshot))
        ]
        minimal_sets: dict[int, list[tuple[int, ...]]] | None = None
        domains = [0] * len(snapshot)
        if row.is_plain and not row.needs_partial_resources:
            minimal_sets = self._minimal_sets(row, jobs, held)
            domains = domains_of(row.resources, snapshot, np.arange(len(snapshot))).tolist()
        return MoveModel(
            hosts=hosts,
            jobs=[self._job(job, targets, now) for job in jobs],
            minimal_sets=minimal_sets,
            domains=domains,
            gang_hosts=row.resources.hosts,
            gang_gpus_per_host=row.resources.gpus_per_host,
            max_moves=budget.jobs,
            max_cost=budget.lost_gpu_s,
        )

    def _job(self, job: RunningRow, targets: set[int], now: float) -> JobModel:
        row, lost = job.requeued(), lost_work(job, now)
        if not row.is_plain:
            return JobModel(lost, 0, 0, [])
        able = np.flatnonzero(self._candidates.of(row).after_use).tolist()
        return JobModel(
            lost,
            row.resources.hosts,
            row.resources.gpus_per_host,
            [host_index for host_index in able if host_index in targets],
        )

    def _minimal_sets(
        self, row: PlacementRequest, jobs: Sequence[RunningRow], held: Sequence[dict[int, int]]
    ) -> dict[int, list[tuple[int, ...]]]:
        """Return host index -> the smallest sets of jobs that must leave so that the host can take a slice. (): none
        must."""
        trial = SliceVictimTrial(row, self._snapshot, self._framework, ())
        minimal_sets: dict[int, list[tuple[int, ...]]] = {}
        jobs_on = _jobs_by_host(held)
        for host_index in range(len(self._snapshot)):
            there = jobs_on.get(host_index, [])
            found: list[tuple[int, ...]] = []
            sizes = range(len(there) + 1) if len(there) <= MAX_SUBSETS_OF else (0, 1, 2, 3, len(there))
            for size in sizes:
                for some in combinations(there, size):
                    if any(set(less) <= set(some) for less in found):
                        continue
                    freed = 0
                    for number in some:
                        freed |= held[number][host_index]
                    if trial.offers(host_index, freed):
                        found.append(some)
            if found:
                minimal_sets[host_index] = found
        return minimal_sets

    def _cheapest_part(self, row: PlacementRequest, jobs: Sequence[RunningRow], now: float) -> _MoveProblem | None:
        """In a large cluster, choose the hosts that are cheapest to clear, and those with most space for the moved
        jobs.
        """
        if not row.is_plain or row.needs_partial_resources:
            return None
        held = [self._held(job) for job in jobs]

        def cost(some: Sequence[int]) -> tuple[int, float]:
            return len(some), sum(lost_work(jobs[number], now) for number in some)

        minimal_sets = self._minimal_sets(row, jobs, held)
        order = sorted(minimal_sets, key=lambda host_index: (min(map(cost, minimal_sets[host_index])), host_index))
        free = np.bitwise_count(self._snapshot.available() & self._snapshot.working)
        roomy = np.lexsort((self._snapshot.by_name, -(free * self._snapshot.ready).astype(np.int64)))[:MAX_TARGETS]
        targets = set(roomy.tolist())
        chosen: dict[int, None] = {}
        jobs_on = _jobs_by_host(held)
        for host_index in order:
            there = jobs_on.get(host_index, [])
            if (len(chosen) + len(there)) * (len(targets) + 1) > MAX_PAIRS:
                break
            targets.add(host_index)
            chosen |= dict.fromkeys(there)
        return _MoveProblem([jobs[number] for number in sorted(chosen)], sorted(targets)) if chosen else None

    def _held(self, job: RunningRow) -> dict[int, int]:
        """Return host index -> working GPUs that the job has there."""
        found: dict[int, int] = {}
        for uuid in job.gpu_uuids:
            place = self._snapshot.locate(uuid)
            if (
                place is not None
                and self._snapshot.ready[place[0]]
                and int(self._snapshot.working[place[0]]) >> place[1] & 1
            ):
                found[place[0]] = found.get(place[0], 0) | 1 << place[1]
        return found

    def _free(self) -> int:
        snapshot = self._snapshot
        free: NDArray[np.uint64] = snapshot.available() & snapshot.working
        return int((np.bitwise_count(free) * snapshot.ready).sum())


def _can_move(job: RunningRow) -> bool:
    """Tell whether moving the job frees whole GPUs.

    A job with shares of GPUs is not moved: the GPU would stay shared by others. Nor is a job without GPUs.
    """
    return job.resources is not None and not job.shares and bool(job.gpu_uuids)


def _jobs_by_host(held: Sequence[dict[int, int]]) -> dict[int, list[int]]:
    """Return host index -> the numbers of the jobs that have GPUs there, ascending."""
    jobs_on: dict[int, list[int]] = {}
    for number, gpus in enumerate(held):
        for host_index in gpus:
            jobs_on.setdefault(host_index, []).append(number)
    return jobs_on
