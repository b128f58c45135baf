"""The smallest set of running jobs to move so that a waiting gang fits, and so that each moved job has a new place.

Smallest means: fewest jobs, then least work lost since their last checkpoints. A set counts only if the gang, with
the topology that it requires, and every moved job have a place at the same time. That is tried in a statement. A
solver says which sets to try, and in what order (:mod:`move_solver`). Its model does not know how GPUs are connected.
So a set that it finds may fail, but no possible set is missing. A set that failed is forbidden, and the solver is
asked again. So the answer is the best one. If the model would be too large, it has only the hosts that are cheapest
to clear; then a smaller set may exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
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
from gpu_platform.scheduling.preempting.steps import Steps, computed
from gpu_platform.scheduling.preempting.victim_trials import SliceVictimTrial

MAX_TRIES = 64
"""How many sets of jobs are tried before the gang goes on waiting."""
MAX_PAIRS = 4_000
"""Jobs times hosts. Up to this size the whole cluster goes into the model, which takes about a second."""
MAX_TARGETS = 40
"""In a larger cluster, how many hosts may take moved jobs: those with the most free GPUs."""


Gain = Callable[[PlacementRequest], float]
"""Returns the GPU-seconds of waiting that a waiting job would save if it started now."""
MAX_SUBSETS_OF = 8
"""If a host has at most this many jobs, every subset of them is looked at."""
JobSets = list[tuple[int, ...]]
"""Sets of jobs, by their numbers. An empty set: nobody must leave."""


@dataclass(frozen=True)
class MovePlan:
    """The gang ``request`` gets ``placement`` once ``jobs`` are moved."""

    request: PlacementRequest
    jobs: tuple[RunningRow, ...]
    """Empty: it needs no moves."""
    lost_gpu_s: float
    placement: Placement
    new_places: dict[str, Placement]
    """Where the moved jobs go, by job."""
    is_smallest: bool = True
    """False: there may be a smaller set, because not all hosts were looked at or the solver's time was up."""

    def pays(self, gain_gpu_s: float, restart_s: float) -> bool:
        """Tell whether the moves save more than they cost: lost work, and ``restart_s`` for each moved GPU."""
        return gain_gpu_s > self.lost_gpu_s + restart_s * sum(len(job.gpu_uuids) for job in self.jobs)


@dataclass(frozen=True)
class _MoveProblem:
    """What one search knows of the cluster. The cluster may have changed since, so what follows from it is tried."""

    request: PlacementRequest
    jobs: Sequence[RunningRow]
    """The jobs that may be moved."""
    costs: Sequence[float]
    """The work that each of them would lose."""
    held: Sequence[dict[int, int]]
    """For each of them, host index -> the working GPUs that it has there."""
    free: NDArray[np.integer]
    """For each host, how many GPUs nobody has."""
    minimal_sets: dict[int, JobSets] | None
    """See :func:`minimal_sets`. None: the gang has no equal slices."""
    targets: NDArray[np.bool_]
    """The hosts to which the jobs may go."""

    def with_only(self, chosen: Iterable[int], targets: NDArray[np.bool_]) -> _MoveProblem:
        """Return the problem in which only the jobs with these numbers may be moved, and only to ``targets``."""
        numbers = sorted(chosen)
        new = {number: place for place, number in enumerate(numbers)}
        sets = {
            host_index: [tuple(new[number] for number in some) for some in sets if new.keys() >= set(some)]
            for host_index, sets in (self.minimal_sets or {}).items()
        }
        return replace(
            self,
            jobs=[self.jobs[number] for number in numbers],
            costs=[self.costs[number] for number in numbers],
            held=[self.held[number] for number in numbers],
            minimal_sets={host_index: some for host_index, some in sets.items() if some},
            targets=targets,
        )


class MovePlanner:
    """Finds the smallest set of jobs to move for a gang. ``aside``: where the solver works. None: it is waited for."""

    def __init__(
        self,
        snapshot: Snapshot,
        framework: Framework,
        candidates: CandidateIndex,
        placer: GangPlacer,
        aside: Executor | None = None,
    ) -> None:
        self._snapshot, self._framework = snapshot, framework
        self._candidates, self._placer, self._aside = candidates, placer, aside
        self._promised: Sequence[PlannedReservation] = ()

    def avoid(self, promised: Sequence[PlannedReservation]) -> None:
        """Set what the next plans must leave alone, besides the own promise of a job."""
        self._promised = promised

    def smallest_plan(
        self,
        request: PlacementRequest,
        movable: Iterable[RunningRow],
        budget: MoveBudget,
        now: float,
        time: SolverTime | None = None,
        earlier: Sequence[MovePlan] = (),
    ) -> Steps[MovePlan | None]:
        """Search for the jobs out of ``movable`` to move for ``request``. None: no set within the budget is enough.

        ``earlier`` plans count as carried out. ``time`` is used up; by default the solver's own limit counts. If the
        cluster changes between the steps, the answer may be out of date.
        """
        problem = yield from self._problem(request, movable, budget, now, earlier)
        if problem is None:
            return None
        exact = len(problem.jobs) * len(problem.targets) <= MAX_PAIRS
        if not exact:
            problem = self._cheapest_part(problem)
            yield len(problem.targets)
        if not problem.jobs:
            return None
        model = yield from self._model(problem, budget)
        sets = cheapest_sets(model, MAX_TRIES, time)
        while (candidate := (yield from computed(partial(next, sets, None), self._aside))) is not None:
            chosen = tuple(problem.jobs[number] for number in candidate.jobs)
            places = yield from self._try_after(earlier, request, chosen)
            if places is not None:
                lost = sum(problem.costs[number] for number in candidate.jobs)
                return MovePlan(request, chosen, lost, *places, is_smallest=exact and candidate.is_optimal)
        return None

    def without_moves(self, request: PlacementRequest, earlier: Sequence[MovePlan]) -> Steps[MovePlan | None]:
        """Search for a place that the gang has without moves, once the ``earlier`` plans are carried out."""
        places = yield from self._try_after(earlier, request, ())
        return None if places is None else MovePlan(request, (), 0.0, *places)

    def _try_after(
        self, earlier: Sequence[MovePlan], request: PlacementRequest, jobs: Sequence[RunningRow]
    ) -> Steps[tuple[Placement, dict[str, Placement]] | None]:
        # To ask all hosts takes longest, and what they answered is remembered. So the trial itself is short.
        for one in (request, *(job.requeued() for job in jobs)):
            for group in one.rank_groups():
                self._candidates.of(self._unpromised(group))
                yield len(self._snapshot)
        with self._after(earlier) as attempt:
            places = self.try_moving(request, jobs, attempt)
        yield len(self._snapshot) * (1 + len(jobs)) // 4
        return places

    @contextmanager
    def _after(self, plans: Iterable[MovePlan]) -> Iterator[Statement]:
        """Open a statement in which ``plans`` are carried out."""
        with Statement(self._snapshot) as attempt:
            for plan in plans:
                self.carry_out(plan, attempt)
            yield attempt

    def carry_out(self, plan: MovePlan, attempt: Statement) -> None:
        """Let the jobs of the plan leave, and hold all its places, whether they are free or not."""
        for job in plan.jobs:
            attempt.end(job)
        for job in plan.jobs:
            _hold(plan.new_places[job.job_id], job.namespace, attempt)
        _hold(plan.placement, plan.request.namespace, attempt)

    def try_moving(
        self, request: PlacementRequest, jobs: Sequence[RunningRow], attempt: Statement, keep: bool = False
    ) -> tuple[Placement, dict[str, Placement]] | None:
        """Return the gang's placement and those of ``jobs``, if they are moved and all of them find another place, or
        None.

        ``keep``: what was found stays held in ``attempt``.
        """
        before = attempt.checkpoint()
        for job in jobs:
            attempt.end(job)
        placement = self._placer.place_in(self._unpromised(request), attempt)
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

    def _unpromised(self, request: PlacementRequest) -> PlacementRequest:
        """Return the request without the places that other jobs were promised."""
        return around(request, (one for one in self._promised if one.job_id != request.job_id), self._snapshot)

    # -- which sets to try -----------------------------------------------------------------------

    def _problem(
        self,
        request: PlacementRequest,
        movable: Iterable[RunningRow],
        budget: MoveBudget,
        now: float,
        earlier: Sequence[MovePlan],
    ) -> Steps[_MoveProblem | None]:
        """Look at the cluster. None: it is certain that no set is enough."""
        lost = [(lost_work(job, now), job) for job in movable if _can_move(job)]
        able = sorted((one for one in lost if one[0] <= budget.lost_gpu_s), key=lambda one: (one[0], one[1].job_id))
        costs, jobs = [cost for cost, _ in able], [job for _, job in able]
        snapshot, equal_slices = self._snapshot, request.is_plain and not request.needs_partial_resources
        if not jobs or not (equal_slices or len(jobs) * len(snapshot) <= MAX_PAIRS):
            return None
        with self._after(earlier):
            free = np.bitwise_count(snapshot.available() & snapshot.working) * snapshot.ready
            if not request.needs_partial_resources and int(free.sum()) < request.gpu_count:
                return None  # moved jobs need as many GPUs elsewhere as they free
            trial = SliceVictimTrial(self._unpromised(request), snapshot, self._framework, ()) if equal_slices else None
        yield len(jobs) + len(free)
        held: list[dict[int, int]] = []
        for job in jobs:
            held.append(self._held(job))
            yield 1
        sets = None if trial is None else (yield from minimal_sets(trial, snapshot, held))
        return _MoveProblem(request, jobs, costs, held, free, sets, np.ones(len(free), bool))

    def _cheapest_part(self, problem: _MoveProblem) -> _MoveProblem:
        """In a large cluster, choose the hosts that are cheapest to clear, and those with most space for the moved
        jobs.
        """
        costs, sets_of = problem.costs, problem.minimal_sets or {}
        cheapest = {
            host_index: min((len(some), sum(costs[number] for number in some)) for some in sets)
            for host_index, sets in sets_of.items()
        }
        hosts = len(problem.free)
        roomy = np.lexsort((self._snapshot.by_name[:hosts], -problem.free.astype(np.int64)))[:MAX_TARGETS]
        targets = np.zeros(hosts, bool)
        targets[roomy] = True
        chosen: dict[int, None] = {}
        jobs_on = jobs_by_host(problem.held)
        for host_index in sorted(cheapest, key=lambda host_index: (cheapest[host_index], host_index)):
            there = jobs_on.get(host_index, [])
            if (len(chosen) + len(there)) * (int(targets.sum()) + 1) > MAX_PAIRS:
                break
            targets[host_index] = True
            chosen |= dict.fromkeys(there)
        return problem.with_only(chosen, targets)

    def _model(self, problem: _MoveProblem, budget: MoveBudget) -> Steps[MoveModel]:
        resources, hosts, jobs_on = problem.request.resources, range(len(problem.free)), jobs_by_host(problem.held)
        jobs: list[JobModel] = []
        for job, cost in zip(problem.jobs, problem.costs, strict=True):
            jobs.append(self._job(job, cost, problem.targets))
            yield max(len(hosts) // 4, 1)
        domains = [0] * len(hosts)
        if problem.minimal_sets is not None:
            domains = domains_of(resources, self._snapshot, np.arange(len(hosts))).tolist()
        return MoveModel(
            hosts=[
                HostModel(int(free), {job: problem.held[job][host].bit_count() for job in jobs_on.get(host, ())})
                for host, free in zip(hosts, problem.free.tolist(), strict=True)
            ],
            jobs=jobs,
            minimal_sets=problem.minimal_sets,
            domains=domains,
            gang_hosts=resources.hosts,
            gang_gpus_per_host=resources.gpus_per_host,
            max_moves=budget.jobs,
            max_cost=budget.lost_gpu_s,
        )

    def _job(self, job: RunningRow, cost: float, targets: NDArray[np.bool_]) -> JobModel:
        request = job.requeued()
        if not request.is_plain:
            return JobModel(cost, 0, 0, [])
        able = self._candidates.able(request)[: len(targets)] & targets
        return JobModel(cost, request.resources.hosts, request.resources.gpus_per_host, np.flatnonzero(able).tolist())

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


def _can_move(job: RunningRow) -> bool:
    """Tell whether moving the job frees whole GPUs.

    A job with shares of GPUs is not moved: the GPU would stay shared by others. Nor is a job without GPUs.
    """
    return job.resources is not None and not job.shares and bool(job.gpu_uuids)


def _hold(placement: Placement, namespace: str, attempt: Statement) -> None:
    for host_slice in placement.slices:
        attempt.hold(host_slice, namespace)


def minimal_sets(
    trial: SliceVictimTrial, snapshot: Snapshot, held: Sequence[dict[int, int]]
) -> Steps[dict[int, JobSets]]:
    """Return host index -> the smallest sets of jobs that must leave. Hosts that could never take a slice are left out.

    ``held``: for each job, host index -> the GPUs that it has there. A step is a host. Hosts of the same kind that are
    used in the same way have the same answer.
    """
    answers: dict[tuple[int, int, tuple[int, ...]], JobSets] = {}
    found: dict[int, JobSets] = {}
    jobs_on = jobs_by_host(held)
    for host_index, free in enumerate(trial.free):
        there = sorted(jobs_on.get(host_index, ()), key=lambda number: held[number][host_index])
        gpus = tuple(held[number][host_index] for number in there)
        alike = int(snapshot.machine[host_index]), free, gpus
        if alike not in answers:
            answers[alike] = _enough(trial, host_index, gpus)
            yield 1 << min(len(gpus), MAX_SUBSETS_OF)
        else:
            yield 1
        if answers[alike]:
            found[host_index] = [tuple(sorted(there[place] for place in some)) for some in answers[alike]]
    return found


def jobs_by_host(held: Sequence[dict[int, int]]) -> dict[int, list[int]]:
    """Return host index -> the numbers of the jobs that have GPUs there, ascending."""
    jobs_on: dict[int, list[int]] = {}
    for number, gpus in enumerate(held):
        for host_index in gpus:
            jobs_on.setdefault(host_index, []).append(number)
    return jobs_on


def _enough(trial: SliceVictimTrial, host_index: int, gpus: Sequence[int]) -> JobSets:
    """Return the smallest sets of jobs without which the host could take a slice. ``gpus``: what each of them has."""
    found: JobSets = []
    places = range(len(gpus))
    for size in range(len(gpus) + 1) if len(gpus) <= MAX_SUBSETS_OF else (0, 1, 2, 3, len(gpus)):
        for some in combinations(places, size):
            if any(set(less) <= set(some) for less in found):
                continue
            freed = 0
            for place in some:
                freed |= gpus[place]
            if trial.offers(host_index, freed):
                found.append(some)
    return found
