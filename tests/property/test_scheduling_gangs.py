"""A gang of groups, or a total, gets a place whenever trying everything finds one; and it is what was asked for."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.domain.states import GpuState
from gpu_platform.scheduling.policy import Policy
from tests.builders import cluster, job
from tests.property.test_scheduling_state import can_form
from tests.support.examples import few

MACHINES = ("l40s-4x-dual-socket", "a100-pcie-4x-one-bridge")
Free = dict[str, frozenset[int]]

parts = st.builds(
    lambda gpus, hosts, model, leaf: _part(gpus, hosts, model, leaf),
    st.integers(1, 4),
    st.sampled_from([1, 1, 2]),
    st.sampled_from([None, None, "L40S", "A100"]),
    st.booleans(),
)


def _part(gpus: int, hosts: int, model: str | None, leaf: bool) -> job:
    part = job(gpus=gpus, hosts=hosts).needs(model=model)
    return part.requires("leaf") if leaf and hosts > 1 else part


@st.composite
def clusters(draw: st.DrawFn) -> cluster:
    machines = cluster()
    for number in range(draw(st.integers(1, 4))):
        machines.host(f"h{number}", draw(st.sampled_from(MACHINES)), leaf=f"l{number % 2}")
        busy = draw(st.sets(st.integers(0, 3), max_size=3))
        if busy:
            machines.busy(f"h{number}", *busy)
    for uuid, row in machines.gpu_rows.items():
        if draw(st.integers(0, 7)) == 0:
            state = GpuState.DRAINED if row.state is GpuState.AVAILABLE else GpuState.DRAINING
            machines.gpu_rows[uuid] = replace(row, state=state, free=False)
    return machines


def free_of(machines: cluster) -> Free:
    return {
        name: frozenset(g.index for g in machines.gpu_rows.values() if g.host == name and g.state is GpuState.AVAILABLE)
        for name in machines.host_rows
    }


def some_place(machines: cluster, wanted: list[ResourceRequest], free: Free) -> bool:
    """Every way to give hosts and GPUs to the parts, one after another."""
    if not wanted:
        return True
    request, rest = wanted[0], wanted[1:]
    able = [name for name in free if not request.model or request.model in _model(machines, name)]
    for hosts in combinations(able, request.hosts):
        if request.required_level == "leaf" and len({machines.host_rows[h].leaf for h in hosts}) > 1:
            continue
        if some_slices(machines, request, list(hosts), rest, free):
            return True
    return False


def some_slices(
    machines: cluster, request: ResourceRequest, hosts: list[str], rest: list[ResourceRequest], free: Free
) -> bool:
    if not hosts:
        return some_place(machines, rest, free)
    host, others = hosts[0], hosts[1:]
    machine = machines.host_rows[host].inventory.machine
    for gpus in combinations(sorted(free[host]), request.gpus_per_host):
        left = free | {host: free[host] - set(gpus)}
        if can_form(machine, frozenset(gpus), request.gpus_per_host, request.allow_cross_numa) and some_slices(
            machines, request, others, rest, left
        ):
            return True
    return False


def _model(machines: cluster, host: str) -> str:
    return machines.host_rows[host].inventory.gpus[0].model


def check(row: PlacementRequest, placement: Placement, machines: cluster) -> None:
    """All of what was asked for, on GPUs that are free, none twice."""
    free = {g.uuid for g in machines.gpu_rows.values() if g.state is GpuState.AVAILABLE}
    uuids = placement.gpu_uuids
    assert len(uuids) == len(set(uuids)) == row.gpu_count
    assert set(uuids) <= free
    for group in row.rank_groups():
        request = group.resources
        slices = [part for part in placement.slices if part.group == group.group]
        assert len({part.host for part in slices}) == len(slices)
        for part in slices:
            machine = machines.host_rows[part.host].inventory.machine
            assert can_form(machine, frozenset(part.gpu_indices), len(part.gpu_uuids), request.allow_cross_numa)
            assert not request.model or request.model in _model(machines, part.host)
        if request.total is None:
            assert [len(part.gpu_uuids) for part in slices] == [request.gpus_per_host] * request.hosts
        if request.required_level == "leaf":
            assert len({machines.host_rows[part.host].leaf for part in slices}) == 1


@given(machines=clusters(), wanted=st.lists(parts, min_size=1, max_size=3))
@settings(max_examples=few(200), deadline=None)
def test_groups_get_a_place_whenever_there_is_one(machines: cluster, wanted: list[job]) -> None:
    gang = job(name="j").groups(**{f"g{number}": part for number, part in enumerate(wanted)})
    scheduler = machines.scheduler()
    scheduler.add(gang.row)
    placements = scheduler.decide(0.0).placements
    possible = some_place(machines, [part.request for part in wanted], free_of(machines))
    assert bool(placements) == possible
    if placements:
        check(gang.row, placements[0][1], machines)
    else:
        assert not scheduler.snapshot.held.any()


@given(machines=clusters(), wanted=st.lists(parts, min_size=2, max_size=2), data=st.data())
@settings(max_examples=few(100), deadline=None)
def test_a_gang_of_groups_preempts_only_when_all_of_it_fits_then(
    machines: cluster, wanted: list[job], data: st.DataObject
) -> None:
    """The victims are enough, none of them can be spared, and there are victims whenever all of them would do."""
    held = [row for row in machines.gpu_rows.values() if row.state is GpuState.IN_USE]
    running = [
        RunningRow(f"r{number}", 1, "n", "u", 0, (row.uuid,), data.draw(st.sampled_from([0.0, 50.0])))
        for number, row in enumerate(held)
    ][:6]
    gang = job(name="j").groups(a=wanted[0], b=wanted[1]).priority(1)
    scheduler = machines.scheduler(Policy(preemption=True, min_run_s=0.0))
    for row in running:
        scheduler.started(row)
    scheduler.add(gang.row)
    decision = scheduler.decide(100.0)
    while not decision.preemptions and scheduler.unfinished:  # one decision may not be enough for the search
        decision = scheduler.decide(100.0)
    if decision.placements:
        return
    requests = [part.request for part in wanted]

    def fits(gone: list[RunningRow]) -> bool:
        free = dict(free_of(machines))
        for victim in gone:
            for uuid in victim.gpu_uuids:
                gpu = machines.gpu_rows[uuid]
                free[gpu.host] |= {gpu.index}
        return some_place(machines, requests, free)

    if not decision.preemptions:
        assert not fits(running)
        return
    [preemption] = decision.preemptions
    victims = [row for row in running if (row.job_id, row.attempt) in preemption.victims]
    assert fits(victims)
    assert all(not fits([other for other in victims if other is not victim]) for victim in victims)
    for victim in victims:
        for uuid in victim.gpu_uuids:
            gpu = machines.gpu_rows[uuid]
            machines.free(gpu.host, gpu.index)
    machines.tell(scheduler)
    assert [row.job_id for row, _ in scheduler.decide(101.0).placements] == ["j"]


@given(machines=clusters(), total=st.integers(1, 14), cross=st.booleans(), leaf=st.booleans())
@settings(max_examples=few(200), deadline=None)
def test_totals_are_on_the_fewest_hosts_of_the_nearest_domain(
    machines: cluster, total: int, cross: bool, leaf: bool
) -> None:
    wanted = job(name="j").total(total)
    wanted = wanted.across_sockets() if cross else wanted
    wanted = wanted.requires("leaf") if leaf else wanted
    scheduler = machines.scheduler()
    scheduler.add(wanted.row)
    placements = scheduler.decide(0.0).placements
    free = free_of(machines)
    most = {
        name: max(
            size
            for size in range(len(free[name]) + 1)
            if size == 0 or can_form(row.inventory.machine, free[name], size, cross)
        )
        for name, row in machines.host_rows.items()
    }

    def fewest(hosts: list[str]) -> int | None:
        able = [
            len(some)
            for size in range(1, len(hosts) + 1)
            for some in combinations(hosts, size)
            if sum(most[host] for host in some) >= total and all(most[host] for host in some)
        ]
        return min(able, default=None)

    leaves = [[h for h in most if machines.host_rows[h].leaf == f"l{number}"] for number in range(2)]
    inside = min((count for hosts in leaves if (count := fewest(hosts)) is not None), default=None)
    anywhere = fewest(list(most))
    expected = 1 if anywhere == 1 else inside if inside is not None or leaf else anywhere
    if expected is None:
        assert not placements
        return
    [(_, placement)] = placements
    check(wanted.row, placement, machines)
    assert len(placement.hosts) == expected
