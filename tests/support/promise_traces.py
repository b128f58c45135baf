"""What happens in a random small world: jobs that arrive, hosts that are lost, leaders and policies that change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from gpu_platform.domain.jobs.resources import Strategy
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.quota import AllocationPolicy, Namespace, Quotas
from gpu_platform.domain.placing.scheduler_input import HostRow
from gpu_platform.scheduling.policy import MoveBudget, Policy
from gpu_platform.scheduling.queueing.queue_order import ORDERS
from tests.builders import cluster, job

RESTART_S = 2.0
"""What a move costs each GPU in a world, besides lost work."""
LENT = Quotas(
    policy=AllocationPolicy.HYBRID,
    reserved_ratio=0.0,
    namespaces=(Namespace(name="a", guaranteed_gpus=6), Namespace(name="b", limit_gpus=12)),
)


@dataclass(frozen=True)
class Arrival:
    """A job, and what really becomes of it."""

    row: PlacementRequest
    runs_s: float
    gives_up_at: float | None = None


@dataclass(frozen=True)
class Trace:
    """What happens in one world."""

    hosts: tuple[HostRow, ...]
    jobs: tuple[Arrival, ...]
    policy: Policy
    outages: tuple[tuple[float, str, int | None, float], ...] = ()
    """(from, host, GPU or the whole host, until)."""
    looks: tuple[float, ...] = ()
    """When the leader decides although nothing happened."""
    new_leaders: tuple[float, ...] = ()
    """When another leader goes on with what the database says."""
    policies: tuple[tuple[float, Policy], ...] = ()
    """When the policy changes, and to which one."""

    @property
    def keeps_limits(self) -> bool:
        return all(one.row.time_limit_s is None or one.runs_s <= one.row.time_limit_s for one in self.jobs)

    @property
    def is_calm(self) -> bool:
        """Promises stand: limits are kept, hosts stay healthy, and no quota comes in between."""
        stops_jobs = self.policy.stops_jobs or self.policies
        return self.keeps_limits and not self.outages and self.policy.quotas == Quotas() and not stops_jobs

    @classmethod
    def random(cls, seed: int, **given: object) -> Trace:
        """The same world for the same seed. ``given``: fields of the policy."""
        draw = Random(seed)
        fields: dict[str, object] = {
            "order": draw.choice(["priority", "fcfs", "fair_share"]),
            "backfill": draw.choice(["easy", "conservative", "conservative", "keep", "none"]),
            "backfill_depth": draw.choice([100, 100, 2]),
            "quotas": draw.choice([Quotas(), Quotas(), LENT]),
        }
        policy = Policy(**{**fields, **given})  # pyright: ignore[reportArgumentType]
        machines = cluster()
        for number in range(draw.choice([1, 1, 2, 3])):
            machines.host(f"h{number}", "dgx-h100", leaf=draw.choice("lm"), cpus=16, ram_mib=65536)
        hosts = tuple(machines.host_rows.values())
        kind = draw.choice(["calm", "calm", "overruns", "outages", "gives up"])
        plain = draw.random() < 0.5
        jobs = tuple(
            _arrival(draw, number, list(machines.host_rows), kind, plain) for number in range(draw.randint(4, 14))
        )
        outages = (
            tuple(_outage(draw, list(machines.host_rows)) for _ in range(draw.randint(1, 3)))
            if kind == "outages"
            else ()
        )
        looks = tuple(float(draw.randint(0, 200)) + 0.5 for _ in range(4))
        return cls(hosts, jobs, policy, outages, looks)

    @classmethod
    def troubled(cls, seed: int, **given: object) -> Trace:
        """``random(seed)`` with changes of leaders and maybe of policies. Jobs are stopped or moved."""
        draw, calm = Random(-1 - seed), cls.random(seed, **given)
        stops = draw.choice([(), ("preemption",), ("defragmentation", "recovery"), ("preemption", "recovery")])
        fields: dict[str, object] = dict.fromkeys(stops, True)
        fields |= {"order": draw.choice([calm.policy.order, *sorted(ORDERS)])}
        budget = MoveBudget(restart_s=RESTART_S)
        fields |= {"defragmentation_budget": budget, "recovery_budget": budget}
        fields |= {"min_run_s": draw.choice([0.0, 5.0]), "defragment_after_s": 2.0, "defragment_every_s": 5.0}
        policy = replace(calm.policy, **fields)  # pyright: ignore[reportArgumentType]
        jobs = tuple(
            replace(one, row=replace(one.row, checkpoints=bool(stops) and draw.random() < 0.7)) for one in calm.jobs
        )
        leaders = tuple(float(draw.randint(1, 120)) + draw.choice([0.0, 0.25]) for _ in range(draw.randint(0, 4)))
        others = {"backfill": ["easy", "conservative"], "order": sorted(ORDERS), "backfill_depth": [1, 100]}
        policies: list[tuple[float, Policy]] = []
        while draw.random() < 0.25:
            name = draw.choice(sorted(others))
            before = policies[-1][1] if policies else policy
            changed = replace(before, **{name: draw.choice(others[name])})  # pyright: ignore[reportArgumentType]
            policies.append((float(draw.randint(5, 100)), changed))
        looks = tuple(float(at) for at in range(1, 150, 5)) if stops else ()
        looks = (*calm.looks, *looks)
        return replace(
            calm, policy=policy, jobs=jobs, looks=looks, new_leaders=leaders, policies=tuple(sorted(policies, key=_at))
        )

    @classmethod
    def fragmented(cls, seed: int) -> Trace:
        """Small jobs on all hosts, some with free GPUs, and then gangs that need whole hosts: jobs are moved."""
        draw = Random(seed)
        machines = cluster().hosts(3, "dgx-h100")
        jobs: list[Arrival] = []
        for number in range(draw.randint(6, 12)):
            gpus, at = draw.choice([1, 2, 3, 4]), float(draw.choice([0, 0, 0, 20, 40, 60]))
            if number > 4 and draw.random() < 0.5:
                gpus, at = draw.choice([6, 8, 8]), float(draw.choice([5, 10, 30]))
            limit = draw.choice([None, 50.0, 100.0, 400.0])
            made = job(gpus, name=f"j{number:02d}").arrived(at).priority(draw.choice([0, 0, 1]))
            row = (made if limit is None else made.lasting(limit)).row
            resources = row.resources.model_copy(update={"strategy": Strategy.SPREAD})
            row = replace(row, resources=resources, checkpoints=draw.random() < 0.9)
            jobs.append(Arrival(row, draw.choice([0.2, 0.6, 1.0]) * (limit or 100.0)))
        budget = MoveBudget(restart_s=RESTART_S)
        policy = Policy(
            backfill=draw.choice(["easy", "conservative"]),
            defragmentation=True,
            recovery=True,
            min_run_s=0.0,
            defragment_after_s=2.0,
            defragment_every_s=5.0,
            defragmentation_budget=budget,
            recovery_budget=budget,
        )
        looks = tuple(float(at) for at in range(1, 200, 5))
        leaders = tuple(float(draw.randint(1, 120)) for _ in range(draw.randint(0, 2)))
        return cls(tuple(machines.host_rows.values()), tuple(jobs), policy, (), looks, leaders)


def _at(change: tuple[float, Policy]) -> float:
    return change[0]


def _arrival(draw: Random, number: int, hosts: list[str], kind: str, plain: bool) -> Arrival:
    limit = draw.choice([5.0, 10.0, 20.0, 60.0] if plain else [None, 5.0, 10.0, 20.0, 30.0, 60.0, 100.0])
    runs = draw.choice([0.1, 0.5, 1.0, 1.0]) * (limit or draw.choice([10.0, 40.0, 100.0]))
    if kind == "overruns" and draw.random() < 0.3:
        runs *= 1.5
    made = job(draw.choice([1, 2, 3, 4, 6, 8, 8]), hosts=draw.choice([1, 1, 1, len(hosts)]), name=f"j{number:02d}")
    if not plain:
        shape = draw.random()
        if shape < 0.1:
            made = job(name=f"j{number:02d}").total(draw.choice([5, 8, 12]))
        elif shape < 0.25:
            made = job(name=f"j{number:02d}").groups(
                a=job(draw.choice([2, 4, 8])), b=job(draw.choice([1, 2, 4, 8]), hosts=draw.choice([1, len(hosts)]))
            )
        elif shape < 0.4:
            made = made.on_host(cpus=draw.choice([4, 8, 16]))
        elif shape < 0.5:
            made = job(1, name=f"j{number:02d}").share(draw.choice([30, 50, 90]))
        elif shape < 0.6:
            made = made.requires("leaf")
        if draw.random() < 0.2:
            made = made.avoiding(hosts=[draw.choice(hosts)])
    at = float(draw.choice([0, 0, 0, 5, 10, 10, 20, 30, 50, 80]))
    made = made.priority(draw.choice([0, 0, 1, 5])).of(draw.choice("ab"), draw.choice(["anna", "ben"])).arrived(at)
    learned = Random(f"{number} {at} {runs}")  # not ``draw``: the worlds of earlier seeds stay as they are
    if learned.random() < 0.5:
        made = made.expected(runs * learned.choice([0.3, 1.0, 3.0]))
    row = (made if limit is None else made.lasting(limit)).row
    gives_up = at + draw.choice([3.0, 12.0, 40.0]) if kind == "gives up" and draw.random() < 0.3 else None
    return Arrival(row, runs, gives_up)


def _outage(draw: Random, hosts: list[str]) -> tuple[float, str, int | None, float]:
    begin = float(draw.randint(1, 60))
    return begin, draw.choice(hosts), draw.choice([None, 0, 3]), begin + draw.choice([5.0, 30.0, 1000.0])
