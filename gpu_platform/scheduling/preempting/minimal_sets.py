"""Which jobs must leave a host so that it can take a slice of a gang: for each host the smallest sets of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from gpu_platform.scheduling.cluster.snapshot import Snapshot
from gpu_platform.scheduling.preempting.steps import Steps
from gpu_platform.scheduling.preempting.victim_trials import SliceVictimTrial

MAX_SUBSETS_OF = 8
"""If a host has at most this many jobs, every subset of them is looked at."""

JobSets = list[tuple[int, ...]]
"""Sets of jobs, by their numbers. An empty set: nobody must leave."""


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
