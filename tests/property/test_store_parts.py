"""Parts of GPUs, CPUs and memory, taken and given back in any order: the database agrees with a simple list."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import ReservationConflict
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.store import Store, state
from gpu_platform.store.hosts import gpu_states, gpus, hosts
from gpu_platform.store.reservations import allocations, attempts, reserving
from gpu_platform.store.reservations.attempts import AttemptResult
from gpu_platform.topology.mig import mig_model, state_of
from tests.support.postgres import Databases
from tests.support.store_cluster import NOW, Cluster, check_invariants, inventory, key, placement, uuid_of

GPUS, CPUS, RAM_MIB = 3, 8, 10_000
H100 = mig_model("NVIDIA H100 80GB HBM3")
assert H100 is not None
MEMORY_MIB = 81_559

mig_grants = st.sampled_from(H100.profiles).flatmap(
    lambda profile: st.sampled_from(profile.starts).map(lambda start: H100.grant(profile, start, MEMORY_MIB))
)
shares = st.builds(
    lambda mode, percent, memory: ShareGrant(mode=mode, percent=percent, memory_mib=memory),
    st.sampled_from([ShareMode.MPS, ShareMode.MPS, ShareMode.TIME_SLICE]),
    st.integers(1, 60),
    st.integers(1, 50_000),
)
grants = st.one_of(st.none(), mig_grants, mig_grants, shares, shares)


@dataclass
class Held:
    namespace: str
    gpus: list[int]
    grant: ShareGrant | None
    cpus: int
    ram_mib: int
    running: bool = False


class StoreParts(RuleBasedStateMachine):
    def __init__(self, new_database: Callable[[], tuple[str, Callable[[], None]]]) -> None:
        super().__init__()
        url, self.drop = new_database()
        self.store = Store(url)
        self.cluster = Cluster(self.store)
        self.held: dict[AttemptKey, Held] = {}
        self.degraded: set[int] = set()
        self.drained: set[int] = set()
        self.count = 0

    def teardown(self) -> None:
        self.store.close()
        self.drop()

    @initialize()
    def register(self) -> None:
        facts = inventory("a", GPUS, mig_capable=True)
        self.cluster.report("a", inventory=facts.model_copy(update={"cpus": CPUS, "ram_mib": RAM_MIB}))

    @rule(
        namespace=st.sampled_from(["ada", "bob"]),
        wanted=st.lists(st.integers(0, GPUS - 1), min_size=1, max_size=2, unique=True),
        grant=grants,
        cpus=st.integers(0, 4),
        ram_mib=st.integers(0, 4_000),
    )
    def reserve(self, namespace: str, wanted: list[int], grant: ShareGrant | None, cpus: int, ram_mib: int) -> None:
        self.count += 1
        this = key(f"j{self.count}")
        self.cluster.queued(this.job_id, namespace=namespace)
        plan = placement({"a": wanted}, grant=grant, cpus=cpus, ram_mib=ram_mib)
        asked = Held(namespace, wanted, grant, cpus, ram_mib)
        try:
            reserving.reserve_gang(self.store, this, plan, now=NOW)
        except ReservationConflict:
            assert not self.fits(asked), "refused although there is room"
            attempts.end_attempt(self.store, this, [JobState.CANCELLED], now=NOW, actor="test")
        else:
            assert self.fits(asked), "given although there is no room"
            self.held[this] = asked

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        this = data.draw(st.sampled_from(sorted(self.held, key=str)))
        attempts.mark_running(self.store, this, NOW)
        self.held[this].running = True

    @precondition(lambda self: self.held)
    @rule(data=st.data(), faulty=st.sampled_from([False, False, False, True]))
    def end(self, data: st.DataObject, faulty: bool) -> None:
        this = data.draw(st.sampled_from(sorted(self.held, key=str)))
        freed = self.held.pop(this)
        reasons = {uuid_of("a", freed.gpus[0]): "XID"} if faulty else {}
        for _ in range(2):  # repeating it changes nothing
            attempts.end_attempt(
                self.store, this, [JobState.CANCELLED], now=NOW, actor="test", result=AttemptResult(faulty_gpus=reasons)
            )
        if faulty:
            self.degraded.add(freed.gpus[0])

    @rule(index=st.integers(0, GPUS - 1))
    def drain(self, index: int) -> None:
        gpu_states.set_gpu_state(self.store, uuid_of("a", index), GpuState.DRAINING, reason="fan", actor="op", now=NOW)
        self.drained.add(index)

    @precondition(lambda self: self.drained)
    @rule(data=st.data())
    def end_drain(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.drained)))
        gpu_states.set_gpu_state(self.store, uuid_of("a", index), GpuState.AVAILABLE, reason=None, actor="op", now=NOW)
        self.drained.discard(index)
        self.degraded.discard(index)

    @precondition(lambda self: self.degraded)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.degraded)))
        gpu_states.set_gpu_state(self.store, uuid_of("a", index), GpuState.AVAILABLE, reason=None, actor="op", now=NOW)
        self.degraded.discard(index)
        self.drained.discard(index)

    @invariant()
    def the_database_agrees(self) -> None:
        check_invariants(self.store)
        for gpu in gpus.list_gpus(self.store):
            holders = {this: held for this, held in self.held.items() if gpu.info.index in held.gpus}
            told = {AttemptKey(job_id=h.job_id, attempt=h.attempt): h.share for h in gpu.holders}
            assert told == {this: held.grant for this, held in holders.items()}
            if gpu.info.index in self.degraded:
                assert gpu.state is GpuState.DEGRADED
            elif gpu.info.index in self.drained:
                assert gpu.state is (GpuState.DRAINING if holders else GpuState.DRAINED)
            else:
                assert (gpu.state is GpuState.AVAILABLE) == (not holders)
            assert set(allocations.holders(self.store, gpu.info.uuid)) == set(holders)
        rows = hosts.read_gpus(self.store)
        for row in rows:
            parts = [h.grant for h in self.held.values() if row.index in h.gpus and h.grant is not None]
            assert (row.use is None) == (not parts)
            if row.use is not None:
                assert row.use.percent == sum(part.percent for part in parts)
                assert row.use.mig_mask == sum(part.mig_mask for part in parts)
        for room in hosts.read_host_use(self.store):
            assert room.cpus == sum(held.cpus for held in self.held.values())
            assert room.ram_mib == sum(held.ram_mib for held in self.held.values())
        for running in state.read_running(self.store):
            held = self.held[AttemptKey(job_id=running.job_id, attempt=running.attempt)]
            assert running.shares == ((held.grant,) * len(held.gpus) if held.grant else ())

    def fits(self, asked: Held) -> bool:
        if sum(held.cpus for held in self.held.values()) + asked.cpus > CPUS:
            return False
        if sum(held.ram_mib for held in self.held.values()) + asked.ram_mib > RAM_MIB:
            return False
        return all(self.gpu_fits(index, asked) for index in asked.gpus)

    def gpu_fits(self, index: int, asked: Held) -> bool:
        others = [held for held in self.held.values() if index in held.gpus]
        parts = [held.grant for held in others if held.grant is not None]
        if index in self.degraded | self.drained or len(parts) < len(others) or (asked.grant is None and others):
            return False
        if asked.grant is None:
            return True
        every = [*parts, asked.grant]
        if len({grant.mode for grant in every}) > 1:
            return False
        if asked.grant.mode is not ShareMode.MIG and any(held.namespace != asked.namespace for held in others):
            return False
        if asked.grant.mode is ShareMode.MIG:
            assert H100 is not None
            profile = H100.profile(asked.grant.mig_profile or "")
            before = state_of((g.mig_mask, g.mig_compute_slices, bool(g.mig_media)) for g in parts)
            assert profile is not None
            return asked.grant.mig_start in H100.starts(profile, before)
        return sum(g.percent for g in every) <= 100 and sum(g.memory_mib for g in every) <= MEMORY_MIB


def run(new_database: Callable[[], tuple[str, Callable[[], None]]], examples: int) -> None:
    run_state_machine_as_test(
        lambda: StoreParts(new_database),
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def on_sqlite(template: Path, folder: Path) -> Callable[[], tuple[str, Callable[[], None]]]:
    def new_database() -> tuple[str, Callable[[], None]]:
        for old in folder.glob("platform.db*"):
            old.unlink()
        shutil.copy(template, folder / "platform.db")
        return f"sqlite:///{folder / 'platform.db'}", lambda: None

    return new_database


def test_sqlite_agrees_with_the_list(sqlite_template: Path, tmp_path: Path) -> None:
    run(on_sqlite(sqlite_template, tmp_path), examples=6)


@pytest.mark.scale
def test_thousands_of_steps(sqlite_template: Path, tmp_path: Path) -> None:
    run(on_sqlite(sqlite_template, tmp_path), examples=100)


def test_postgresql_agrees_with_the_list(postgres_databases: Databases, postgres_template: str) -> None:
    def new_database() -> tuple[str, Callable[[], None]]:
        name = postgres_databases.create(postgres_template)
        return postgres_databases.url(name), lambda: postgres_databases.drop(name)

    run(new_database, examples=2)
