"""Attempts that reserve, run and end together leave the database as if they came one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, models
from gpu_platform.store.database import writing
from gpu_platform.store.reservations import attempts, batches, reserving
from gpu_platform.store.reservations.attempts import AttemptResult, EndedAttempt
from tests.support.store_cluster import NOW, Cluster, check_invariants, inventory, key, placement, uuid_of

ROUNDS = 20
HALF = ShareGrant(mode=ShareMode.MPS, percent=50, memory_mib=1000)
ENDS = (
    [JobState.COMPLETED],
    [JobState.STARTING, JobState.RUNNING, JobState.COMPLETED],
    [JobState.FAILED],
    [JobState.CANCELLED],
    [JobState.QUEUED],
    [JobState.PREEMPTED, JobState.QUEUED],
)


@pytest.fixture
def pair(store: Store, tmp_path: Any) -> Any:
    """One database in which attempts come together, and one in which they come alone."""
    alone = Store(f"sqlite:///{tmp_path / 'alone.db'}")
    alone.migrate()
    yield store, alone
    alone.close()


def some_places(chance: random.Random, keys: list[AttemptKey]) -> dict[AttemptKey, Placement]:
    """Random placements. Some want the same GPU, some more CPUs than there are, some the same GPU twice."""
    places = {}
    for one in keys:
        host = chance.choice("ab")
        gpus = chance.choices(range(8), k=chance.choice((1, 1, 1, 2)))
        cpus = chance.choice((0, 0, 2, 9))
        grant = chance.choice((None, None, HALF))
        places[one] = placement({host: gpus}, grant=grant, cpus=cpus, ram_mib=cpus * 100)
    return places


def some_ends(chance: random.Random, keys: list[AttemptKey]) -> list[EndedAttempt]:
    """Random ends, also of attempts that hold nothing, and also ends that the job's state does not allow."""
    ends = []
    for one in keys:
        faulty = {uuid_of("a", chance.randrange(8)): "XID 79"} if chance.random() < 0.1 else {}
        usage = [RankUsage(rank=0, host="a", seconds=2.0, gpu_seconds=2.0, cpu_s=1.5)] if chance.random() < 0.5 else []
        result = AttemptResult(faulty_gpus=faulty, usage=usage, placed=chance.choice((None, True)))
        ends.append(EndedAttempt(one, chance.choice(ENDS), "workflow", result))
    return ends


def refusals(step: Callable[..., Any], store: Store, each: list[tuple[Any, ...]], **named: Any) -> set[int]:
    """Which of these steps are refused, if they come alone."""
    refused = set()
    for number, given in enumerate(each):
        try:
            step(store, *given, **named)
        except PlatformError:
            refused.add(number)
    return refused


def content(store: Store) -> dict[str, Any]:
    """What the two databases must agree on. Events: which each job has, in their order."""
    tables = (models.job, models.gpu, models.allocation, models.reservation, models.queue_entry, models.usage)
    found: dict[str, Any] = {}
    with store.read() as session:
        for table in tables:
            found[table.name] = sorted(str(row) for row in session.execute(select(table)))
        host = models.host.c
        found["host"] = sorted(
            map(str, session.execute(select(host.name, host.state, host.cpus_used, host.ram_mib_used)))
        )
        events = session.execute(select(models.event).order_by(models.event.c.seq)).all()
    of_jobs: dict[str, list[Any]] = {}
    for row in events:
        of_jobs.setdefault(f"{row.job_id or row.gpu_uuid or row.host}", []).append((row.kind, row.attempt, row.data))
    return {**found, "events": of_jobs}


def room(host: str, cpus: int, ram_mib: int) -> HostInventory:
    return inventory(host, 8).model_copy(update={"cpus": cpus, "ram_mib": ram_mib})


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_a_batch_is_as_good_as_its_attempts_one_by_one(pair: tuple[Store, Store], seed: int) -> None:
    chance = random.Random(seed)
    together, alone = pair
    clusters = [Cluster(store) for store in pair]
    for cluster in clusters:
        cluster.report("a", inventory=room("a", 16, 2000))
        cluster.report("b", inventory=room("b", 8, 800))
    refused_at_all = batched_at_all = 0
    known, holders = list[AttemptKey](), set[AttemptKey]()
    for number in range(ROUNDS):
        now = NOW + timedelta(seconds=number)
        fresh = [key(f"j{number}-{one}") for one in range(chance.randrange(1, 6))]
        owner = chance.choice(("x", "y"))
        for cluster in clusters:
            for one in fresh:
                cluster.queued(one.job_id, now=now, namespace=owner)
        known = chance.sample(known, min(len(known), 8)) + fresh

        places = some_places(chance, chance.sample(known, chance.randrange(1, len(known) + 1)))
        if number % 2:  # a batch of which nothing is refused, on GPUs that the round before has given back
            places = {one: placement({"b": [gpu]}, cpus=1) for gpu, one in enumerate(fresh)}
        batch = writing(batches.take_places)(together, places, now)
        refused = refusals(reserving.reserve_gang, alone, list(places.items()), now=now)
        assert {list(places)[number] for number in refused} == batch.conflicts.keys() | batch.refused.keys()
        refused_at_all += len(refused)
        batched_at_all += len(batch.taken) > 1 and not refused
        holders = {*holders, *batch.taken}

        keys = chance.sample(known, chance.randrange(len(known) + 1))
        marked = writing(batches.mark_running)(together, keys, now)
        refused = refusals(attempts.mark_running, alone, [(one, now) for one in keys])
        assert {keys[number] for number in refused} == marked.keys()

        ends = some_ends(chance, chance.sample(known, chance.randrange(len(known) + 1)))
        if number % 2 == 0:
            known = sorted({*known, *holders}, key=str)
            ends = [EndedAttempt(one, [JobState.FAILED], "workflow", AttemptResult()) for one in known]
        ended = writing(batches.end_attempts)(together, ends, now)
        refused = refusals(_end, alone, [(end, now) for end in ends])
        assert {ends[number].key for number in refused} == ended.keys()

        assert content(together) == content(alone)
        check_invariants(together)
    assert refused_at_all > 10
    assert batched_at_all > 3


@writing
def _end(session: Session, end: EndedAttempt, now: Any) -> None:
    attempts.write_ends(session, [end], now)
