"""Whatever happens in whatever order, the scheduler keeps its promises.

A small model of the store plays against two schedulers that hear the same, one of them about the hosts
in the opposite order. Nothing here uses the topology or the framework: fitting is tried by brute force.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.jobs.placement import Placement, Reason
from gpu_platform.domain.jobs.resources import ResourceRequest, Strategy
from gpu_platform.domain.placing.capacity import mismatch, socket_of
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.preempting.displaced_jobs import GATHER_S
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import load_description
from tests.support.examples import few

MACHINES = ("dgx-1v", "l40s-4x-dual-socket", "dgx-h100", "dgx-a100-40gb")
PROPOSAL_TIMEOUT_S = 10.0

requests = st.builds(
    ResourceRequest,
    hosts=st.sampled_from([1, 1, 1, 2]),
    gpus_per_host=st.sampled_from([1, 2, 3, 4, 5, 8]),
    memory_mib=st.sampled_from([0, 0, 0, 0, 40_000]),
    min_compute_capability=st.sampled_from([None, None, None, "8.0"]),
    model=st.sampled_from([None, None, None, "nvidia"]),
    allow_cross_numa=st.booleans(),
    strategy=st.sampled_from(list(Strategy)),
)


@cache
def can_form(machine: str, free: frozenset[int], size: int, cross: bool) -> bool:
    """Is there a set of ``size`` that may work together?"""
    inventory = load_description(machine).inventory("x")
    joined = {frozenset((link.a, link.b)) for link in inventory.nvlinks}
    if cross:
        return len(free) >= size
    for gpus in combinations(sorted(free), size):
        if len({socket_of(inventory.gpus[gpu]) for gpu in gpus}) == 1 or has_ring(gpus, joined):
            return True
    return False


def has_ring(gpus: tuple[int, ...], joined: set[frozenset[int]]) -> bool:
    def extend(path: tuple[int, ...]) -> bool:
        if len(path) == len(gpus):
            return frozenset((path[-1], path[0])) in joined
        return any(extend((*path, gpu)) for gpu in gpus if gpu not in path and frozenset((path[-1], gpu)) in joined)

    return len(gpus) > 1 and extend(gpus[:1])


class SchedulerAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.schedulers = [Scheduler(), Scheduler()]
        self.hosts: dict[str, HostRow] = {}
        self.gpus: dict[str, GpuRow] = {}
        self.waiting: dict[str, PlacementRequest] = {}
        self.proposed: dict[str, tuple[PlacementRequest, Placement, float]] = {}
        self.running: dict[str, list[str]] = {}
        self.now = 0.0
        self.lost_at = -GATHER_S
        self.count = 0

    @initialize(kinds=st.lists(st.sampled_from(MACHINES), min_size=2, max_size=4), leaves=st.integers(1, 3))
    def hosts_register(self, kinds: list[str], leaves: int) -> None:
        for number, kind in enumerate(kinds):
            inventory: HostInventory = load_description(kind).inventory(f"h{number}")
            leaf = number % leaves
            self.hosts[f"h{number}"] = HostRow(f"h{number}", HostState.READY, inventory, f"l{leaf}", f"s{leaf // 2}")
            for gpu in inventory.gpus:
                self.gpus[gpu.uuid] = GpuRow(gpu.uuid, f"h{number}", gpu.index, GpuState.AVAILABLE, free=True)
        for scheduler, order in zip(self.schedulers, (1, -1), strict=True):
            for row in list(self.hosts.values())[::order]:
                scheduler.upsert_host(row)
            scheduler.upsert_gpus(self.gpus.values())

    @rule(requests=st.lists(requests, min_size=1, max_size=4), priority=st.sampled_from([0, 0, 0, 5]), data=st.data())
    def jobs_arrive(self, requests: list[ResourceRequest], priority: int, data: st.DataObject) -> None:
        for request in requests:
            self.arrive(request, priority, data)
        self.decide(0.0)

    def arrive(self, request: ResourceRequest, priority: int, data: st.DataObject) -> None:
        excluded_gpus, excluded_hosts = frozenset[str](), frozenset[str]()
        if data.draw(st.sampled_from([False, False, True])):
            excluded_gpus = data.draw(st.frozensets(st.sampled_from(sorted(self.gpus)), max_size=2))
            excluded_hosts = data.draw(st.frozensets(st.sampled_from(sorted(self.hosts)), max_size=1))
        self.count += 1
        row = PlacementRequest(
            job_id=f"j{self.count}",
            attempt=1,
            resources=request,
            priority=priority,
            namespace="default",
            user="anna",
            enqueued_at=float(self.count),
            excluded_gpus=excluded_gpus,
            excluded_hosts=excluded_hosts,
        )
        self.waiting[row.job_id] = row
        for scheduler in self.schedulers:
            scheduler.add(row)

    @rule(seconds=st.sampled_from([0.0, 0.1, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.decide(seconds)

    def decide(self, seconds: float) -> None:
        self.now += seconds
        for job_id, (row, _, since) in list(self.proposed.items()):
            if self.now >= since + PROPOSAL_TIMEOUT_S:
                del self.proposed[job_id]
                self.waiting[job_id] = row
        before = set(self.waiting)
        decision, twin = [scheduler.decide(self.now) for scheduler in self.schedulers]
        assert decision == twin, "the same input, the same decision"
        for row, placement in decision.placements:
            assert row.job_id in before
            self.check_placement(row, placement)
            del self.waiting[row.job_id]
            self.proposed[row.job_id] = (row, placement, self.now)
        self.check_order([row for row, _ in decision.placements])
        first, second = [scheduler.explain(self.now) for scheduler in self.schedulers]
        assert first == second, "the same input, the same reasons"
        self.check_reasons(first)
        again = self.schedulers[0].decide(self.now)
        assert (again.placements, again.reasons, again.expired) == ([], {}, []), "nothing changed, nothing to say"

    @precondition(lambda self: self.proposed)
    @rule(data=st.data())
    def the_store_answers(self, data: st.DataObject) -> None:
        for job_id in sorted(self.proposed):
            self.answer(job_id, accept=data.draw(st.sampled_from([True, True, False])))

    def answer(self, job_id: str, accept: bool) -> None:
        row, placement, _ = self.proposed.pop(job_id)
        usable = all(self.usable(uuid) for uuid in placement.gpu_uuids)
        if accept and usable:
            self.running[job_id] = placement.gpu_uuids
            self.set_gpus(placement.gpu_uuids, GpuState.IN_USE, free=False)
            for scheduler in self.schedulers:
                scheduler.confirm(job_id, row.attempt)
                scheduler.remove(job_id)
        else:
            for scheduler in self.schedulers:
                scheduler.reject(job_id, row.attempt)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_job_ends(self, data: st.DataObject) -> None:
        uuids = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        self.set_gpus([u for u in uuids if self.gpus[u].state is GpuState.IN_USE], GpuState.AVAILABLE, free=True)
        self.decide(0.0)

    @rule(data=st.data(), state=st.sampled_from([GpuState.DEGRADED, GpuState.RESETTING, GpuState.AVAILABLE]))
    def a_gpu_changes(self, data: st.DataObject, state: GpuState) -> None:
        broken = [uuid for uuid, row in self.gpus.items() if row.state in (GpuState.DEGRADED, GpuState.RESETTING)]
        uuid = data.draw(st.sampled_from(broken if state is GpuState.AVAILABLE and broken else sorted(self.gpus)))
        held = any(uuid in uuids for uuids in self.running.values())
        if held and state is GpuState.AVAILABLE:
            state = GpuState.IN_USE
        self.set_gpus([uuid], state, free=state is GpuState.AVAILABLE)

    @rule(data=st.data(), ready=st.sampled_from([True, True, False]))
    def a_host_changes(self, data: st.DataObject, ready: bool) -> None:
        away = [name for name, host in self.hosts.items() if host.state is not HostState.READY]
        name = data.draw(st.sampled_from(away if ready and away else sorted(self.hosts)))
        state = HostState.READY if ready else data.draw(st.sampled_from([HostState.DRAINING, HostState.LOST]))
        self.hosts[name] = replace(self.hosts[name], state=state)
        if state is HostState.LOST:
            self.lost_at = self.now
        for scheduler in self.schedulers:
            scheduler.upsert_host(self.hosts[name])

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def a_waiting_job_is_cancelled(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[job_id]
        for scheduler in self.schedulers:
            scheduler.remove(job_id)

    @invariant()
    def no_gpu_is_promised_twice(self) -> None:
        promised = [uuid for _, placement, _ in self.proposed.values() for uuid in placement.gpu_uuids]
        taken = [uuid for uuids in self.running.values() for uuid in uuids]
        assert len(set(promised)) == len(promised)
        assert not set(promised) & set(taken)

    @invariant()
    def the_schedulers_know_who_waits(self) -> None:
        for scheduler in self.schedulers:
            assert {row.job_id for row in scheduler.queue} == set(self.waiting)
            assert {job_id for job_id, _ in scheduler.proposed()} == set(self.proposed)

    def check_placement(self, row: PlacementRequest, placement: Placement) -> None:
        request = row.resources
        assert len(placement.slices) == request.hosts, "all or none"
        assert len(set(placement.hosts)) == request.hosts
        for part in placement.slices:
            assert len(set(part.gpu_uuids)) == request.gpus_per_host
            assert part.host not in row.excluded_hosts
            assert self.hosts[part.host].state is HostState.READY
            machine = self.hosts[part.host].inventory.machine
            assert can_form(machine, frozenset(part.gpu_indices), request.gpus_per_host, request.allow_cross_numa)
            for uuid, index in zip(part.gpu_uuids, part.gpu_indices, strict=True):
                assert (self.gpus[uuid].host, self.gpus[uuid].index) == (part.host, index)
                assert self.usable(uuid)
                assert uuid not in row.excluded_gpus
                assert mismatch(self.hosts[part.host].inventory.gpus[index], request) is None

    def check_order(self, placed: list[PlacementRequest]) -> None:
        """A job that only waits for others keeps its hosts, and none that fits waits at the head."""
        order = self.schedulers[0].queue.order
        for row in self.waiting.values():
            mine = {name for name in self.hosts if self.host_fits(row, name, after_jobs=True)}
            if len(mine) >= row.resources.hosts:
                for later in placed:
                    if order(row) < order(later):
                        assert not mine & set(self.proposed[later.job_id][1].hosts)
        if self.waiting:
            head = min(self.waiting.values(), key=order)
            if head.priority <= self.schedulers[0].round.hold_back_priority:
                assert self.now < self.lost_at + GATHER_S, "nobody waits longer for jobs that lost their hosts"
                return
            assert sum(self.host_fits(head, name) for name in self.hosts) < head.resources.hosts

    def check_reasons(self, reasons: dict[str, Reason]) -> None:
        for row in self.schedulers[0].queue:
            reason = reasons[row.class_key]
            assert sum(count.hosts for count in reason.counts) <= len(self.hosts)
            able = [host for host in self.hosts if self.host_fits(row, host, after_jobs=True, after_repair=True)]
            assert (reason.code == "never_fits") == (len(able) < row.resources.hosts)

    def host_fits(self, row: PlacementRequest, name: str, after_jobs: bool = False, after_repair: bool = False) -> bool:
        """By brute force: may a slice of the gang run there, now or after all jobs have ended?"""
        host = self.hosts[name]
        if not after_repair and (host.state is not HostState.READY or name in row.excluded_hosts):
            return False
        promised = {uuid for _, placement, _ in self.proposed.values() for uuid in placement.gpu_uuids}
        free = set()
        for gpu in host.inventory.gpus:
            state = self.gpus[gpu.uuid].state
            working = state in (GpuState.AVAILABLE, GpuState.IN_USE) and gpu.uuid not in row.excluded_gpus
            idle = self.gpus[gpu.uuid].free and gpu.uuid not in promised
            if mismatch(gpu, row.resources) is None and (after_repair or working) and (after_jobs or idle):
                free.add(gpu.index)
        return can_form(
            host.inventory.machine, frozenset(free), row.resources.gpus_per_host, row.resources.allow_cross_numa
        )

    def usable(self, uuid: str) -> bool:
        row = self.gpus[uuid]
        return row.free and row.state is GpuState.AVAILABLE and self.hosts[row.host].state is HostState.READY

    def set_gpus(self, uuids: list[str], state: GpuState, free: bool) -> None:
        rows = [replace(self.gpus[uuid], state=state, free=free) for uuid in uuids]
        self.gpus.update({row.uuid: row for row in rows})
        for scheduler in self.schedulers:
            scheduler.upsert_gpus(rows)


SchedulerAgainstModel.TestCase.settings = settings(max_examples=few(50), stateful_step_count=30, deadline=None)
TestSchedulerAgainstModel = pytest.mark.long(SchedulerAgainstModel.TestCase)
