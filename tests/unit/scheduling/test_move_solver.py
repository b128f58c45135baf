"""What counting shows is not left to the solver, whose time would be up before it knew."""

from __future__ import annotations

import random

import pytest

from gpu_platform.scheduling.preempting import move_solver
from gpu_platform.scheduling.preempting.move_solver import (
    HostModel,
    JobModel,
    MoveModel,
    SolverTime,
    cheapest_sets,
    too_few_hosts,
)


def model(rng: random.Random, hosts: int, gang_hosts: int, gang_gpus: int, largest: int = 8) -> MoveModel:
    """A cluster in which every host has free GPUs and perhaps a job, or a part of one."""
    jobs = [(rng.choice((1, 2, 4, largest)), rng.randint(1, 2)) for _ in range(rng.randint(1, 4))]
    free, freed = [rng.randint(0, largest) for _ in range(hosts)], [dict[int, int]() for _ in range(hosts)]
    for number, (gpus, count) in enumerate(jobs):
        for host in rng.sample(range(hosts), count):
            if sum(freed[host].values()) + gpus <= largest:
                freed[host][number] = gpus
                free[host] = min(free[host], largest - sum(freed[host].values()))
    sets = {
        host: [()] if free[host] >= gang_gpus else [tuple(freed[host])]
        for host in range(hosts)
        if free[host] + sum(freed[host].values()) >= gang_gpus
    }
    return MoveModel(
        hosts=[HostModel(*one) for one in zip(free, freed, strict=True)],
        jobs=[JobModel(rng.randint(0, 100), count, gpus, list(range(hosts))) for gpus, count in jobs],
        minimal_sets=sets,
        domains=[0] * hosts,
        gang_hosts=gang_hosts,
        gang_gpus_per_host=gang_gpus,
        max_moves=rng.randint(1, 3),
        max_cost=1000.0,
    )


def test_a_gang_for_which_too_few_hosts_could_be_whole_costs_the_solver_nothing() -> None:
    """525 GPUs are free, but on 60 whole hosts and 45 single ones; moving the only job frees 23 hosts and takes 23."""
    hosts = [HostModel(8, {})] * 60 + [HostModel(1, {})] * 45 + [HostModel(0, {0: 8})] * 23
    sets = {host: [()] for host in range(60)} | {host: [(0,)] for host in range(105, 128)}
    job = JobModel(5.0, 23, 8, list(range(128)))
    time = SolverTime()
    assert not list(cheapest_sets(MoveModel(hosts, [job], sets, [0] * 128, 64, 8, 4, 1e6), 8, time))
    assert time == SolverTime(), "the solver was not asked"


def test_counting_never_rules_out_what_the_solver_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    models = [model(rng, rng.randint(2, 6), rng.randint(1, 5), rng.choice((1, 4, 5, 8))) for _ in range(300)]
    ruled_out = [one for one in models if too_few_hosts(one)]
    monkeypatch.setattr(move_solver, "too_few_hosts", lambda _: False)
    assert 30 < len(ruled_out) < 270
    assert not any(list(cheapest_sets(one, 1)) for one in ruled_out)
    assert any(list(cheapest_sets(one, 1)) for one in models if one not in ruled_out)
