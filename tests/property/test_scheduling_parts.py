"""Parts of GPUs, CPUs and memory of hosts: whatever happens, nothing is promised twice, and what fits is placed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gpu_platform.domain.hosts.gpu import GpuInfo
from gpu_platform.domain.hosts.share import GpuUse, Share, ShareGrant, ShareMode, first_use
from gpu_platform.domain.jobs.placement import HostSlice, Placement
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, HostUse
from gpu_platform.domain.states import GpuState
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.mig import mig_model, state_of
from tests.builders import cluster, job
from tests.support.examples import few

TIMEOUT_S = 10.0
MACHINES = ("dgx-h100", "a100-pcie-4x-one-bridge", "rtx4090-8x-all-sys")
CPUS, RAM_MIB = 16, 64_000

asks = st.one_of(
    st.builds(lambda n: job(n).across_sockets(), st.sampled_from([1, 2, 8])),
    st.builds(lambda percent, memory: job().share(percent, memory), st.integers(1, 99), st.integers(1, 50_000)),
    st.builds(lambda mode: job().share(40, 1000, mode), st.sampled_from([ShareMode.MPS, ShareMode.TIME_SLICE])),
    st.builds(lambda n: job(n).share(30).across_sockets(), st.integers(2, 4)),
    st.builds(lambda p: job().mig(p), st.sampled_from(["1g.10gb", "1g.10gb+me", "2g.20gb", "3g.40gb", "7g.80gb"])),
    st.builds(lambda c, r: job().share(20).on_host(c, r), st.integers(0, 8), st.integers(0, 30_000)),
    st.builds(lambda c: job().on_host(c), st.integers(1, 16)),
)


@dataclass
class Held:
    row: PlacementRequest
    placement: Placement

    @property
    def parts(self) -> list[tuple[HostSlice, str, ShareGrant | None]]:
        return [
            (part, uuid, part.shares[place] if part.shares else None)
            for part in self.placement.slices
            for place, uuid in enumerate(part.gpu_uuids)
        ]


class PartsAgainstModel(RuleBasedStateMachine):
    """Two schedulers hear the same; what they propose is checked against a list of who has what."""

    def __init__(self) -> None:
        super().__init__()
        self.schedulers = Scheduler(), Scheduler()
        self.hosts: dict[str, HostRow] = {}
        self.gpus: dict[str, tuple[str, GpuInfo]] = {}
        self.waiting: dict[str, PlacementRequest] = {}
        self.proposed: dict[str, tuple[Held, float]] = {}
        self.running: dict[str, Held] = {}
        self.broken: set[str] = set()
        self.now, self.count = 0.0, 0

    @initialize(kinds=st.lists(st.tuples(st.sampled_from(MACHINES), st.booleans()), min_size=1, max_size=2))
    def start(self, kinds: list[tuple[str, bool]]) -> None:
        machines = cluster()
        for number, (machine, mps) in enumerate(kinds):
            machines.host(f"h{number}", machine, cpus=CPUS, ram_mib=RAM_MIB, mps=mps)
        self.hosts = machines.host_rows
        self.gpus = {gpu.uuid: (name, gpu) for name, row in self.hosts.items() for gpu in row.inventory.gpus}
        for scheduler in self.schedulers:
            machines.tell(scheduler)

    @rule(asks=st.lists(asks, min_size=1, max_size=4), namespace=st.sampled_from(["a", "b"]))
    def jobs_arrive(self, asks: list[job], namespace: str) -> None:
        for ask in asks:
            self.count += 1
            row = replace(ask.of(namespace).row, job_id=f"j{self.count}", enqueued_at=float(self.count))
            self.waiting[row.job_id] = row
            for scheduler in self.schedulers:
                scheduler.add(row)
        self.decide()

    @rule()
    def proposals_expire(self) -> None:
        self.now += TIMEOUT_S + 1
        for job_id, (held, _) in list(self.proposed.items()):
            self.waiting[job_id] = held.row
        self.proposed.clear()
        self.decide()

    @precondition(lambda self: self.proposed)
    @rule(data=st.data())
    def the_store_answers(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.proposed)))
        held, _ = self.proposed.pop(job_id)
        if data.draw(st.integers(0, 3)) and not self.broken & set(held.placement.gpu_uuids):
            self.running[job_id] = held
            self.tell(held)
            for scheduler in self.schedulers:
                scheduler.confirm(job_id, held.row.attempt)
        else:
            for scheduler in self.schedulers:
                scheduler.reject(job_id, held.row.attempt)
        self.decide()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def a_job_ends(self, data: st.DataObject) -> None:
        held = self.running.pop(data.draw(st.sampled_from(sorted(self.running))))
        self.tell(held)
        for scheduler in self.schedulers:
            scheduler.ended(held.row.job_id, held.row.attempt)
        self.decide()

    @rule(data=st.data())
    def a_gpu_breaks_or_returns(self, data: st.DataObject) -> None:
        uuid = data.draw(st.sampled_from(sorted(self.gpus)))
        self.broken ^= {uuid}
        for scheduler in self.schedulers:
            scheduler.upsert_gpus([self.gpu_row(uuid)])
        self.decide()

    def decide(self) -> None:
        decision, twin = [scheduler.decide(self.now) for scheduler in self.schedulers]
        assert decision == twin, "the same input, the same decision"
        for row, placement in decision.placements:
            del self.waiting[row.job_id]
            self.check_shape(row, placement)
            self.proposed[row.job_id] = Held(row, placement), self.now
        self.check_the_head()

    def check_shape(self, row: PlacementRequest, placement: Placement) -> None:
        (part,) = placement.slices
        assert len(set(part.gpu_uuids)) == row.resources.gpus_per_host
        assert not self.broken & set(part.gpu_uuids)
        share, mps = row.resources.share, self.hosts[part.host].inventory.mps
        assert len(part.shares) == (row.resources.gpus_per_host if share else 0)
        for grant in part.shares:
            assert share is not None
            if share.mig_profile is not None:
                assert (grant.mode, grant.mig_profile) == (ShareMode.MIG, share.mig_profile)
            else:
                assert (grant.percent, grant.memory_mib) == (share.percent, share.memory_mib)
                turns = not mps or share.mode is ShareMode.TIME_SLICE
                assert grant.mode is (ShareMode.TIME_SLICE if turns else ShareMode.MPS)
                assert share.mode in (None, grant.mode)

    def check_the_head(self) -> None:
        """The first job in line waits only if it fits nowhere: counted GPU by GPU."""
        if self.waiting:
            head = min(self.schedulers[0].queue, key=self.schedulers[0].queue.order)
            assert not any(self.could_take(name, head) for name in self.hosts), head
            reason = self.schedulers[0].reasons[head.class_key]
            assert sum(count.hosts for count in reason.counts) == len(self.hosts), reason

    def could_take(self, host: str, row: PlacementRequest) -> bool:
        request, taken = row.resources, [h for h in self.held() if h.placement.slices[0].host == host]
        cpus = sum(h.row.resources.cpus_per_host for h in taken)
        ram = sum(h.row.resources.ram_mib_per_host for h in taken)
        if cpus + request.cpus_per_host > CPUS or ram + request.ram_mib_per_host > RAM_MIB:
            return False
        able = [uuid for uuid, (name, _) in self.gpus.items() if name == host and self.has_room(uuid, row)]
        if request.share is not None and request.gpus_per_host > 1 and not request.allow_cross_numa:
            return False
        return len(able) >= request.gpus_per_host

    def has_room(self, uuid: str, row: PlacementRequest) -> bool:
        host, gpu = self.gpus[uuid]
        share, holders = row.resources.share, self.holders(uuid)
        if uuid in self.broken:
            return False
        if share is None:
            return not holders
        if any(grant is None for _, grant in holders):
            return False
        grants = [grant for _, grant in holders if grant is not None]
        if share.mig_profile is not None:
            return all(g.mode is ShareMode.MIG for g in grants) and _has_mig_room(gpu, grants, share)
        mps = self.hosts[host].inventory.mps and share.mode is not ShareMode.TIME_SLICE
        mode = ShareMode.MPS if mps else ShareMode.TIME_SLICE
        return (
            share.mode in (None, mode)
            and all(g.mode is mode for g in grants)
            and all(held.row.namespace == row.namespace for held, _ in holders)
            and sum(g.percent for g in grants) + (share.percent or 0) <= 100
            and sum(g.memory_mib for g in grants) + (share.memory_mib or 0) <= gpu.memory_mib
        )

    @invariant()
    def nothing_is_given_twice(self) -> None:
        for uuid, (_, gpu) in self.gpus.items():
            holders = self.holders(uuid)
            grants = [grant for _, grant in holders if grant is not None]
            if len(grants) < len(holders):
                assert len(holders) == 1, "a whole GPU has one holder"
                continue
            assert sum(grant.percent for grant in grants) <= 100
            assert sum(grant.memory_mib for grant in grants) <= gpu.memory_mib
            assert len({grant.mode for grant in grants}) <= 1
            if grants and grants[0].mode is ShareMode.MIG:
                slices = [s for g in grants for s in range(8) if g.mig_mask >> s & 1]
                assert len(set(slices)) == len(slices)
                assert sum(grant.mig_compute_slices for grant in grants) <= 7
                assert sum(grant.mig_media for grant in grants) <= 1
            else:
                assert len({held.row.namespace for held, _ in holders}) <= 1
        for name in self.hosts:
            there = [held.row.resources for held in self.held() if held.placement.slices[0].host == name]
            assert sum(request.cpus_per_host for request in there) <= CPUS
            assert sum(request.ram_mib_per_host for request in there) <= RAM_MIB

    @invariant()
    def all_that_ended_is_free(self) -> None:
        for scheduler in self.schedulers:
            assert {row.job_id for row in scheduler.running_jobs} == {held.row.job_id for held in self.held()}
            if not self.running and not self.proposed and self.hosts:
                snapshot = scheduler.snapshot
                assert not snapshot.shared.partly.any()
                assert not snapshot.shared.percent.any()
                assert not snapshot.held.any()
                assert not (snapshot.cpus_used + snapshot.cpus_held + snapshot.ram_mib_held).any()

    def held(self) -> list[Held]:
        return [*self.running.values(), *(held for held, _ in self.proposed.values())]

    def holders(self, uuid: str) -> list[tuple[Held, ShareGrant | None]]:
        return [(held, grant) for held in self.held() for _, of, grant in held.parts if of == uuid]

    def tell(self, held: Held) -> None:
        """What the store would say of everything that the job had."""
        host = held.placement.slices[0].host
        there = [h.row.resources for h in self.running.values() if h.placement.slices[0].host == host]
        use = HostUse(host, sum(r.cpus_per_host for r in there), sum(r.ram_mib_per_host for r in there))
        for scheduler in self.schedulers:
            scheduler.upsert_gpus([self.gpu_row(uuid) for uuid in held.placement.gpu_uuids])
            scheduler.upsert_use([use])

    def gpu_row(self, uuid: str) -> GpuRow:
        host, gpu = self.gpus[uuid]
        use: GpuUse | None = None
        running = [(h, g) for h in self.running.values() for _, of, g in h.parts if of == uuid]
        for held, grant in running:
            if grant is not None:
                use = use.plus(grant) if use else first_use(grant, held.row.namespace)
        state = GpuState.IN_USE if running else GpuState.AVAILABLE
        state = GpuState.DEGRADED if uuid in self.broken else state
        return GpuRow(uuid, host, gpu.index, state, free=state is GpuState.AVAILABLE, use=use)


def _has_mig_room(gpu: GpuInfo, grants: list[ShareGrant], share: Share) -> bool:
    model = mig_model(gpu.model)
    profile = model.profile(share.mig_profile or "") if model else None
    if model is None or profile is None:
        return False
    state = state_of((g.mig_mask, g.mig_compute_slices, bool(g.mig_media)) for g in grants)
    return bool(model.starts(profile, state))


PartsAgainstModel.TestCase.settings = settings(max_examples=few(40), stateful_step_count=30, deadline=None)
TestPartsAgainstModel = PartsAgainstModel.TestCase
