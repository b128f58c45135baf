"""A round that skips requests by the screen decides exactly as a round that looks at each of them."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, RunningRow
from gpu_platform.domain.states import GpuState
from gpu_platform.scheduling.cluster.remembered import LOOKS_PER_ENTRY, LeastRecentlyUsed
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.round import screen
from gpu_platform.scheduling.round.kept import NO_TURN
from gpu_platform.scheduling.round.screen import RequestScreen
from gpu_platform.scheduling.scheduler import Decision, Scheduler
from tests.builders import cluster, job

MACHINES = ("dgx-h100", "dgx-a100-40gb", "rtx4090-8x-all-sys", "dgx-1v")


class _Off(RequestScreen):
    works = property(lambda self: False)  # type: ignore[assignment]


class Twins:
    """Two schedulers that hear the same. Only the second has the screen."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.machines, self.hosts = cluster(), rng.randint(2, 8)
        for n in range(self.hosts):
            mps = rng.random() < 0.3
            self.machines.host(
                f"h{n}",
                rng.choice(MACHINES),
                leaf=f"l{n // 3}",
                cpus=32,
                ram_mib=100_000,
                mps=mps,
                zone=rng.choice(["a", "b"]),
            )
        self.policy = Policy(
            backfill=rng.choice(["easy", "easy", "conservative", "keep", "none"]),
            order=rng.choice(["priority", "fcfs", "shortest", "multifactor", "size_classes", "fair_share"]),
            backfill_depth=rng.choice([2, 5, 100]),
            preemption=rng.random() < 0.3,
        )
        self.schedulers = [Scheduler(self.policy), Scheduler(self.policy)]
        self.schedulers[0]._state.screen.__class__ = _Off
        for scheduler in self.schedulers:
            self.machines.tell(scheduler)
        self.now, self.jobs, self.running = 1e5, 0, dict[tuple[str, int], RunningRow]()
        self.skipped = 0

    def step(self) -> None:
        rng = self.rng
        self.now += rng.choice([0.0, 1.0, 50.0, 1000.0])
        for _ in range(rng.randint(0, 10)):
            row = self.draw()
            for scheduler in self.schedulers:
                scheduler.add(row)
        for key in [key for key in self.running if rng.random() < 0.25]:
            row = self.running.pop(key)
            for scheduler in self.schedulers:
                scheduler.upsert_gpus(GpuRow(uuid, "", 0, GpuState.AVAILABLE, free=True) for uuid in row.gpu_uuids)
                scheduler.ended(*key)
        if rng.random() < 0.3:
            self.fail_or_repair()
        self.check()

    def draw(self) -> PlacementRequest:
        rng = self.rng
        self.jobs += 1
        wanted = job(rng.choice([1, 1, 2, 3, 4, 8]), hosts=rng.choice([1, 1, 1, 2, 3]), name=f"j{self.jobs:04}")
        wanted = wanted.arrived(self.now).priority(rng.choice([0, 0, 5]))
        wanted = wanted.needs(
            memory_gib=rng.choice([None, 8, 16, 30, 60]),
            model=rng.choice([None, None, "H100", "A100", "4090", "4090|A100"]),
        )
        variants = (
            (0.6, lambda: wanted.lasting(rng.choice([10.0, 100.0, 1000.0, 5000.0]))),
            (0.2, lambda: wanted.on_host(rng.randint(1, 20), rng.randint(0, 60_000))),
            (0.1, lambda: wanted.share(rng.choice([30, 60]))),
            (0.2, lambda: wanted.across_sockets()),
            (0.1, lambda: wanted.requires("leaf")),
            (0.1, lambda: wanted.without_models("A100")),
            (
                0.1,
                lambda: wanted.min_bandwidth(rng.choice([11.0, 12.0, 100.0])) if wanted.row.gpu_count > 1 else wanted,
            ),
            (0.2, lambda: wanted.where(rng.choice(["zone=a", "zone!=a", "zone=a|b"]))),
            (0.1, lambda: wanted.where(include=["h[0-3]"], exclude=[f"h{rng.randrange(self.hosts)}"])),
            (0.1, lambda: wanted.avoiding(hosts=[f"h{rng.randrange(self.hosts)}"])),
            (0.3, lambda: wanted.of(rng.choice("ab"), rng.choice("xy"))),
            (0.05, lambda: wanted.total(rng.randint(2, 12))),
            (0.5, lambda: wanted.expected(rng.choice([3.0, 40.0, 300.0, 2000.0]))),
        )
        for chance, change in variants:
            if rng.random() < chance:
                wanted = change()
        return wanted.row

    def fail_or_repair(self) -> None:
        rng, host = self.rng, f"h{self.rng.randrange(self.hosts)}"
        uuid = rng.choice(sorted(self.machines.gpu_rows))
        broken, held = rng.random() < 0.6, any(uuid in row.gpu_uuids for row in self.running.values())
        state = GpuState.DEGRADED if broken else GpuState.IN_USE if held else GpuState.AVAILABLE
        (self.machines.draining if rng.random() < 0.5 else self.machines.ready)(host)
        for scheduler in self.schedulers:
            scheduler.upsert_gpus([GpuRow(uuid, "", 0, state, free=state is GpuState.AVAILABLE)])
            scheduler.upsert_host(self.machines.host_rows[host])

    def check(self) -> None:
        plain, screened = self.schedulers
        decisions = [scheduler.decide(self.now) for scheduler in self.schedulers]
        assert decisions[0].placements == decisions[1].placements
        assert decisions[0].preemptions == decisions[1].preemptions
        assert decisions[0].expired == decisions[1].expired
        assert plain.promises == screened.promises
        one, other = plain.round, screened.round
        for name in ("blocked_by", "blocked_for_unlimited_by"):
            assert np.array_equal(
                getattr(one._kept.outside, name) != NO_TURN, getattr(other._kept.outside, name) != NO_TURN
            ), name
        assert np.array_equal(one._kept.outside.has_reservation, other._kept.outside.has_reservation)
        assert [entry.request for entry in one.in_order()] == [entry.request for entry in other.in_order()]
        self.skipped += len(one.turns) - len(other.turns)
        if self.rng.random() < 0.3:
            assert plain.explain(self.now) == screened.explain(self.now)
        self.confirm(decisions[0])

    def confirm(self, decision: Decision) -> None:
        """The store confirms whole GPUs. The other proposals stay until they expire."""
        for row, placement in decision.placements:
            if row.needs_partial_resources:
                continue
            for scheduler in self.schedulers:
                scheduler.upsert_gpus(GpuRow(uuid, "", 0, GpuState.IN_USE, free=False) for uuid in placement.gpu_uuids)
                scheduler.confirm(row.job_id, row.attempt)
            holder = self.schedulers[0].running_jobs.get((row.job_id, row.attempt))
            assert holder is not None
            self.running[row.job_id, row.attempt] = holder


def test_the_screen_changes_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "FEWEST", 1)
    monkeypatch.setattr(screen, "FIRST_IN_VAIN", 1)
    skipped = 0
    for seed in range(int(os.environ.get("WORLDS", 6))):
        twins = Twins(seed)
        for _ in range(6):
            twins.step()
        skipped += twins.skipped
    assert skipped > 0, "the screen skipped nothing, so nothing was shown"


@given(st.integers(1, 40), st.lists(st.integers(0, 60), max_size=200))
def test_the_memory_never_holds_more_than_it_may_and_never_lies(most: int, keys: list[int]) -> None:
    memory = LeastRecentlyUsed[int]()
    for key in keys:
        known = memory.get(key)
        assert known in (None, key)
        if known is None:
            memory.put(key, key, most)
        assert len(memory) <= most
        assert memory.get(key) == key, "what was just put is found, whether there was room or not"


def test_going_through_more_keys_than_there_is_room_for_still_finds_most_of_them() -> None:
    memory, found = LeastRecentlyUsed[int](), 0
    for number in range(10 * 100):
        if memory.get(number % 100) is not None:
            found += 1
        else:
            memory.put(number % 100, number, 60)
    assert found == 9 * 60


def test_what_nobody_asks_for_any_more_makes_room() -> None:
    memory = LeastRecentlyUsed[int]()
    memory.put("old", 1, 1)
    for key in ("new", "newer") * (LOOKS_PER_ENTRY + 2):
        if memory.get(key) is None:
            memory.put(key, 2, 1)
    assert memory.get("old") is None
