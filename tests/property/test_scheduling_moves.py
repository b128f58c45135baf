"""Moving jobs: the set is the smallest that trying every set finds, and it works out as planned."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, combinations
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.jobs.placement import WaitCode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.domain.states import HostState
from gpu_platform.scheduling.cluster.statement import Statement
from gpu_platform.scheduling.policy import MoveBudget, Policy
from gpu_platform.scheduling.preempting import move_searches
from gpu_platform.scheduling.preempting.moves import MovePlanner
from gpu_platform.scheduling.preempting.preemption import Preemption, PreemptionReason, lost_work
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job
from tests.examples import few

NOW = 1000.0
ALWAYS = Policy(defragmentation=True, defragment_after_s=0.0, min_run_s=0.0, recovery=True)


def run(machines: cluster, name: str, host: str, *indices: int, **fields: object) -> RunningRow:
    machines.busy(host, *indices)
    uuids = tuple(simulated_uuid(host, index) for index in indices)
    given = {"started_at": 0.0, "checkpoint_at": 900.0, "checkpoints": True, **fields}
    request = ResourceRequest(gpus_per_host=len(indices))
    return RunningRow(name, 1, "n", "u", 0, uuids, resources=request, **given)  # type: ignore[arg-type]


def scheduler_of(machines: cluster, running: list[RunningRow], policy: Policy = ALWAYS) -> Scheduler:
    scheduler = machines.scheduler(policy)
    for row in running:
        scheduler.started(row)
    return scheduler


def carry_out(scheduler: Scheduler, machines: cluster, running: list[RunningRow], decision: Decision) -> None:
    """The moved jobs stop, and wait again."""
    for key in (key for preemption in decision.preemptions for key in preemption.victims):
        row = next(row for row in running if (row.job_id, row.attempt) == key)
        for uuid in row.gpu_uuids:
            gpu = machines.gpu_rows[uuid]
            machines.free(gpu.host, gpu.index)
        machines.tell(scheduler)
        scheduler.add(row.requeued())


def partly_full(kinds: list[str], data: st.DataObject) -> tuple[cluster, list[RunningRow]]:
    """A cluster in which each host has up to two jobs that may be moved."""
    machines = cluster()
    for number, kind in enumerate(kinds):
        machines.host(f"h{number}", kind, leaf=f"l{number // 2}")
    running: list[RunningRow] = []
    for number in range(len(kinds)):
        free = data.draw(st.permutations(range(4)))
        for _ in range(data.draw(st.integers(0, 2))):
            size = data.draw(st.integers(1, 2))
            taken, free = free[:size], free[size:]
            if len(taken) == size:
                since = data.draw(st.sampled_from([900.0, 950.0, 990.0]))
                running.append(
                    run(machines, f"r{len(running)}", f"h{number}", *taken, checkpoint_at=since)
                )  # fmt: skip
    return machines, running


KINDS = st.lists(st.sampled_from(["l40s-4x-dual-socket", "a100-pcie-4x-one-bridge"]), min_size=2, max_size=4)


@given(
    kinds=KINDS,
    wanted=st.tuples(st.sampled_from([2, 3, 4]), st.sampled_from([1, 1, 2]), st.booleans(), st.booleans()),
    data=st.data(),
)
@settings(max_examples=few(120), deadline=None)
def test_the_smallest_set_is_moved_and_then_everybody_has_a_place(
    kinds: list[str], wanted: tuple[int, int, bool, bool], data: st.DataObject
) -> None:
    machines, running = partly_full(kinds, data)
    gpus, hosts, cross, leaf = wanted
    gang = job(gpus, hosts=hosts, name="gang").arrived(0.0)
    gang = gang.across_sockets() if cross else gang
    gang = gang.requires("leaf") if leaf and hosts > 1 else gang
    budget = MoveBudget(jobs=data.draw(st.integers(1, 4)), lost_gpu_s=data.draw(st.sampled_from([60.0, 300.0, 1e9])))
    policy = Policy(
        defragmentation=True, defragment_after_s=0.0, min_run_s=0.0, defragmentation_budget=budget, backfill="none"
    )
    scheduler = scheduler_of(machines, running, policy)
    scheduler.add(gang.row)
    decision = scheduler.decide(NOW)
    if decision.placements:
        assert not decision.preemptions
        return
    mover = MovePlanner(scheduler.snapshot, scheduler.framework, scheduler.candidates, scheduler.gangs)

    def cost(some: tuple[RunningRow, ...]) -> tuple[int, float]:
        return len(some), sum(lost_work(row, NOW) for row in some)

    def works(some: tuple[RunningRow, ...]) -> bool:
        size, lost = cost(some)
        with Statement(scheduler.snapshot) as attempt:
            inside = size <= budget.jobs and lost <= budget.lost_gpu_s
            return inside and mover.try_moving(gang.row, some, attempt) is not None

    every = chain.from_iterable(combinations(running, size) for size in range(1, len(running) + 1))
    able = [cost(some) for some in every if works(some)]
    assert bool(decision.preemptions) == bool(able)
    if not able:
        return
    [preemption] = decision.preemptions
    assert preemption.reason is PreemptionReason.DEFRAGMENTATION
    chosen = tuple(row for row in running if (row.job_id, row.attempt) in preemption.victims)
    assert cost(chosen) == min(able)
    carry_out(scheduler, machines, running, decision)
    placed = {row.job_id for row, _ in scheduler.decide(NOW + 1).placements}
    assert placed == {"gang", *(row.job_id for row in chosen)}


@given(kinds=KINDS, sizes=st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3), data=st.data())
@settings(max_examples=few(60), deadline=None)
def test_searching_in_steps_finds_what_searching_at_once_finds(
    kinds: list[str], sizes: list[int], data: st.DataObject
) -> None:
    """The first of the jobs that wait lost their host, the others are gangs for which jobs may be moved, too."""
    machines, running = partly_full(kinds, data)
    machines.host("gone", "dgx-h100")
    displaced = data.draw(st.integers(0, len(sizes)))
    names = [f"{'lost' if number < displaced else 'gang'}-{number}" for number in range(len(sizes))]
    running += [run(machines, name, "gone", number) for number, name in enumerate(names[:displaced])]
    answers: list[list[Preemption]] = []
    decisions: list[int] = []
    for allowance in (move_searches.ALLOWANCE, 1):
        scheduler = scheduler_of(machines, running)
        scheduler.upsert_host(replace(machines.host_rows["gone"], state=HostState.LOST))
        for name, size in zip(names, sizes, strict=True):
            scheduler.ended(name, 1)
            scheduler.add(job(size, name=name).arrived(0.0).row)
        with patch.object(move_searches, "ALLOWANCE", allowance):
            made = [scheduler.decide(NOW)]
            while scheduler.unfinished:
                made.append(scheduler.decide(NOW))
        answers.append([preemption for decision in made for preemption in decision.preemptions])
        decisions.append(len(made))
    assert answers[0] == answers[1]
    assert decisions[0] == 1
    assert not answers[0] or decisions[1] > 10, "the search was not done at once"


def test_two_halves_become_a_whole_host() -> None:
    machines = cluster().hosts(2, "dgx-h100")
    running = [run(machines, "a", "dgx-h100-0", 0, 1, 2), run(machines, "b", "dgx-h100-1", 4, 5, 6, 7)]
    scheduler = scheduler_of(machines, running)
    scheduler.add(job(8, name="gang").arrived(0.0).row)
    [preemption] = scheduler.decide(NOW).preemptions
    assert preemption.victims == (("a", 1),)
    carry_out(scheduler, machines, running, Decision(preemptions=[preemption]))
    found = {row.job_id: placement for row, placement in scheduler.decide(NOW + 1).placements}
    assert found["gang"].hosts == ["dgx-h100-0"]
    assert found["a"].hosts == ["dgx-h100-1"]


def test_what_was_cleared_is_kept_for_the_gang() -> None:
    machines = cluster().hosts(2, "dgx-h100")
    running = [run(machines, "a", "dgx-h100-0", 0, 1, 2), run(machines, "b", "dgx-h100-1", 4, 5, 6, 7)]
    scheduler = scheduler_of(machines, running)
    scheduler.add(job(8, name="gang").arrived(0.0).row)
    decision = scheduler.decide(NOW)
    urgent = job(5, name="urgent").priority(9).arrived(NOW)
    scheduler.add(urgent.row)
    assert not scheduler.decide(NOW + 1).placements
    row = scheduler.queue.get("urgent")
    assert row is not None
    assert scheduler.reasons[row.class_key].code is WaitCode.BEHIND_HIGHER_PRIORITY
    carry_out(scheduler, machines, running, decision)
    assert "gang" in {row.job_id for row, _ in scheduler.decide(NOW + 2).placements}


def test_jobs_that_do_not_checkpoint_or_have_just_started_stay() -> None:
    machines = cluster().hosts(2, "dgx-h100")
    running = [
        run(machines, "a", "dgx-h100-0", 0, 1, 2, checkpoints=False),
        run(machines, "b", "dgx-h100-1", 4, 5, 6, started_at=NOW - 1.0),
    ]
    scheduler = scheduler_of(machines, running, Policy(defragmentation=True, defragment_after_s=0.0))
    scheduler.add(job(8, name="gang").arrived(0.0).row)
    assert not scheduler.decide(NOW).preemptions


def test_nobody_is_moved_before_the_gang_has_waited_or_when_too_little_is_free() -> None:
    machines = cluster().hosts(2, "dgx-h100")
    running = [run(machines, "a", "dgx-h100-0", 0, 1, 2), run(machines, "b", "dgx-h100-1", 2, 3, 4, 5, 6, 7)]
    scheduler = scheduler_of(machines, running, Policy(defragmentation=True, defragment_after_s=60.0, min_run_s=0.0))
    scheduler.add(job(8, name="gang").arrived(NOW).row)
    assert not scheduler.decide(NOW).preemptions
    assert not scheduler.decide(NOW + 61.0).preemptions


def test_a_lost_hosts_job_gets_room_at_once() -> None:
    machines = cluster().hosts(3, "dgx-h100")
    running = [
        run(machines, "lost", "dgx-h100-0", *range(8)),
        run(machines, "a", "dgx-h100-1", 0, 1),
        run(machines, "b", "dgx-h100-2", 0, 1, 2),
    ]
    policy = Policy(recovery=True, min_run_s=0.0)
    scheduler = scheduler_of(machines, running, policy)
    scheduler.decide(NOW)
    machines.lost("dgx-h100-0").tell(scheduler)
    scheduler.ended("lost", 1)
    scheduler.add(running[0].requeued())
    decision = scheduler.decide(NOW + 1)
    [preemption] = decision.preemptions
    assert (preemption.job_id, preemption.reason) == ("lost", PreemptionReason.RECOVERY)
    assert preemption.victims == (("a", 1),)
    carry_out(scheduler, machines, running, decision)
    found = {row.job_id: placement.hosts for row, placement in scheduler.decide(NOW + 2).placements}
    assert found == {"lost": ["dgx-h100-1"], "a": ["dgx-h100-2"]}


def test_several_lost_jobs_share_one_budget_by_priority() -> None:
    machines = cluster().hosts(4, "dgx-h100")
    running = [
        run(machines, "low", "dgx-h100-0", *range(4)),
        run(machines, "high", "dgx-h100-0", 4, 5, 6, 7),
        run(machines, "a", "dgx-h100-1", 0, 1, 4, 5),
        run(machines, "b", "dgx-h100-2", 0, 1, 4, 5),
        run(machines, "c", "dgx-h100-3", 0, 1, 2, 3, 4, 5),
    ]
    policy = Policy(recovery=True, min_run_s=0.0, recovery_budget=MoveBudget(jobs=1, lost_gpu_s=1e9))
    scheduler = scheduler_of(machines, running, policy)
    scheduler.decide(NOW)
    machines.lost("dgx-h100-0").tell(scheduler)
    for name, priority in (("low", 0), ("high", 5)):
        scheduler.ended(name, 1)
        scheduler.add(job(8, name=name).priority(priority).arrived(1.0).row)
    decision = scheduler.decide(NOW + 1)
    assert [preemption.job_id for preemption in decision.preemptions] == ["high"]
