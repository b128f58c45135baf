"""The mix of tasks is learned from the jobs that come, and packs by what it learned."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.scheduling.plugins.expected_tasks import HALF_LIFE_S, ExpectedTasks
from gpu_platform.scheduling.plugins.stranding import TypicalTask
from gpu_platform.scheduling.policy import WEIGHTS, Policy, expected_tasks
from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job

PACKS = Policy(weights=WEIGHTS["fragmentation"])
CONNECTS = Policy(weights=WEIGHTS["tightest_fit"])
CPUS_DECIDE = {**PACKS.weights, "bandwidth": 0.0}
ONE, FOUR = ResourceRequest(gpus_per_host=1), ResourceRequest(gpus_per_host=4)


def most_frequent(mix: ExpectedTasks) -> TypicalTask:
    return replace(mix.tasks[0], weight=1.0)


def test_without_history_the_prior_is_the_mix() -> None:
    mix = ExpectedTasks([TypicalTask(1)])
    mix.note([FOUR] * 15, 0.0)
    assert not mix.renew(), "the first few jobs do not decide"
    assert mix.tasks == (TypicalTask(1),)


def test_what_comes_often_outweighs_the_prior() -> None:
    mix = ExpectedTasks([TypicalTask(1)])
    mix.note([FOUR] * 33, 0.0)
    assert mix.renew()
    assert most_frequent(mix) == TypicalTask(4)
    assert not mix.renew(), "nothing came since"


def test_what_came_long_ago_counts_little() -> None:
    mix = ExpectedTasks([TypicalTask(8)])
    mix.note([FOUR] * 1_000, 0.0)
    assert mix.renew()
    mix.note([ONE] * 100, 10 * HALF_LIFE_S)
    assert mix.renew()
    assert most_frequent(mix) == TypicalTask(1)


def test_a_mix_that_is_known_well_is_renewed_seldom() -> None:
    mix, renewed = ExpectedTasks([TypicalTask(8)]), 0
    for second in range(10_000):
        mix.note([ONE], float(second))
        renewed += mix.renew()
    assert renewed == 10, "each time that the number of jobs has doubled"


def test_a_mix_that_the_policy_names_is_kept() -> None:
    named = (TypicalTask(2, cpus=3),)
    scheduler = cluster().hosts(1).scheduler(replace(PACKS, typical_tasks=named))
    tasks = scheduler._expected_tasks
    tasks.note([ONE] * 1_000, 0.0)
    assert not tasks.renew()
    assert tasks.tasks == named


def test_nothing_is_counted_when_the_score_does_not_matter() -> None:
    for policy, counted in ((Policy(), 1), (PACKS, 1), (CONNECTS, 0)):
        scheduler = cluster().hosts(1).scheduler(policy)
        scheduler.add(job().row)
        scheduler.decide(0.0)
        assert len(scheduler._expected_tasks) == counted


def test_a_job_that_is_dated_ahead_does_not_make_the_others_look_old() -> None:
    mix = ExpectedTasks([TypicalTask(8)])
    mix.note([FOUR] * 100, 0.0)
    mix.note([ONE], 100 * HALF_LIFE_S)
    assert mix.renew(now=0.0)
    assert {task.gpus: task.weight for task in mix.tasks} == {4: 100.0, 8: 32.0, 1: 1.0}


def test_the_prior_asks_for_the_cpus_that_most_gpus_have() -> None:
    machines = cluster().cpu_host("none").host("few", cpus=16).host("a", cpus=80).host("b", cpus=80)
    scheduler = machines.host("many", cpus=512).scheduler()
    scheduler.decide(0.0)
    asked = {(task.gpus, task.percent): task.cpus for task in scheduler._expected_tasks.tasks}
    assert asked == {(1, 100): 7, (1, 50): 3, (2, 100): 14, (4, 100): 28, (8, 100): 56}


def test_other_machines_do_not_make_the_first_few_jobs_decide() -> None:
    """A dry run sees the machines and the jobs at once, and the leader one after the other. Their mix is the same."""
    leader, dry_run = (cluster().hosts(2).scheduler() for _ in range(2))
    leader.decide(0.0)
    for scheduler in (leader, dry_run):
        scheduler.add(job(4).row)
        scheduler.decide(1.0)
    assert leader._expected_tasks.tasks == dry_run._expected_tasks.tasks


def test_the_mix_is_renewed_when_other_machines_come() -> None:
    """Named tasks, too: some need an A100, and there is only one host of them, which comes later and has many CPUs."""
    machines = cluster()
    for number in range(8):
        machines.host(f"h{number}", cpus=64)
    typical = (TypicalTask(1, cpus=12, weight=4.0), TypicalTask(1, cpus=4, model="A100"))
    scheduler = machines.scheduler(replace(PACKS, weights=CPUS_DECIDE, typical_tasks=typical))
    assert place(scheduler, job().on_host(cpus=30)) == "h0"
    machines.host("a", "dgx-a100-40gb", cpus=512).tell(scheduler)
    assert place(scheduler, job().on_host(cpus=30)).startswith("h")


def test_a_job_that_is_added_again_and_again_counts_once() -> None:
    scheduler = cluster().hosts(1).scheduler(PACKS)
    waits = job(9)
    for _ in range(40):
        scheduler.add(waits.row)
    assert not scheduler._expected_tasks.renew()


def test_remembered_answers_follow_the_mix() -> None:
    """Jobs with many CPUs came. So a job with many CPUs goes where GPUs have more of them than these jobs need."""
    scheduler, asked = (
        cluster().host("poor", cpus=64).host("rich", cpus=512).scheduler(PACKS),
        job().on_host(cpus=30).row,
    )
    assert scheduler.candidates.of(asked).offers.score.argmax() == 0, "nobody knows yet what comes"
    for _ in range(100):
        scheduler.add(waits := job(1).on_host(cpus=16).row)
        scheduler.remove(waits.job_id)
    scheduler.decide(1e12)
    assert scheduler.candidates.of(asked).offers.score.argmax() == 1


def test_a_new_leader_learns_from_what_runs_and_waits() -> None:
    before, waits = cluster().hosts(3).scheduler(PACKS), [job(4) for _ in range(40)]
    for one in waits:
        before.add(one.row)
    before.decide(0.0)
    scheduler = cluster().hosts(3).scheduler(PACKS)
    for running in before.running_jobs:
        scheduler.started(running)
        scheduler.started(running)
    for one in waits:
        if one.row.job_id in before.queue:
            scheduler.add(one.row)
    scheduler.decide(0.0)
    weights = {task.gpus: task.weight for task in scheduler._expected_tasks.tasks}
    # Those that run count from time 0, and the others from when they were made: a little more.
    assert weights[4] == pytest.approx(45, abs=2), "40, and the prior"


def test_jobs_that_take_any_gpu_leave_those_that_others_need() -> None:
    """Most jobs take an A100 only. So the others go to GPUs that nobody asks for."""
    machines = cluster().hosts(4, "dgx-a100-40gb").hosts(4)
    scheduler = machines.scheduler(replace(PACKS, weights=CPUS_DECIDE))
    assert "a100" in place(scheduler, job(1)), "the first of equals"
    for _ in range(40):
        scheduler.add(one := job().needs(model="A100").row)
        scheduler.remove(one.job_id)
    assert all("h100" in place(scheduler, job(8)) for _ in range(4))


def test_scarce_gpus_are_left_to_those_who_need_them_although_they_have_cpus_to_spare() -> None:
    """A fifth of all jobs take an A100 only, and there is one host of them. Others need more CPUs than H100 have."""
    machines = cluster().host("a", "dgx-a100-40gb", cpus=512)
    for number in range(8):
        machines.host(f"h{number}", cpus=64)
    scheduler = machines.scheduler(replace(PACKS, weights=CPUS_DECIDE))
    for number in range(100):
        wanted = job().needs(model="A100").on_host(cpus=4) if number % 5 == 0 else job().on_host(cpus=12)
        scheduler.add(wanted.row)
        scheduler.remove(wanted.row.job_id)
    assert place(scheduler, job().on_host(cpus=30)) != "a"


@pytest.mark.long
def test_what_it_learned_packs_better_than_first_fit_where_cpus_are_scarce() -> None:
    worlds = [arrivals(seed, cpus_per_gpu=(2, 4, 20)) for seed in range(12)]
    assert sum(allocated(came, PACKS) for came in worlds) >= 1.005 * sum(first_fit(came) for came in worlds)


@pytest.mark.long
def test_the_prior_packs_as_well_as_first_fit() -> None:
    """Within half a percent. FirstFit knows no more of what comes than the prior does."""
    prior = replace(PACKS, typical_tasks=expected_tasks(PACKS).tasks)
    kinds = [((1, 1, 1, 2, 4, 8), (2, 4, 20)), ((2, 3, 4, 5, 8), (2,)), ((2, 2, 3, 4, 5, 8), (2, 12))]
    worlds = [arrivals(seed, *kind) for kind in kinds for seed in range(12)]
    assert sum(allocated(came, prior) for came in worlds) >= 0.995 * sum(first_fit(came) for came in worlds)


def arrivals(
    seed: int, sizes: Sequence[int] = (1, 1, 1, 2, 4, 8), cpus_per_gpu: Sequence[int] = (2,)
) -> list[tuple[int, int]]:
    """Return (GPUs, CPUs) of jobs that come into 24 hosts of 8 GPUs until 130 % of the GPUs were asked for."""
    draw, came = random.Random(seed), list[tuple[int, int]]()
    while sum(gpus for gpus, _ in came) < 1.3 * 24 * 8:
        gpus = draw.choice(sizes)
        came.append((gpus, gpus * draw.choice(cpus_per_gpu)))
    return came


def allocated(came: list[tuple[int, int]], policy: Policy) -> int:
    machines = cluster()
    for number in range(24):
        machines.host(f"h{number:02d}", cpus=64 if number % 3 else 128)
    scheduler, taken = machines.scheduler(policy), 0
    for gpus, cpus in came:
        scheduler.add(one := job(gpus).on_host(cpus=cpus).across_sockets().row)
        taken += gpus * len(scheduler.decide(0.0).placements)
        scheduler.remove(one.job_id)
    return taken


def first_fit(came: list[tuple[int, int]]) -> int:
    gpus_left, cpus_left, taken = [8] * 24, [64 if number % 3 else 128 for number in range(24)], 0
    for gpus, cpus in came:
        for host in range(24):
            if gpus_left[host] >= gpus and cpus_left[host] >= cpus:
                gpus_left[host], cpus_left[host], taken = gpus_left[host] - gpus, cpus_left[host] - cpus, taken + gpus
                break
    return taken


def place(scheduler: Scheduler, wanted: job) -> str:
    scheduler.add(wanted.row)
    placed = {row.job_id: placement.hosts for row, placement in scheduler.decide(0.0).placements}
    return placed[wanted.row.job_id][0]
