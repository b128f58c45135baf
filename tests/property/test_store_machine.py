"""Whatever is done to gangs, GPUs and hosts in whatever order: the database agrees with a simple model of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import IllegalTransition, PlatformError, ReservationConflict
from gpu_platform.domain.states import GpuState, HostState, JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpu_states, gpus, hosts
from gpu_platform.store.jobs import jobs
from gpu_platform.store.leadership import leader, leases
from gpu_platform.store.reservations import allocations, attempts, releasing, reserving
from gpu_platform.store.restoring import restoring
from tests.support.postgres import Databases
from tests.support.store_cluster import (
    NOW,
    TTL_S,
    Cluster,
    check_invariants,
    expire_leases,
    inventory,
    key,
    placement,
    uuid_of,
)

HOSTS = ("a", "b")
GPUS_PER_HOST = 3
GPUS = [(host, index) for host in HOSTS for index in range(GPUS_PER_HOST)]
MAX_RESET_FAILURES = 2

some_gpus = st.lists(st.sampled_from(GPUS), min_size=1, max_size=4, unique=True)
subset = st.sets(st.integers(0, GPUS_PER_HOST - 1))
a_host = st.sampled_from(HOSTS)
a_gpu = st.sampled_from(GPUS)


class StoreMachine(RuleBasedStateMachine):
    attempts_made = Bundle("attempts_made")

    def __init__(self, new_database: Callable[[], tuple[str, Callable[[], None]]]) -> None:
        super().__init__()
        url, self.drop = new_database()
        self.store = Store(url)
        self.cluster = Cluster(self.store)
        self.now = NOW
        # The model.
        self.jobs: dict[str, tuple[JobState, int]] = {}
        self.held: dict[AttemptKey, list[tuple[str, int]]] = {}
        self.running: set[AttemptKey] = set()
        self.lost_attempts: set[tuple[AttemptKey, str]] = set()
        self.closed: set[AttemptKey] = set()
        self.out: dict[tuple[str, int], tuple[GpuState, str]] = {}
        self.present: set[tuple[str, int]] = set()
        self.degraded: dict[str, set[int]] = {}
        self.reset_failures: dict[tuple[str, int], int] = {}
        self.host_state: dict[str, HostState] = {}
        self.cordoned: set[str] = set()
        self.cordoned_gpus: set[tuple[str, int]] = set()
        self.lease: dict[str, float] = {}

    def teardown(self) -> None:
        self.store.close()
        self.drop()

    @initialize()
    def register(self) -> None:
        for host in HOSTS:
            self.cluster.host(host, gpus=GPUS_PER_HOST)
            self.host_state[host] = HostState.READY
            self.degraded[host] = set()
            self.lease[host] = TTL_S
        self.present = set(GPUS)
        # A new leader spares what only a later state of the database may know: see tests/unit/store.
        leader.begin_epoch(self.store, "leads", NOW - 2 * restoring.SPARED_FOR)

    # ---- jobs and gangs ----

    @rule(target=attempts_made)
    def submit(self) -> AttemptKey:
        job_id = f"j{len(self.jobs)}"
        self.cluster.queued(job_id)
        self.jobs[job_id] = (JobState.QUEUED, 0)
        return key(job_id)

    @rule(this=attempts_made, wanted=some_gpus)
    def reserve(self, this: AttemptKey, wanted: list[tuple[str, int]]) -> None:
        plan = placement({host: [index for h, index in wanted if h == host] for host in {h for h, _ in wanted}})
        state, attempt = self.jobs[this.job_id]
        free = all(self.gpu_state(gpu) is GpuState.AVAILABLE for gpu in wanted)
        ready = all(self.host_state[host] is HostState.READY for host, _ in wanted)
        if this in self.held and sorted(self.held[this]) == sorted(wanted):
            reserving.reserve_gang(self.store, this, plan, now=NOW)
        elif this in self.held or this in self.closed:
            self.refused(ReservationConflict, lambda: reserving.reserve_gang(self.store, this, plan, now=NOW))
        elif state is not JobState.QUEUED:
            self.refused(IllegalTransition, lambda: reserving.reserve_gang(self.store, this, plan, now=NOW))
        elif attempt > this.attempt or not free or not ready:
            self.refused(ReservationConflict, lambda: reserving.reserve_gang(self.store, this, plan, now=NOW))
        else:
            reserving.reserve_gang(self.store, this, plan, now=NOW)
            self.held[this] = wanted
            self.jobs[this.job_id] = (JobState.ALLOCATED, this.attempt)

    @rule(this=attempts_made)
    def mark_running(self, this: AttemptKey) -> None:
        state, attempt = self.jobs[this.job_id]
        if this not in self.held:
            self.refused(ReservationConflict, lambda: attempts.mark_running(self.store, this, NOW))
        elif state not in (JobState.ALLOCATED, JobState.RUNNING):
            self.refused(IllegalTransition, lambda: attempts.mark_running(self.store, this, NOW))
        else:
            attempts.mark_running(self.store, this, NOW)
            self.running.add(this)
            self.jobs[this.job_id] = (JobState.RUNNING, attempt)

    @rule(this=attempts_made, quarantined=some_gpus)
    def release(self, this: AttemptKey, quarantined: list[tuple[str, int]]) -> None:
        reasons = {uuid_of(*gpu): "XID" for gpu in quarantined}
        releasing.release_gang(self.store, this, now=NOW, faulty_gpus=reasons)
        self.model_release(this, quarantined)

    @rule(target=attempts_made, this=consumes(attempts_made))
    def retry(self, this: AttemptKey) -> AttemptKey:
        _, attempt = self.jobs[this.job_id]
        attempts.end_attempt(self.store, this, [JobState.QUEUED], now=NOW, actor="test")
        self.model_release(this, [])
        self.jobs[this.job_id] = (JobState.QUEUED, attempt)
        return key(this.job_id, this.attempt + 1)

    @rule(this=consumes(attempts_made))
    def finish(self, this: AttemptKey) -> None:
        attempts.end_attempt(self.store, this, [JobState.CANCELLED], now=NOW, actor="test")
        self.model_release(this, [])
        self.jobs[this.job_id] = (JobState.CANCELLED, self.jobs[this.job_id][1])

    # ---- GPUs ----

    @rule(gpu=a_gpu, state=st.sampled_from([GpuState.AVAILABLE, GpuState.DEGRADED, GpuState.OFFLINE]))
    def operator_sets_gpu(self, gpu: tuple[str, int], state: GpuState) -> None:
        def act() -> None:
            gpu_states.set_gpu_state(self.store, uuid_of(*gpu), state, reason="op", actor="op", now=NOW)

        current = self.gpu_state(gpu)
        if (state is GpuState.AVAILABLE and gpu not in self.present) or (
            state is GpuState.DEGRADED and current is GpuState.OFFLINE
        ):
            self.refused(IllegalTransition, act)
            return
        act()
        if state is GpuState.AVAILABLE:
            self.out.pop(gpu, None)
            self.cordoned_gpus.discard(gpu)
            out_of_service = current not in (GpuState.AVAILABLE, GpuState.ALLOCATED, GpuState.IN_USE)
            if out_of_service and gpu[1] in self.degraded[gpu[0]]:  # its own host still calls it unfit
                self.out[gpu] = (GpuState.DEGRADED, "host")
        else:
            self.out[gpu] = (state, "operator")

    @rule(gpu=a_gpu)
    def operator_drains_gpu(self, gpu: tuple[str, int]) -> None:
        before = self.gpu_state(gpu)
        found = gpu_states.set_gpu_state(
            self.store, uuid_of(*gpu), GpuState.DRAINING, reason="fan", actor="op", now=NOW
        )
        self.cordoned_gpus.add(gpu)
        assert found.state is self.gpu_state(gpu)
        assert (found.reason == "fan") == (found.state in (GpuState.DRAINING, GpuState.DRAINED)), before

    @rule(gpu=a_gpu)
    def begin_reset(self, gpu: tuple[str, int]) -> None:
        gpu_states.begin_reset(self.store, uuid_of(*gpu), "XID", NOW)
        if self.out.get(gpu) != (GpuState.OFFLINE, "operator"):
            self.out[gpu] = (GpuState.RESETTING, "remediation")

    @rule(gpu=a_gpu, ok=st.booleans())
    def finish_reset(self, gpu: tuple[str, int], ok: bool) -> None:
        answer = gpu_states.finish_reset(self.store, uuid_of(*gpu), ok, NOW, MAX_RESET_FAILURES)
        if self.gpu_state(gpu) is GpuState.RESETTING:
            failures = self.reset_failures[gpu] = 0 if ok else self.reset_failures.get(gpu, 0) + 1
            del self.out[gpu]
            if ok and gpu not in self.present:
                self.out[gpu] = (GpuState.OFFLINE, "inventory")
            elif not ok:
                state = GpuState.OFFLINE if failures >= MAX_RESET_FAILURES else GpuState.DEGRADED
                self.out[gpu] = (state, "remediation")
        assert answer is self.gpu_state(gpu)

    # ---- hosts ----

    @rule(host=a_host, missing=subset, hot=subset, alive=st.lists(attempts_made, max_size=3))
    def report(self, host: str, missing: set[int], hot: set[int], alive: list[AttemptKey]) -> None:
        shown = [index for index in range(GPUS_PER_HOST) if index not in missing]
        full = inventory(host, GPUS_PER_HOST)
        answer = self.cluster.report(
            host,
            now=self.now,
            inventory=full.model_copy(update={"gpus": [full.gpus[index] for index in shown]}),
            degraded={uuid_of(host, index): "hot" for index in hot},
            attempts=alive,
        )
        self.lease[host] = (self.now - NOW).total_seconds() + TTL_S
        for index in range(GPUS_PER_HOST):
            self.model_report_gpu((host, index), index in shown, index in hot)
        self.degraded[host] = hot
        stale = [this for this in alive if not self.holds(this, host) or (this, host) in self.lost_attempts]
        assert answer.kill == stale
        if self.host_state[host] is HostState.LOST and not stale:
            self.host_state[host] = HostState.DRAINING if host in self.cordoned else HostState.READY
            self.model_drain(host)

    @rule(seconds=st.sampled_from([1, int(TTL_S) + 1]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)
        elapsed = (self.now - NOW).total_seconds()
        lost = expire_leases(self.store, self.now)
        expected = [h for h in HOSTS if self.host_state[h] is not HostState.LOST and self.lease[h] < elapsed]
        assert [host.name for host in lost] == expected
        for host in lost:
            assert set(host.jobs) == {this for this in self.held if self.holds(this, host.name)}
            self.model_lose(host.name)

    @rule(host=a_host)
    def drain(self, host: str) -> None:
        hosts.set_host_state(self.store, host, HostState.DRAINING, reason="r", actor="op", now=NOW)
        self.cordoned.add(host)
        if self.host_state[host] is HostState.READY:
            self.host_state[host] = HostState.DRAINING
        self.model_drain(host)

    @precondition(lambda self: self.cordoned)
    @rule(host=a_host)
    def put_online(self, host: str) -> None:
        hosts.set_host_state(self.store, host, HostState.READY, reason=None, actor="op", now=NOW)
        self.cordoned.discard(host)
        if self.host_state[host] is not HostState.LOST:
            self.host_state[host] = HostState.READY

    # ---- what must hold after each step ----

    @invariant()
    def the_database_agrees(self) -> None:
        check_invariants(self.store)
        listed = {(gpu.host, gpu.info.index): gpu for gpu in gpus.list_gpus(self.store)}
        for gpu, row in listed.items():
            holder = next((this for this, taken in self.held.items() if gpu in taken), None)
            assert (row.state, row.job_id) == (self.gpu_state(gpu), holder and holder.job_id), gpu
        assert {host.name: host.state for host in hosts.list_hosts(self.store, self.now)} == self.host_state
        assert set(allocations.held_attempts(self.store)) == set(self.held)
        stored = {job.id: (job.state, job.attempt) for job in jobs.list_jobs(self.store, limit=1000)[0]}
        assert stored == self.jobs
        lost = {(this, host.name) for host in leases.lost_hosts_with_attempts(self.store) for this in host.jobs}
        assert lost == self.lost_attempts

    # ---- the model ----

    def gpu_state(self, gpu: tuple[str, int]) -> GpuState:
        if gpu in self.out:
            return self.out[gpu][0]
        holder = next((this for this, taken in self.held.items() if gpu in taken), None)
        if gpu in self.cordoned_gpus:
            return GpuState.DRAINED if holder is None else GpuState.DRAINING
        if holder is None:
            return GpuState.AVAILABLE
        return GpuState.IN_USE if holder in self.running else GpuState.ALLOCATED

    def holds(self, this: AttemptKey, host: str) -> bool:
        return any(name == host for name, _ in self.held.get(this, []))

    def model_release(self, this: AttemptKey, quarantined: list[tuple[str, int]]) -> None:
        self.closed.add(this)
        freed = self.held.pop(this, [])
        for gpu in freed:
            if gpu in quarantined and gpu not in self.out:
                self.out[gpu] = (GpuState.DEGRADED, "fault")
        self.lost_attempts = {(lost, host) for lost, host in self.lost_attempts if lost != this}
        for host in {host for host, _ in freed}:
            self.model_drain(host)

    def model_report_gpu(self, gpu: tuple[str, int], shown: bool, hot: bool) -> None:
        state, source = self.out.get(gpu, (None, None))
        if shown and (state, source) == (GpuState.OFFLINE, "inventory"):
            del self.out[gpu]
        elif not shown and gpu in self.present and state not in (GpuState.OFFLINE, GpuState.RESETTING):
            self.out[gpu] = (GpuState.OFFLINE, "inventory")
        (self.present.add if shown else self.present.discard)(gpu)
        if hot and gpu not in self.out:
            self.out[gpu] = (GpuState.DEGRADED, "host")
        elif not hot and self.out.get(gpu) == (GpuState.DEGRADED, "host"):
            del self.out[gpu]

    def model_drain(self, host: str) -> None:
        if self.host_state[host] is HostState.DRAINING and not any(self.holds(this, host) for this in self.held):
            self.host_state[host] = HostState.DRAINED

    def model_lose(self, host: str) -> None:
        self.host_state[host] = HostState.LOST
        self.lost_attempts |= {(this, host) for this in self.held if self.holds(this, host)}

    def refused(self, error: type[PlatformError], act: Callable[[], None]) -> None:
        with pytest.raises(error):
            act()


def run(new_database: Callable[[], tuple[str, Callable[[], None]]], examples: int) -> None:
    run_state_machine_as_test(
        lambda: StoreMachine(new_database),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.long
def test_sqlite_agrees_with_the_model(sqlite_template: Path, tmp_path: Path) -> None:
    path = tmp_path / "platform.db"

    def new_database() -> tuple[str, Callable[[], None]]:
        for old in tmp_path.glob("platform.db*"):
            old.unlink()
        shutil.copy(sqlite_template, path)
        return f"sqlite:///{path}", lambda: None

    run(new_database, examples=24)


@pytest.mark.long
def test_postgresql_agrees_with_the_model(postgres_databases: Databases, postgres_template: str) -> None:
    def new_database() -> tuple[str, Callable[[], None]]:
        name = postgres_databases.create(postgres_template)
        return postgres_databases.url(name), lambda: postgres_databases.drop(name)

    run(new_database, examples=10)
