"""What a chaos run does and when: the same seed gives the same plan."""

from __future__ import annotations

import random
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec

RANK = Path(__file__).with_name("rank.py")
HEAVY = {f"HEAVY_{number}": "x" * 2000 for number in range(100)}
"""An environment of 200 KB: Linux starts no program with much more."""


@dataclass(frozen=True)
class JobPlan:
    seconds: float
    exit_code: int = 0
    manners: tuple[str, ...] = ()
    gpus: ResourceRequest = field(default_factory=lambda: ResourceRequest(gpus_per_host=1))
    rank_per: RankPer = RankPer.HOST
    max_retries: int = 0
    elements: int = 0
    """Of an array, each of them such a job. 0: a single job."""
    in_pipeline: bool = False
    """A pipeline is submitted whose jobs are such."""

    @property
    def endless(self) -> bool:
        return self.seconds > 60


@dataclass(frozen=True)
class Step:
    at_s: float
    verb: str
    draw: float
    """In [0, 1): chooses the target among those there are by then."""
    job: JobPlan | None = None


PROCESSES = {
    "kill_process": 5,
    "freeze_process": 1,
    "freeze_control_plane": 1,
    "two_leaders": 1,
    "kill_supervisor": 1,
    "kill_host": 1,
    "kill_rack": 1,
    "freeze_host": 1,
    "freeze_rack": 1,
}
WORK = {"xid": 4, "failing_reset": 1, "cancel": 4, "kill": 3, "preempt": 4, "drain": 1, "drain_force": 1}
CLOCKS = {"clock_step": 1, "clock_drift": 1}
LINKS = {"cut_link": 3, "slow_link": 1, "lossy_link": 1}
PARTITIONS = {"cut_host": 2, "cut_rack": 1, "cut_service": 1, "cut_temporal": 1, "cut_control_plane": 1}
LONG = {"freeze_long": 1}
DISKS = {"full_disk": 1, "hung_disk": 1}
HANGS = {"hung_files": 2, "read_only": 1, "hung_names": 1, "failed_sync": 1, "short_memory": 1}
AGENTS = {"freeze_agents": 1}
MACHINES = {"machine_clock": 1}
LIES = {"lying_host": 1}
POISON = {"poison": 1}
NEW = {**HANGS, **AGENTS, **MACHINES, **LIES, **POISON}
DISRUPTIONS: Mapping[str, int] = {**PROCESSES, **WORK, **CLOCKS, **LINKS, **PARTITIONS, **LONG, **DISKS, **NEW}
"""Verb -> weight."""
OLDER: Mapping[str, int] = {"older_platform": 1, "older_temporal": 1}
"""Alone, but for what people do: whoever dies with an older database is another matter."""
POWER: Mapping[str, int] = {"power_cut": 1}
"""Alone: whoever else opened the database's files meanwhile would see, and leave, what no disk has."""


SINGLE = {"quick": 8, "wide": 2, "gang": 3, "failing": 2, "endless": 3, "forking": 1}
KINDS = {**SINGLE, "array": 2, "pipeline": 1}
"""What is submitted -> weight."""


def make_plan(
    seed: int,
    seconds: float,
    *,
    jobs_per_s: float,
    disruptions_per_s: float,
    disruptions: Mapping[str, int] = DISRUPTIONS,
    kinds: Mapping[str, int] = KINDS,
) -> list[Step]:
    """``kinds``: of what is submitted. Both streams are Poisson: every so often, things happen at once."""
    dice = random.Random(seed)
    steps: list[Step] = []
    at = 0.0
    while (at := at + dice.expovariate(jobs_per_s)) < seconds:
        steps.append(Step(at, "submit", dice.random(), _job(dice, kinds)))
    at = 1.0
    while (at := at + dice.expovariate(disruptions_per_s)) < seconds:
        verb = dice.choices(list(disruptions), list(disruptions.values()))[0]
        steps.append(Step(at, verb, dice.random()))
    return sorted(steps, key=lambda step: step.at_s)


def only(plan: Sequence[Step], numbers: Collection[int]) -> list[Step]:
    """All submissions, and of the disruptions those with these numbers (from 0, in order)."""
    disruptions = [step for step in plan if step.job is None]
    kept = {id(disruptions[number]) for number in numbers}
    return [step for step in plan if step.job is not None or id(step) in kept]


def _job(dice: random.Random, kinds: Mapping[str, int]) -> JobPlan:
    kind = dice.choices(list(kinds), list(kinds.values()))[0]
    seconds = dice.uniform(0.0, 1.5)
    match kind:
        case "wide":
            return JobPlan(seconds, gpus=ResourceRequest(gpus_per_host=8))
        case "gang":
            gpus = ResourceRequest(hosts=2, gpus_per_host=dice.choice([1, 2, 4]))
            return JobPlan(seconds + 0.5, gpus=gpus, rank_per=dice.choice(list(RankPer)))
        case "failing":
            return JobPlan(seconds / 3, exit_code=3, max_retries=dice.randint(0, 2))
        case "endless":
            return JobPlan(600, manners=dice.choice([(), ("stubborn",)]))
        case "array":
            exit_code = dice.choice([0, 0, 3])
            return JobPlan(seconds, exit_code, max_retries=dice.randint(0, 1), elements=dice.randint(2, 12))
        case "pipeline":
            return JobPlan(seconds / 3, in_pipeline=True)
        case "forking":
            return JobPlan(seconds, manners=("forks",))
        case _:
            return JobPlan(seconds)


def spec_of(plan: JobPlan, directory: Path) -> JobSpec:
    """The job as it is submitted. Its ranks write their truth to ``directory``."""
    return JobSpec(
        command=[
            *(sys.executable, "-S", "-E", str(RANK), str(directory)),
            *(str(plan.seconds), str(plan.exit_code), *plan.manners),
        ],
        gpus=plan.gpus,
        rank_per=plan.rank_per,
        env=HEAVY if "heavy" in plan.manners else {},
        max_retries=plan.max_retries,
        max_hardware_retries=1000,
        grace_s=0.5,
    )
