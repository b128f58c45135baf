"""A stream of jobs while processes are killed and frozen, hosts and racks lost, GPUs struck, jobs stopped.

At the end every job has ended as it should, in the store and in Temporal, and the account of what ranks themselves
wrote has no violation: see ``checks``. A failure prints its seed, and the fewest disruptions found that repeat it:
``GPU_PLATFORM_CHAOS_SEED`` and ``GPU_PLATFORM_CHAOS_STEPS`` give that plan again. ``GPU_PLATFORM_CHAOS_SECONDS`` makes
it longer, ``GPU_PLATFORM_CHAOS_SHRINK`` is how many runs it may be shrunk by, ``GPU_PLATFORM_CHAOS_ONLY`` names the
disruptions wanted.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from tests import power_cut
from tests.chaos.killable_postgres import Server, new_server
from tests.chaos.plan import DISKS, DISRUPTIONS, LONG, OLDER, POWER, Step, make_plan, only
from tests.chaos.report import append, report_of
from tests.chaos.shrink import shrink
from tests.chaos.storm import Outcome, storm
from tests.chaos.story import story

UNITS = {"s": 1, "m": 60, "h": 3600}
ROUND_S = 180.0
"""A longer run is made of rounds of so long, each with a seed of its own: what they find is quicker to repeat."""


def _seconds(text: str) -> float:
    """``90``, ``90s``, ``20m`` or ``8h``."""
    return float(text.rstrip("smh")) * UNITS.get(text[-1], 1)


SECONDS = _seconds(os.environ.get("GPU_PLATFORM_CHAOS_SECONDS", "120"))
ONLY = os.environ.get("GPU_PLATFORM_CHAOS_ONLY", "")
SHRINK_RUNS = int(os.environ.get("GPU_PLATFORM_CHAOS_SHRINK", "6"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_short_storm(tmp_path: Path, database: str) -> None:
    seed = _seed(1)
    chosen = _disruptions(without=LONG | DISKS)
    plan = make_plan(seed, 12, jobs_per_s=4, disruptions_per_s=2, disruptions=chosen)
    await survive(tmp_path, seed, plan, database, shrink_runs=0)


@pytest.mark.chaos
@pytest.mark.timeout(900 + 8 * SECONDS)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_long_storm(tmp_path: Path, database: str) -> None:
    rounds = max(1, round(SECONDS / ROUND_S))
    for number in range(rounds):
        seed = _seed(random.randrange(10**6))
        seconds = SECONDS / rounds
        plan = make_plan(seed, seconds, jobs_per_s=3, disruptions_per_s=1.5, disruptions=_disruptions())
        directory = tmp_path / f"round-{number}"
        await survive(directory, seed, plan, database, shrink_runs=SHRINK_RUNS)
        shutil.rmtree(directory)


@pytest.mark.chaos
@pytest.mark.timeout(900 + 8 * SECONDS)
@pytest.mark.skipif(power_cut.why_not() is not None, reason=str(power_cut.why_not()))
async def test_a_storm_of_power_cuts(tmp_path: Path) -> None:
    seed = _seed(random.randrange(10**6))
    plan = make_plan(seed, SECONDS, jobs_per_s=2, disruptions_per_s=0.1, disruptions=POWER)
    await survive(tmp_path, seed, plan, "sqlite", shrink_runs=SHRINK_RUNS)


@pytest.mark.chaos
@pytest.mark.timeout(900 + 8 * SECONDS)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_storm_of_older_databases(tmp_path: Path, database: str) -> None:
    """Each is restored, one at a time, to a copy that is up to 20 s old."""
    seed = _seed(random.randrange(10**6))
    plan = make_plan(seed, SECONDS, jobs_per_s=1, disruptions_per_s=0.05, disruptions=OLDER)
    await survive(tmp_path, seed, plan, database, shrink_runs=SHRINK_RUNS)


async def survive(directory: Path, seed: int, plan: Sequence[Step], database: str, *, shrink_runs: int) -> None:
    count = sum(step.job is None for step in plan)
    numbers = [int(number) for number in os.environ.get("GPU_PLATFORM_CHAOS_STEPS", "").split(",") if number]
    numbers = numbers or list(range(count))
    runs = 0

    async def run(chosen: list[int]) -> Outcome:
        nonlocal runs
        runs += 1
        with new_server() if database == "postgresql" else contextlib.nullcontext() as server:
            assert server is None or isinstance(server, Server)
            outcome = await storm(directory / f"run-{runs}", only(plan, chosen), server)
        _tell(seed, database, outcome)
        return outcome

    outcome = await run(numbers)
    if not outcome.violations:
        return
    kinds = {violation.kind for violation in outcome.violations}

    async def fails(chosen: list[int]) -> bool:
        return not kinds.isdisjoint(violation.kind for violation in (await run(chosen)).violations)

    least = await shrink(numbers, fails, max_runs=shrink_runs)
    again = f"GPU_PLATFORM_CHAOS_SEED={seed} GPU_PLATFORM_CHAOS_STEPS={','.join(map(str, least))}"
    pytest.fail("\n".join([f"{again} ({len(least)} of {count} disruptions)", *map(str, outcome.violations)]))


def _tell(seed: int, database: str, outcome: Outcome) -> None:
    report = report_of(database, outcome.facts, outcome.violations, outcome.settled_s)
    print(f"\nGPU_PLATFORM_CHAOS_SEED={seed} on {report.text()}")
    for violation in outcome.violations:
        print(f"  {violation}")
    if outcome.violations:
        print("\n".join(story(outcome.facts, outcome.violations)))
    if path := os.environ.get("GPU_PLATFORM_CHAOS_REPORT"):
        append(Path(path), report)


def _disruptions(without: Collection[str] = ()) -> dict[str, int]:
    """Those that ``GPU_PLATFORM_CHAOS_ONLY`` names (commas), or all."""
    if ONLY:
        return {verb: DISRUPTIONS[verb] for verb in ONLY.split(",")}
    return {verb: weight for verb, weight in DISRUPTIONS.items() if verb not in without}


def _seed(otherwise: int) -> int:
    return int(os.environ.get("GPU_PLATFORM_CHAOS_SEED", otherwise))
