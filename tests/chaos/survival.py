"""Lets a storm pass over a cluster, prints the account of it, and finds the fewest disruptions that repeat a failure.

``GPU_PLATFORM_CHAOS_SEED`` and ``GPU_PLATFORM_CHAOS_STEPS`` give a printed plan again, ``GPU_PLATFORM_CHAOS_ONLY``
names the disruptions wanted, and ``GPU_PLATFORM_CHAOS_REPORT`` is a file to which a line of each run is appended.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.facts import Facts, Violation
from tests.chaos.killable_postgres import Server, new_server
from tests.chaos.plan import DISKS, DISRUPTIONS, LONG, NEW, Step, make_plan, only
from tests.chaos.report import append, report_of
from tests.chaos.shrink import shrink
from tests.chaos.storm import HOSTS, Outcome, storm
from tests.chaos.story import story
from workers.local.cluster import NodeSpec

SHORT_S = 7
ONLY = os.environ.get("GPU_PLATFORM_CHAOS_ONLY", "")


@dataclass(frozen=True)
class Survival:
    """What the first run of a plan found."""

    plan: Sequence[Step]
    facts: Facts
    violations: list[Violation]
    again: str = ""
    """How to repeat a failure."""

    def __str__(self) -> str:
        return "\n".join([self.again, *map(str, self.violations)])

    @property
    def unfinished(self) -> list[str]:
        """Jobs that were acknowledged and have not ended."""
        known = self.facts.jobs
        return [job_id for job_id in self.facts.plans if job_id not in known or not known[job_id].state.is_terminal]

    @property
    def submissions(self) -> int:
        """How many jobs were submitted, elements of arrays and jobs of pipelines among them."""
        plans = [step.job for step in self.plan if step.job is not None]
        return sum(5 if plan.in_pipeline else max(1, plan.elements) for plan in plans)

    @property
    def disruptions(self) -> int:
        return sum(step.job is None for step in self.plan)


async def short_storm(directory: Path, database: str, seed: int, *, without: Collection[str] = ()) -> Survival:
    """Seven seconds of submissions and disruptions, the same ones each time, and what comes after them.

    ``seed``: of a plan with many kinds of disruptions, unless the environment gives another.
    """
    seed = seed_or(seed)
    chosen = disruptions(without={*LONG, *DISKS, *NEW, *without})
    plan = make_plan(seed, SHORT_S, jobs_per_s=3, disruptions_per_s=2, disruptions=chosen)
    return await survive(directory, seed, plan, database, shrink_runs=0)


async def survive(
    directory: Path,
    seed: int,
    plan: Sequence[Step],
    database: str,
    *,
    shrink_runs: int,
    hosts: Sequence[NodeSpec] = HOSTS,
) -> Survival:
    """``shrink_runs``: how many runs a failing plan may be shrunk by."""
    count = sum(step.job is None for step in plan)
    numbers = [int(number) for number in os.environ.get("GPU_PLATFORM_CHAOS_STEPS", "").split(",") if number]
    numbers = numbers or list(range(count))
    runs = 0

    async def run(chosen: list[int]) -> Outcome:
        nonlocal runs
        runs += 1
        with new_server() if database == "postgresql" else contextlib.nullcontext() as server:
            assert server is None or isinstance(server, Server)
            outcome = await storm(directory / f"run-{runs}", only(plan, chosen), server, hosts=hosts)
        _tell(seed, database, outcome)
        return outcome

    outcome = await run(numbers)
    if not outcome.violations:
        return Survival(only(plan, numbers), outcome.facts, [])
    kinds = {violation.kind for violation in outcome.violations}

    async def fails(chosen: list[int]) -> bool:
        return not kinds.isdisjoint(violation.kind for violation in (await run(chosen)).violations)

    least = await shrink(numbers, fails, max_runs=shrink_runs)
    steps = ",".join(map(str, least))
    again = f"GPU_PLATFORM_CHAOS_SEED={seed} GPU_PLATFORM_CHAOS_STEPS={steps} ({len(least)} of {count} disruptions)"
    return Survival(only(plan, numbers), outcome.facts, outcome.violations, again)


def disruptions(without: Collection[str] = ()) -> dict[str, int]:
    """Those that ``GPU_PLATFORM_CHAOS_ONLY`` names (commas), or all."""
    if ONLY:
        return {verb: DISRUPTIONS[verb] for verb in ONLY.split(",")}
    return {verb: weight for verb, weight in DISRUPTIONS.items() if verb not in without}


def seed_or(otherwise: int) -> int:
    return int(os.environ.get("GPU_PLATFORM_CHAOS_SEED", otherwise))


def _tell(seed: int, database: str, outcome: Outcome) -> None:
    report = report_of(database, outcome.facts, outcome.violations, outcome.settled_s, seed)
    print(f"\nGPU_PLATFORM_CHAOS_SEED={seed} on {report.text()}")
    for violation in outcome.violations:
        print(f"  {violation}")
    if outcome.violations:
        print("\n".join(story(outcome.facts, outcome.violations)))
    if path := os.environ.get("GPU_PLATFORM_CHAOS_REPORT"):
        append(Path(path), report)
