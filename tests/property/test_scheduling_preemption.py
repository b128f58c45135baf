"""The victims are those that trying every set of jobs finds, and nobody is stopped for nothing."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.placing.quota import AllocationPolicy, Namespace, Quotas
from gpu_platform.domain.placing.scheduler_input import GpuRow, RunningRow
from gpu_platform.domain.states import GpuState
from gpu_platform.scheduling.policy import Policy, build_framework
from gpu_platform.scheduling.preempting.preemption import choose_victims, eligible_victims, lost_work
from gpu_platform.scheduling.preempting.steps import at_once
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from gpu_platform.topology.description import simulated_uuid
from tests.builders import cluster, job
from tests.examples import few
from tests.property.test_scheduling_state import can_form
from tests.virtual_time import VirtualTime

NOW = 100.0
MACHINES = ("l40s-4x-dual-socket", "a100-pcie-4x-one-bridge", "rtx4090-8x-all-sys")


@given(
    kinds=st.lists(st.sampled_from(MACHINES), min_size=1, max_size=3),
    wanted=st.tuples(st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 1, 2]), st.booleans(), st.booleans()),
    data=st.data(),
)
@settings(max_examples=few(150), deadline=None)
def test_victims_are_the_cheapest_that_brute_force_finds(
    kinds: list[str], wanted: tuple[int, int, bool, bool], data: st.DataObject
) -> None:
    machines = cluster()
    for number, kind in enumerate(kinds):
        machines.host(f"h{number}", kind, leaf=f"l{number // 2}")
    gpus, hosts, cross, leaf = wanted
    left = [(row.host, row.index) for row in machines.gpu_rows.values()]
    running: list[RunningRow] = []
    for number in range(data.draw(st.integers(0, 7))):
        size = min(len(left), data.draw(st.integers(1, 4)))
        taken, left = left[:size], left[size:]
        if not taken:
            break
        for host, index in taken:
            machines.busy(host, index)
        started = data.draw(st.sampled_from([0.0, 50.0, 90.0]))
        running.append(
            RunningRow(
                f"r{number}", 1, "n", "u", data.draw(st.integers(-2, 1)),
                tuple(simulated_uuid(host, index) for host, index in taken), started,
                checkpoint_at=data.draw(st.sampled_from([None, 80.0])),
            )
        )  # fmt: skip
        left = data.draw(st.permutations(left))
    request = job(gpus, hosts=hosts).across_sockets() if cross else job(gpus, hosts=hosts)
    row = (request.requires("leaf") if leaf else request).row
    snapshot = machines.scheduler().snapshot

    def fits(without: tuple[RunningRow, ...]) -> bool:
        gone = {uuid for victim in without for uuid in victim.gpu_uuids}
        able: dict[str, int] = {}
        for name, host in machines.host_rows.items():
            rows: list[GpuRow] = [gpu for gpu in machines.gpu_rows.values() if gpu.host == name]
            free = {gpu.index for gpu in rows if gpu.state is GpuState.AVAILABLE or gpu.uuid in gone}
            if can_form(host.inventory.machine, frozenset(free), gpus, cross):
                domain = str(host.leaf) if leaf else "all"
                able[domain] = able.get(domain, 0) + 1
        return max(able.values(), default=0) >= hosts

    def cost(victims: tuple[RunningRow, ...]) -> tuple[float, float, int]:
        worst = max((victim.priority for victim in victims), default=-99)
        return worst, sum(lost_work(victim, NOW) for victim in victims), len(victims)

    found = at_once(choose_victims(row, snapshot, build_framework(Policy()), running, NOW))
    every = chain.from_iterable(combinations(running, size) for size in range(len(running) + 1))
    able = [victims for victims in every if fits(victims)]
    if found is None:
        assert not able
    else:
        assert fits(found)
        assert cost(found) == min(cost(victims) for victims in able)


def preempting(machines: cluster, **policy: object) -> VirtualTime:
    return VirtualTime(machines, machines.scheduler(Policy(preemption=True, **policy)), lambda row: 1e6)  # type: ignore[arg-type]


def victims_of(decision: Decision) -> list[str]:
    return [job_id for preemption in decision.preemptions for job_id, _ in preemption.victims]


def test_the_lowest_priority_goes_first_then_the_least_work() -> None:
    play = preempting(cluster().hosts(3))
    play.submit(job(8, name="mid").priority(1).row)
    play.submit(job(8, name="old").row)
    play.now = 500.0
    play.submit(job(8, name="young").row)
    play.now = 1000.0
    play.submit(job(8, name="vip").priority(9).row)
    assert victims_of(play.last) == ["young"]
    play.now = 1001.0
    play.submit()
    assert victims_of(play.last) == [], "told once"


def test_nobody_is_stopped_for_what_does_not_help() -> None:
    play = preempting(cluster().hosts(1, leaf="a").hosts(1, leaf="b"))
    play.submit(job(8, name="x").row, job(8, name="y").row)
    play.now = 1000.0
    play.submit(job(8, hosts=2, name="vip").requires("leaf").priority(9).row)
    assert victims_of(play.last) == []


def test_free_gpus_count() -> None:
    play = preempting(cluster().hosts(1))
    play.submit(job(3, name="a").row, job(2, name="b").row)
    play.now = 1000.0
    play.submit(job(5, name="vip").priority(1).row)
    assert victims_of(play.last) == ["b"]


def test_the_minimum_run_time_is_guaranteed() -> None:
    play = preempting(cluster().hosts(1), min_run_s=300.0)
    play.submit(job(8, name="a").row)
    play.now = 299.0
    play.submit(job(8, name="vip").priority(1).row)
    assert victims_of(play.last) == []


def test_what_was_cleared_is_kept_for_whom_it_was_cleared() -> None:
    play = preempting(cluster().hosts(1), order="fcfs", backfill="none")
    play.submit(job(8, name="a").row)
    play.now = 900.0
    play.submit(job(8, name="first").row)
    play.now = 1000.0
    play.submit(job(4, name="vip").priority(1).row)
    assert victims_of(play.last) == ["a"]
    play.end("a")
    assert list(play.running) == ["vip"], "who waits longer must not take what others were stopped for"
    play.end("vip")
    assert list(play.running) == ["first"]


def test_what_was_cleared_is_not_left_empty_for_promises_to_others() -> None:
    play = preempting(cluster().hosts(2), order="fcfs", backfill="conservative", min_run_s=0.0)
    play.submit(job(8, name="a").lasting(500.0).row, job(8, name="b").lasting(500.0).row)
    play.now = 10.0
    play.submit(job(8, name="promised").lasting(60.0).row)
    play.submit(job(8, hosts=2, name="vip").lasting(3000.0).priority(1).row)
    assert sorted(victims_of(play.last)) == ["a", "b"]
    for name in ("a", "b"):  # both before the next decision
        play._end(name)
    play._ends = []
    play.decide()
    assert list(play.running) == ["vip"], "promises to others came after it was cleared for vip"


def test_equals_do_not_preempt_each_other() -> None:
    play = preempting(cluster().hosts(1))
    play.submit(job(8, name="a").row)
    play.now = 1000.0
    play.submit(job(8, name="b").row)
    assert victims_of(play.last) == []


def test_a_guarantee_is_taken_back_from_borrowers_only() -> None:
    quotas = Quotas(
        policy=AllocationPolicy.HYBRID,
        reserved_ratio=0.0,
        namespaces=(Namespace(name="a", guaranteed_gpus=4), Namespace(name="b", guaranteed_gpus=4)),
    )
    play = preempting(cluster().hosts(1), quotas=quotas)
    play.submit(*(job(2, name=f"a{number}").of("a").row for number in range(4)))
    assert len(play.running) == 4
    play.now = 1000.0
    play.submit(job(4, name="b0").of("b").row)
    assert len(victims_of(play.last)) == 2
    play.submit(job(1, name="b1").of("b").row)
    assert victims_of(play.last) == [], "a keeps what is guaranteed to it"


def test_many_jobs_and_a_gang_leave_no_victim_that_could_be_spared() -> None:
    machines = cluster().hosts(8, leaf="a").hosts(8, leaf="b")
    scheduler: Scheduler = machines.scheduler()
    play = VirtualTime(machines, scheduler, lambda row: 1e6)
    for number in range(40):
        play.now = float(number)
        play.submit(job(1 + number % 4, name=f"j{number:02d}").priority(number % 3).row)
    row = job(8, hosts=6, name="gang").requires("leaf").priority(9).row
    eligible = eligible_victims(9, scheduler.running_jobs, 0.0, 100.0)
    victims = at_once(choose_victims(row, scheduler.snapshot, scheduler.framework, eligible, 100.0))
    assert victims
    for victim in victims:
        others = [other for other in victims if other is not victim]
        again = at_once(choose_victims(row, scheduler.snapshot, scheduler.framework, others, 100.0))
        assert again is None
