"""Which sets of jobs could be moved, cheapest first: an exact model for OR-tools' CP-SAT.

Deterministic: one worker, a fixed seed, and limits in the solver's own deterministic time. OR-tools is imported
only when something is solved: it costs a scheduler that never moves anything neither time nor memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

DETERMINISTIC_LIMIT = 0.5
"""The limit for all solutions together, in the solver's own unit. It is about the same as seconds."""


@dataclass
class SolverTime:
    """How long the solver may still work, in its own unit. So an answer does not depend on the machine's speed."""

    left: float = DETERMINISTIC_LIMIT


@dataclass(frozen=True)
class MoveSet:
    """A set of jobs to move, by their numbers in the model."""

    jobs: tuple[int, ...]
    is_optimal: bool
    """True: no cheaper set solves the model. False: the solver's time was up."""


@dataclass(frozen=True)
class HostModel:
    """One host as the solver sees it."""

    free: int
    """GPUs that no job has."""
    freed: dict[int, int]
    """Job -> GPUs that it would leave on this host."""


@dataclass(frozen=True)
class JobModel:
    """One job as the solver sees it."""

    cost: float
    """GPU-seconds, rounded to whole seconds."""
    hosts: int
    """How many hosts it needs elsewhere. 0: only its GPUs are counted."""
    gpus_per_host: int
    able: list[int]
    """The hosts that could serve it if they were empty."""


@dataclass(frozen=True)
class MoveModel:
    """The whole problem: hosts, movable jobs, and the gang that waits."""

    hosts: list[HostModel]
    jobs: list[JobModel]
    minimal_sets: dict[int, list[tuple[int, ...]]] | None
    """Host -> the smallest sets of jobs that must leave so that it can take a slice of the gang. None: the gang has
    no equal slices."""
    domains: list[int]
    """The domain of each host. All hosts of the gang must be in one domain."""
    gang_hosts: int
    gang_gpus_per_host: int
    max_moves: int
    max_cost: float


def load_solver() -> None:
    """Import OR-tools now: it takes some tenths of a second."""
    from ortools.sat.python import cp_model

    assert cp_model


def cheapest_sets(model: MoveModel, tries: int, time: SolverTime | None = None) -> Iterator[MoveSet]:
    """Yield sets of jobs that could be enough, fewest jobs first, then cheapest; at most ``tries`` sets.

    ``time`` is used up; by default it is DETERMINISTIC_LIMIT. To ask for the next set means that the last one was not
    enough in reality.
    """
    if too_few_hosts(model):
        return
    from ortools.sat.python import cp_model

    problem = cp_model.CpModel()
    moved = [problem.new_bool_var("") for _ in model.jobs]
    costs = [round(job.cost) for job in model.jobs]
    problem.add(sum(moved) >= 1)
    problem.add(sum(moved) <= model.max_moves)
    problem.add(cp_model.LinearExpr.weighted_sum(moved, costs) <= round(model.max_cost))
    taken = _gang(problem, model, moved)
    _elsewhere(problem, model, moved, taken)
    dearest = sum(costs) + 1
    problem.minimize(cp_model.LinearExpr.weighted_sum(moved, [dearest + cost for cost in costs]))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    time = SolverTime() if time is None else time
    for _ in range(tries):
        solver.parameters.max_deterministic_time = time.left
        status = solver.solve(problem)
        time.left -= solver.response_proto.deterministic_time
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return
        chosen = tuple(number for number, variable in enumerate(moved) if solver.value(variable))
        yield MoveSet(chosen, status == cp_model.OPTIMAL)
        if time.left <= 0:
            return
        problem.add_bool_or([variable.negated() if n in chosen else variable for n, variable in enumerate(moved)])


def too_few_hosts(model: MoveModel) -> bool:
    """Tell whether counting hosts shows that no set of jobs is enough, whatever it costs.

    Slices of more than half of the GPUs of the largest host need a host each, and so do those of moved jobs that are as
    large. The solver would have to try all ways to put them on hosts before it knew, and its time would be up.
    """
    gpus, needed = model.gang_gpus_per_host, model.gang_hosts
    after_all = [host.free + sum(host.freed.values()) for host in model.hosts]
    if model.minimal_sets is None or 2 * gpus <= max(after_all, default=0):
        return False
    ready = sum(host.free >= gpus for host in model.hosts)
    more = [-job.hosts if job.gpus_per_host >= gpus else 0 for job in model.jobs]
    for host, most in zip(model.hosts, after_all, strict=True):
        if host.free < gpus <= most:
            for job in host.freed:
                more[job] += 1
    best = sorted(more, reverse=True)[: model.max_moves]
    # At least one job is moved, even if that helps nobody.
    return needed > ready + best[0] + sum(max(one, 0) for one in best[1:]) if best else True


def _gang(problem: cp_model.CpModel, model: MoveModel, moved: list[Any]) -> dict[int, Any]:
    """Return host -> the variable that says whether the gang gets a slice there."""
    if model.minimal_sets is None:
        return {}
    taken: dict[int, Any] = {}
    for host, minimal_sets in model.minimal_sets.items():
        taken[host] = problem.new_bool_var("")
        if () in minimal_sets:
            continue
        choices = []
        for some in minimal_sets:
            choice = problem.new_bool_var("")
            for job in some:
                problem.add_implication(choice, moved[job])
            choices.append(choice)
        problem.add_bool_or([*choices, taken[host].negated()])
    inside: dict[int, Any] = {}
    for domain in sorted({model.domains[host] for host in taken}):
        inside[domain] = problem.new_bool_var("")
    if not inside:
        problem.add_bool_or([])  # no host could ever take a slice
        return taken
    problem.add_exactly_one(inside.values())
    for host, variable in taken.items():
        problem.add_implication(variable, inside[model.domains[host]])
    problem.add(sum(taken.values()) == model.gang_hosts)
    return taken


def _elsewhere(problem: cp_model.CpModel, model: MoveModel, moved: list[Any], taken: dict[int, Any]) -> None:
    """Demand that every moved job gets as many hosts as it needs, and that no host gives more GPUs than it has then."""
    uses: list[list[Any]] = [[] for _ in model.hosts]
    for job, variable in zip(model.jobs, moved, strict=True):
        if not job.hosts:
            continue
        there = []
        for host in job.able:
            here = problem.new_bool_var("")
            there.append(here)
            uses[host].append(job.gpus_per_host * here)
        problem.add(sum(there) == job.hosts * variable)
    for number, host in enumerate(model.hosts):
        if number in taken:
            uses[number].append(model.gang_gpus_per_host * taken[number])
        if uses[number]:
            freed = sum(gpus * moved[job] for job, gpus in host.freed.items())
            problem.add(sum(uses[number]) <= host.free + freed)
