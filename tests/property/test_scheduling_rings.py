"""Preemption comes to an end: jobs never stop each other in a ring, whatever the guarantees of their namespaces."""

from __future__ import annotations

import os
from dataclasses import replace
from random import Random

import pytest

from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.quota import AllocationPolicy, Namespace, Quotas
from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.preempting.preemption import Preemption
from gpu_platform.scheduling.preempting.victim_planning import PREEMPT_AGAIN_S, VictimPlanner
from tests.builders import cluster, job
from tests.support.virtual_time import VirtualTime

WORLDS = int(os.environ.get("WORLDS", "12"))
FIRST = int(os.environ.get("FIRST_WORLD", "0"))
MOST_STOPS = 150
"""Far more than a dozen jobs need until the most important ones run."""


class World:
    """Jobs arrive one after another and never end by themselves. Whoever is stopped waits again."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        names = [
            Namespace(
                name=name, guaranteed_gpus=rng.choice([0, 0, 2, 4, 6, 8]), limit_gpus=rng.choice([None, None, 8, 12])
            )
            for name in "abc"
        ]
        policy = Policy(
            quotas=Quotas(
                policy=AllocationPolicy.HYBRID, reserved_ratio=rng.choice([0.0, 0.0, 0.5]), namespaces=tuple(names)
            ),
            preemption=True,
            min_run_s=0.0,
            order=rng.choice(["priority", "fair_share"]),
            backfill=rng.choice(["easy", "conservative", "none"]),
        )
        self.hosts = rng.choice([1, 1, 2, 3])
        machines = cluster().hosts(self.hosts)
        self.play = VirtualTime(machines, machines.scheduler(policy), lambda row: 1e9)
        self.rows: dict[str, PlacementRequest] = {}
        self.stops = 0

    def run(self) -> None:
        """Let jobs arrive, each when nobody is stopped any more."""
        for number in range(self.rng.randint(3, 12)):
            self.play.now += 1.0
            self.play.submit(self._job(f"j{number}"))
            self._settle()

    def _job(self, name: str) -> PlacementRequest:
        rng = self.rng
        asked = job(rng.choice([1, 1, 2, 3, 4, 6, 8, 8]), rng.choice([1, 1, 1, min(2, self.hosts)]), name)
        asked = asked.of(rng.choice("abc")).priority(rng.choice([0, 0, 1, 2, 5, 9])).arrived(self.play.now)
        self.rows[name] = replace(asked.row, preemptible=rng.random() < 0.95)
        return self.rows[name]

    def _settle(self) -> None:
        play, quiet = self.play, 0
        while quiet < 3:
            if play.last.preemptions:
                play.now += 1.0
                for preemption in play.last.preemptions:
                    self._stop(preemption)
                quiet = 0
            elif not play.scheduler.unfinished:
                play.now += PREEMPT_AGAIN_S + 1.0
                quiet += 1
            play.decide()

    def _stop(self, preemption: Preemption) -> None:
        for name, attempt in preemption.victims:
            self.stops += 1
            assert self.stops <= MOST_STOPS, "jobs stop each other without an end"
            self.play._end(name)
            self.play.scheduler.ended(name, attempt)
            self.rows[name] = replace(self.rows[name], attempt=attempt + 1, enqueued_at=self.play.now)
            self.play.scheduler.add(self.rows[name])


@pytest.mark.parametrize("seed", [*range(FIRST, FIRST + WORLDS), 132, 748, 796])
def test_preemption_comes_to_an_end(seed: int) -> None:
    World(seed).run()


def test_a_ring_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the worlds would prove nothing."""
    monkeypatch.setattr(VictimPlanner, "_owned", lambda self, row, moment: frozenset())
    found = 0
    for seed in range(400):
        try:
            World(seed).run()
        except AssertionError:
            found += 1
            break
    assert found
