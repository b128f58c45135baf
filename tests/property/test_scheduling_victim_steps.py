"""A search for victims that goes on over several decisions finds what it would find at once, stops nobody in vain if
the cluster changes meanwhile, and comes to an end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from unittest.mock import patch

import numpy as np
import pytest

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import HostRow, RunningRow
from gpu_platform.scheduling.cluster.snapshot import Snapshot, SnapshotCopy
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.preempting import victim_planning
from gpu_platform.scheduling.preempting.preemption import Preemption, choose_victims
from gpu_platform.scheduling.preempting.steps import at_once
from gpu_platform.scheduling.preempting.victim_trials import TrialCluster
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.scheduling.simulator.simulated_cluster import SimulatedCluster
from tests.builders import cluster, job

SEEDS = range(8)
LONG = 10_000
"""A search that has not ended after so many decisions never ends."""


class Play:
    """A scheduler with a store that accepts everything. Jobs end only if the test says so."""

    def __init__(self, hosts: list[HostRow], policy: Policy) -> None:
        self.scheduler = Scheduler(policy)
        self.machines = SimulatedCluster(hosts, self.scheduler)
        self.machines.report_all()
        self.now = 0.0
        self.running: dict[str, int] = {}

    def submit(self, *rows: PlacementRequest) -> None:
        for row in rows:
            self.scheduler.add(row)

    def decide(self) -> list[Preemption]:
        decision = self.scheduler.decide(self.now)
        for row, placement in decision.placements:
            self.machines.take(row.job_id, row.namespace, placement)
            self.scheduler.confirm(row.job_id, row.attempt)
            self.running[row.job_id] = row.attempt
        return decision.preemptions

    def end(self, name: str) -> None:
        self.machines.give_back(name)
        self.scheduler.ended(name, self.running.pop(name))

    def settle(self) -> tuple[list[Preemption], int]:
        """Decide until nothing is left to do. Returns who is stopped, and the number of decisions."""
        found = self.decide()
        for decisions in range(1, LONG):
            if not self.scheduler.unfinished:
                return found, decisions
            found += self.decide()
        raise AssertionError("the search does not end")


def random_request(draw: Random, name: str, big: bool) -> PlacementRequest:
    shape, hosts = draw.random(), draw.choice([1, 2, 3]) if big else 1
    made = job(draw.choice([1, 2, 4, 8]), hosts, name)
    if shape < 0.2:
        made = made.on_host(cpus=draw.choice([4, 16, 40]))
    elif shape < 0.35:
        made = job(1, hosts, name).share(draw.choice([20, 50, 90]))
    elif shape < 0.6 and big:
        made = job(name=name).groups(a=job(draw.choice([4, 8]), hosts), b=job(draw.choice([1, 2, 4]), hosts))
    elif shape < 0.7 and big:
        made = job(name=name).total(draw.choice([6, 12]))
    elif shape < 0.8 and hosts > 1:
        made = made.requires("leaf")
    return made.priority(draw.choice([0, 1, 2])).arrived(draw.random()).row


def full_cluster(seed: int) -> Play:
    draw = Random(seed)
    machines = cluster()
    for number in range(draw.choice([2, 5, 9])):
        kind = draw.choice(["dgx-h100", "dgx-h100", "rtx4090-8x-all-sys"])
        machines.host(f"h{number}", kind, leaf=f"l{number // 3}", cpus=64, ram_mib=65536, mps=True)
    play = Play(list(machines.host_rows.values()), Policy(preemption=True, min_run_s=10.0))
    play.submit(*(random_request(draw, f"j{number:03d}", draw.random() < 0.1) for number in range(60)))
    play.settle()
    for name in [row.job_id for row in play.scheduler.queue]:
        play.scheduler.remove(name)
    play.now = 1000.0
    return play


def urgent(seed: int, number: int) -> PlacementRequest:
    return replace(random_request(Random(f"{seed} {number}"), f"vip{number}", big=True), priority=9)


@pytest.fixture(params=[1, 50])
def slices(request: pytest.FixtureRequest) -> Iterator[int]:
    with patch.object(victim_planning, "ALLOWANCE", request.param):
        yield request.param


@pytest.mark.some(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_in_steps_the_victims_are_those_that_are_found_at_once(seed: int, slices: int) -> None:
    for number in range(3):
        row = urgent(seed, number)
        in_steps = full_cluster(seed)
        in_steps.submit(row)
        found, decisions = in_steps.settle()
        with patch.object(victim_planning, "ALLOWANCE", LONG**2):
            whole = full_cluster(seed)
            whole.submit(row)
            expected = whole.decide()
            assert not whole.scheduler.unfinished or expected
        assert found == expected
        if found and slices == 1:
            assert decisions > 2, "it was not searched in steps"


@pytest.mark.long
@pytest.mark.parametrize("allowance", [100, 400])
def test_nobody_is_stopped_in_vain_if_the_cluster_changes_during_the_search(allowance: int) -> None:
    with patch.object(victim_planning, "ALLOWANCE", allowance):
        stopped = sum(play_on(seed, is_smallest=allowance > 100) for seed in SEEDS)
    assert stopped > 5, "else this proves nothing"


def play_on(seed: int, is_smallest: bool) -> int:
    """Jobs come, end, and leave the queue, and hosts fail, between the decisions."""
    draw, play = Random(seed), full_cluster(seed)
    stopped = 0
    for number in range(100):
        for preemption in play.decide():
            stopped += 1
            check(play, preemption, is_smallest)
            for name, _ in preemption.victims:
                play.end(name)
        happens = draw.random()
        if happens < 0.2 and play.running:
            play.end(draw.choice(sorted(play.running)))
        elif happens < 0.3:
            play.submit(random_request(draw, f"new{number}", big=False))
        elif happens < 0.35 and play.scheduler.queue:
            play.scheduler.remove(draw.choice(sorted(row.job_id for row in play.scheduler.queue)))
        elif happens < 0.4:
            host, gpu = f"h{draw.randrange(len(play.scheduler.snapshot))}", draw.choice([None, 0, 3])
            for name in play.machines.fail(host, gpu):
                play.end(name)
            play.machines.repair(host, gpu)
        elif happens < 0.5:
            play.submit(urgent(seed, number))
        play.now += 1.0
    return stopped


def check(play: Play, preemption: Preemption, is_smallest: bool) -> None:
    """The job waits, the victims run, without them it has a place, and with them it has none. ``is_smallest``: each of
    them is needed.
    """
    scheduler = play.scheduler
    row, victims = scheduler.queue.get(preemption.job_id), list[RunningRow]()
    assert row is not None
    assert row.attempt == preemption.attempt
    for key in preemption.victims:
        victim = scheduler.running_jobs.get(key)
        assert victim is not None
        victims.append(victim)
    row = scheduler._planner._victims._undisturbing(row, scheduler.round)
    assert has_place(scheduler, row, victims)
    assert not has_place(scheduler, row, [])
    for spared in victims if is_smallest else ():
        assert not has_place(scheduler, row, [victim for victim in victims if victim is not spared])


def has_place(scheduler: Scheduler, row: PlacementRequest, ended: list[RunningRow]) -> bool:
    with Statement(scheduler.snapshot) as attempt:
        for one in ended:
            attempt.end(one)
        return scheduler.gangs.place_in(row, attempt) is not None


def waits_for_all(play: Play, victims: int) -> PlacementRequest:
    """One-GPU jobs fill the cluster, and a gang needs all of it."""
    play.submit(*(job(8, name=f"j{number}").row for number in range(victims)))
    play.settle()
    play.now = 1000.0
    return job(name="vip").groups(a=job(8), b=job(8, hosts=victims - 1)).priority(9).row


def go_on(play: Play, decisions: int) -> None:
    for _ in range(decisions):
        assert play.decide() == []
        assert play.scheduler.unfinished


def one_kind(hosts: int) -> Play:
    return Play(list(cluster().hosts(hosts).host_rows.values()), Policy(preemption=True))


def test_a_victim_that_ends_during_the_search_is_not_stopped() -> None:
    with patch.object(victim_planning, "ALLOWANCE", 1):
        play = one_kind(4)
        play.submit(waits_for_all(play, 4))
        go_on(play, 4)
        play.end("j2")
        found, _ = play.settle()
    [preemption] = found
    assert sorted(name for name, _ in preemption.victims) == ["j0", "j1", "j3"]


def test_a_job_that_leaves_during_the_search_gets_no_victims() -> None:
    with patch.object(victim_planning, "ALLOWANCE", 1):
        play = one_kind(4)
        play.submit(waits_for_all(play, 4))
        go_on(play, 4)
        play.scheduler.remove("vip")
        assert play.settle()[0] == []


def test_if_a_gpu_is_lost_during_the_search_that_the_gang_needs_nobody_is_stopped() -> None:
    with patch.object(victim_planning, "ALLOWANCE", 1):
        play = one_kind(4)
        play.submit(waits_for_all(play, 4))
        go_on(play, 4)
        for name in play.machines.fail("dgx-h100-1", 3):
            play.end(name)
        assert play.settle()[0] == []


def test_a_cluster_that_never_rests_does_not_starve_the_search() -> None:
    """A small job ends and another one starts between all decisions."""
    with patch.object(victim_planning, "ALLOWANCE", 40):
        play = one_kind(6)
        play.submit(job(1, name="small0").priority(10).row)
        row = waits_for_all(play, 5)
        play.submit(row)
        for number in range(100):
            if found := play.decide():
                assert {name for name, _ in found[0].victims} == {f"j{number}" for number in range(5)}
                return
            play.end(f"small{number}")
            play.submit(job(1, name=f"small{number + 1}").priority(10).row)
            play.decide()
    raise AssertionError("the gang never got its victims")


def test_one_decision_makes_a_bounded_number_of_trials() -> None:
    trials, place = [0], TrialCluster.place

    def counted(self: TrialCluster, row: PlacementRequest) -> object:
        trials[-1] += 1
        return place(self, row)

    with patch.object(TrialCluster, "place", counted), patch.object(victim_planning, "ALLOWANCE", 150):
        play = one_kind(20)
        play.submit(waits_for_all(play, 20))
        found: list[Preemption] = []
        while not found:
            trials.append(0)
            found = play.decide()
    assert max(trials) <= 150 // 30 + 1
    assert sum(trials) > 10, "it was no long search"


def test_a_decision_looks_ahead_only_as_far_as_it_may() -> None:
    play = Play(list(cluster().hosts(2).host_rows.values()), Policy(preemption=True, min_run_s=300.0))
    play.submit(*(job(8, name=f"j{number}").row for number in range(2)))
    play.settle()
    play.now = 10.0
    with patch.object(victim_planning, "LOOK_AHEAD", 1):
        play.submit(job(8, hosts=2, name="vip").priority(9).row)
        assert play.settle()[0] == []
        planner, last_round = play.scheduler._planner, play.scheduler.round
        assert planner.next_preemption(last_round, in_full=False) is None
        assert planner.next_preemption(last_round, in_full=True) == ("vip", 300.0)
        reason = play.scheduler.why("vip", play.now)
    assert reason is not None
    assert reason.estimated_start == 300.0


@pytest.mark.some(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_trials_on_the_copy_say_what_trials_on_the_snapshot_say(seed: int) -> None:
    draw, play = Random(seed), full_cluster(seed)
    scheduler = play.scheduler
    trial_cluster = TrialCluster(scheduler.snapshot, scheduler.framework)
    trial_cluster.renew()
    jobs, rows = list(scheduler.running_jobs), [urgent(seed, number) for number in range(4)]
    for _ in range(20):
        ended = [one for one in jobs if draw.random() < draw.choice([0.1, 0.5, 0.9])]
        at_once(trial_cluster.end({(one.job_id, one.attempt): one for one in ended}))
        for row in rows:
            assert (trial_cluster.place(row) is not None) == has_place(scheduler, row, ended)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_copy_is_equal_to_the_snapshot_whatever_was_tried_on_it(seed: int) -> None:
    draw, play = Random(seed), full_cluster(seed)
    snapshot = play.scheduler.snapshot
    copy = SnapshotCopy(snapshot)
    for number in range(12):
        if number == 6:
            play.scheduler.upsert_host(cluster().host("another").host_rows["another"])
        copy.renew()
        assert_equal(copy, snapshot)
        for one in play.scheduler.running_jobs:
            if draw.random() < 0.3:
                copy.simulate_release(one)
        for name in draw.sample(sorted(play.running), min(3, len(play.running))):
            play.end(name)
        play.submit(random_request(draw, f"more{number}", big=True))
        play.decide()


def assert_equal(copy: Snapshot, original: Snapshot) -> None:
    for name, array in original._arrays.items():
        assert np.array_equal(copy._arrays[name], array), name
    for name, value in vars(original.shared).items():
        assert np.array_equal(getattr(copy.shared, name), value), name
    assert copy._gpus == original._gpus
    assert copy.names == original.names
    assert all(copy._gpus[uuid] is not flags for uuid, flags in original._gpus.items())


def test_a_search_on_a_copy_changes_nothing_in_the_snapshot() -> None:
    play = one_kind(4)
    row, scheduler = waits_for_all(play, 4), play.scheduler
    version = scheduler.snapshot.version
    trial_cluster = TrialCluster(scheduler.snapshot, scheduler.framework)
    jobs = list(scheduler.running_jobs)
    assert at_once(choose_victims(row, scheduler.snapshot, scheduler.framework, jobs, 1000.0, (), trial_cluster))
    assert scheduler.snapshot.version == version
