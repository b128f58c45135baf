"""Threads and processes race for GPUs, with schedulers that disagree: no GPU is ever held twice.

The proof is the log: replayed in order, no reservation takes a GPU that is held.
"""

from __future__ import annotations

import multiprocessing
import random
import re
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from sqlalchemy import func, select

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import ReservationConflict, StaleEpoch, WorkflowIsOlder
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events, models
from gpu_platform.store.hosts import hosts
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import allocations, attempts, releasing, reserving
from tests.support.store_cluster import NOW, Cluster, check_invariants, inventory, key, placement

HOSTS = 4
GPUS_PER_HOST = 4
JOBS = 24
PROCESSES = 3
THREADS = 4
ROUNDS = 80
NAMES_A_GPU = re.compile(r"GPU-h\d-\d")


@dataclass
class Tally:
    """What one process saw."""

    outcomes: Counter[str] = field(default_factory=Counter)
    odd: list[str] = field(default_factory=list)

    def __iadd__(self, other: Tally) -> Tally:
        self.outcomes += other.outcomes
        self.odd += other.odd
        return self


def race(url: str, seed: int) -> Tally:
    """One process: threads that are schedulers and workflows at once, all after the same jobs and GPUs."""
    store = Store(url)
    tally, lock = Tally(), threading.Lock()

    def work(thread: int) -> None:
        mine = race_in_a_thread(store, random.Random(seed * 100 + thread))
        with lock:
            nonlocal tally
            tally += mine

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    return tally


def race_in_a_thread(store: Store, rng: random.Random) -> Tally:
    tally = Tally()
    snapshot: Sequence[tuple[str, int]] = []
    for number in range(ROUNDS):
        if number % 8 == 0:  # in between it decides on what was free then
            snapshot = [(row.host, row.index) for row in hosts.read_gpus(store) if row.free]
        job = jobs.get_job(store, f"j{rng.randrange(JOBS)}")
        this = AttemptKey(job_id=job.id, attempt=max(1, job.attempt + (job.state is JobState.QUEUED)))
        act = rng.random()
        if act < 0.7 and snapshot:
            gang = rng.sample(snapshot, k=min(len(snapshot), rng.randint(1, 6)))
            rng.shuffle(gang)
            tally.outcomes[try_to_reserve(store, this, gang, tally.odd)] += 1
        elif not job.state.holds_gpus and act < 0.95:
            continue
        elif act < 0.8:
            try:
                attempts.mark_running(store, this, NOW)
            except ReservationConflict:
                tally.outcomes["not held"] += 1
        else:
            try:
                attempts.end_attempt(store, this, [JobState.QUEUED], now=NOW, actor="race")
                tally.outcomes["ended"] += 1
            except WorkflowIsOlder:
                tally.outcomes["too late"] += 1
    return tally


def try_to_reserve(store: Store, this: AttemptKey, gang: Sequence[tuple[str, int]], odd: list[str]) -> str:
    slices: dict[str, list[int]] = {}
    for host, index in gang:
        slices.setdefault(host, []).append(index)
    try:
        reserving.reserve_gang(store, this, placement(slices), now=NOW)
    except ReservationConflict as conflict:
        if NAMES_A_GPU.search(conflict.message):
            return "conflict"
        if "released before" in conflict.message or "outdated" in conflict.message:
            return "too late"
        odd.append(conflict.message)
    except Exception as error:  # reported by the test, with all others
        if "QUEUED" not in str(error) and "ALLOCATED" not in str(error):
            odd.append(repr(error))
        return "not queued"
    return "reserved"


@pytest.mark.long
def test_no_gpu_is_ever_held_twice(store: Store, store_url: str) -> None:
    cluster = Cluster(store)
    for number in range(HOSTS):
        cluster.host(f"h{number}", gpus=GPUS_PER_HOST)
    for number in range(JOBS):
        cluster.queued(f"j{number}")
    tally = Tally()
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("spawn")) as pool:
        for seen in pool.map(race, [store_url] * PROCESSES, range(PROCESSES)):
            tally += seen
    assert tally.odd == []
    assert tally.outcomes["reserved"] > 20
    assert tally.outcomes["conflict"] > 20, f"hardly a race: {tally.outcomes}"
    check_invariants(store)
    replay(store)


def test_two_schedulers_propose_the_same_gpus_at_the_same_moment(store: Store) -> None:
    """Gangs that overlap in opposite order: one wins, the other is told which GPU, nobody deadlocks."""
    cluster = Cluster(store).host("h0", gpus=4).host("h1", gpus=4)
    plans = [{"h0": [0, 1, 2], "h1": [3, 2]}, {"h1": [2, 1, 0], "h0": [3, 2]}]
    for turn in range(15):
        barrier = threading.Barrier(2)
        names = [f"t{turn}-{scheduler}" for scheduler in range(2)]
        for name in names:
            cluster.queued(name)

        def propose(scheduler: int, names: list[str] = names, barrier: threading.Barrier = barrier) -> str | None:
            barrier.wait()
            try:
                cluster.reserve(names[scheduler], plans[scheduler])
            except ReservationConflict as conflict:
                return conflict.message
            return None

        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(propose, range(2)))
        assert answers.count(None) == 1
        assert any(answer and NAMES_A_GPU.search(answer) for answer in answers)
        check_invariants(store)
        for name in names:
            attempts.end_attempt(store, key(name), [JobState.CANCELLED], now=NOW, actor="test")
    replay(store)


def test_a_reservation_and_its_release_at_the_same_moment_leave_nothing_held(store: Store) -> None:
    """Whoever commits first, the attempt ends released: a late reserve finds the tombstone."""
    cluster = Cluster(store).host("h0", gpus=4)
    for turn in range(20):
        name = f"t{turn}"
        cluster.queued(name)
        barrier = threading.Barrier(2)

        def reserve(name: str = name, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            cluster.reserve(name, {"h0": [0, 1, 2, 3]})

        def release(name: str = name, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            releasing.release_gang(store, key(name), now=NOW)

        with ThreadPoolExecutor(2) as pool:
            reserved: Future[None] = pool.submit(reserve)
            pool.submit(release).result()
        assert reserved.exception() is None or isinstance(reserved.exception(), ReservationConflict)
        assert not allocations.is_held(store, key(name))
        assert cluster.states("h0") == ["AVAILABLE"] * 4
    check_invariants(store)


def test_parts_of_gpus_and_hosts_are_never_given_twice(store: Store) -> None:
    """Threads want MIG instances, shares, whole GPUs and CPUs of the same two GPUs, and give them back."""
    facts = inventory("h0", 2).model_copy(update={"cpus": 8, "ram_mib": 100})
    cluster = Cluster(store).host("h0", inventory=facts)
    instances = [
        ShareGrant(mode=ShareMode.MIG, percent=14, memory_mib=9_984, mig_profile="1g.10gb", mig_start=s, mig_size=1)
        for s in range(7)
    ]
    half = ShareGrant(mode=ShareMode.MPS, percent=50, memory_mib=30_000)

    def churn(worker: int) -> Counter[str]:
        rng, seen, mine = random.Random(worker), Counter[str](), list[AttemptKey]()
        for turn in range(25):
            name = f"w{worker}-{turn}"
            cluster.queued(name, namespace=rng.choice(("a", "b")))
            grant = rng.choice([None, half, half, *rng.sample(instances, 3)])
            indices = rng.sample(range(2), rng.choice((1, 1, 2)))
            plan = placement({"h0": indices}, grant=grant, cpus=rng.choice((0, 3)), ram_mib=rng.choice((0, 40)))
            try:
                reserving.reserve_gang(store, key(name), plan, now=NOW)
            except ReservationConflict:
                seen["refused"] += 1
            else:
                seen["reserved"] += 1
                mine.append(key(name))
            if mine and rng.random() < 0.6:
                attempts.end_attempt(store, mine.pop(0), [JobState.CANCELLED], now=NOW, actor="test")
        return seen

    with ThreadPoolExecutor(4) as pool:
        seen = sum(pool.map(churn, range(4)), Counter[str]())
    check_invariants(store)
    assert seen["reserved"] > 10
    assert seen["refused"] > 5, f"hardly a race: {seen}"
    for held in allocations.held_attempts(store):
        attempts.end_attempt(store, held, [JobState.CANCELLED], now=NOW, actor="test")
    check_invariants(store)
    assert cluster.states("h0") == ["AVAILABLE"] * 2
    [room] = hosts.read_host_use(store)
    assert (room.cpus, room.ram_mib) == (0, 0)


def test_once_a_new_leader_began_no_older_decision_takes_effect(store: Store) -> None:
    cluster = Cluster(store).host("h0", gpus=1)
    old = leader.begin_epoch(store, "old", NOW)
    cluster.queued("j0")
    stopped = threading.Event()
    refused: list[StaleEpoch] = []

    def old_leader() -> None:
        attempt = 0
        while not stopped.is_set():
            attempt += 1
            try:
                cluster.reserve("j0", {"h0": [0]}, attempt=attempt, epoch=old)
            except StaleEpoch as error:
                refused.append(error)
                continue
            attempts.end_attempt(store, key("j0", attempt), [JobState.QUEUED], now=NOW, actor="test")

    thread = threading.Thread(target=old_leader)
    thread.start()
    while by_epoch(store, old) < 5:
        pass
    leader.begin_epoch(store, "new", NOW)
    after_the_change = by_epoch(store, old)
    while len(refused) < 5:
        pass
    stopped.set()
    thread.join()
    assert by_epoch(store, old) == after_the_change


def test_the_line_survives_many_hands(store: Store) -> None:
    """Enqueue, dequeue and read at once: a row per waiting job, none for others."""
    cluster = Cluster(store)
    for number in range(10):
        cluster.queued(f"j{number}")

    def churn(worker: int) -> None:
        rng = random.Random(worker)
        for _ in range(60):
            name = f"j{rng.randrange(10)}"
            if rng.random() < 0.5:
                cluster.enqueue(name)
            else:
                queue.dequeue(store, name, 1)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(4)))
    expected: set[str] = set()
    for event in events.read_events(store, 0, limit=10_000):
        if event.kind == "queue.added":
            expected.add(str(event.job_id))
        elif event.kind == "queue.removed":
            expected.discard(str(event.job_id))
    assert {row.job_id for row in queue.read_queue(store)} == expected


def by_epoch(store: Store, epoch: int) -> int:
    claims = select(func.count()).select_from(models.reservation)
    with store.read() as session:
        return session.scalar(claims.where(models.reservation.c.epoch == epoch)) or 0


def replay(store: Store) -> None:
    """Follow the log from the beginning: every GPU has at most one holder at every moment."""
    holder: dict[str, tuple[str | None, int | None]] = {}
    for event in events.read_events(store, 0, limit=100_000):
        this = (event.job_id, event.attempt)
        if event.kind == "gang.reserved":
            for uuid in event.data["gpus"]:
                assert uuid not in holder, f"{uuid} was taken by {this} while {holder[uuid]} held it"
                holder[uuid] = this
        elif event.kind == "gang.released":
            for uuid in event.data["gpus"]:
                assert holder.pop(uuid) == this
    held = {uuid for uuid, this in holder.items() if this[0] is not None}
    with store.read() as session:
        current = select(models.allocation.c.gpu_uuid).where(models.allocation.c.released_at.is_(None))
        assert held == set(session.scalars(current))
