"""Long streams of jobs while processes are killed and frozen, hosts and racks lost, GPUs struck, jobs stopped.

At the end every job has ended as it should, in the store and in Temporal, and the account of what ranks themselves
wrote has no violation: see ``checks``. A failure prints its seed, and the fewest disruptions found that repeat it:
see ``survival``. ``GPU_PLATFORM_CHAOS_SECONDS`` makes it longer, ``GPU_PLATFORM_CHAOS_SHRINK`` is how many runs it may
be shrunk by. ``make test`` runs short ones: ``test_short_storm_sqlite``, ``test_short_storm_postgresql``.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from tests import power_cut
from tests.chaos.plan import OLDER, POWER, SINGLE, make_plan
from tests.chaos.storm import MANY_HOSTS
from tests.chaos.survival import disruptions, seed_or, survive

UNITS = {"s": 1, "m": 60, "h": 3600}
ROUND_S = 300.0
"""A longer run is made of rounds of so long, each with a seed of its own: what they find is quicker to repeat."""
FAULTS_PER_S = float(os.environ.get("GPU_PLATFORM_CHAOS_RATE", "3"))
"""Half of it where something else keeps the machine busy."""
JOBS_PER_S = float(os.environ.get("GPU_PLATFORM_CHAOS_JOBS", "3"))
"""One on a slow machine: what waits at the end has to run, before the next round begins."""


def _seconds(text: str) -> float:
    """``90``, ``90s``, ``20m`` or ``8h``."""
    return float(text.rstrip("smh")) * UNITS.get(text[-1], 1)


SECONDS = _seconds(os.environ.get("GPU_PLATFORM_CHAOS_SECONDS", "120"))
SHRINK_RUNS = int(os.environ.get("GPU_PLATFORM_CHAOS_SHRINK", "6"))


@pytest.mark.chaos
@pytest.mark.timeout(900 + 8 * SECONDS)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_long_storm(tmp_path: Path, database: str) -> None:
    rounds = max(1, round(SECONDS / ROUND_S))
    for number in range(rounds):
        seed = seed_or(random.randrange(10**6))
        seconds = SECONDS / rounds
        plan = make_plan(
            seed, seconds, jobs_per_s=JOBS_PER_S, disruptions_per_s=FAULTS_PER_S, disruptions=disruptions()
        )
        directory = tmp_path / f"round-{number}"
        survival = await survive(directory, seed, plan, database, shrink_runs=SHRINK_RUNS, hosts=MANY_HOSTS)
        assert survival.violations == [], survival
        shutil.rmtree(directory)


@pytest.mark.chaos
@pytest.mark.timeout(900 + 8 * SECONDS)
@pytest.mark.skipif(power_cut.why_not() is not None, reason=str(power_cut.why_not()))
async def test_a_storm_of_power_cuts(tmp_path: Path) -> None:
    seed = seed_or(random.randrange(10**6))
    plan = make_plan(seed, SECONDS, jobs_per_s=2, disruptions_per_s=0.1, disruptions=POWER)
    survival = await survive(tmp_path, seed, plan, "sqlite", shrink_runs=SHRINK_RUNS)
    assert survival.violations == [], survival


@pytest.mark.chaos
@pytest.mark.timeout(900 + 8 * SECONDS)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_storm_of_older_databases(tmp_path: Path, database: str) -> None:
    """Each is restored, one at a time, to a copy that is up to 20 s old."""
    seed = seed_or(random.randrange(10**6))
    plan = make_plan(seed, SECONDS, jobs_per_s=1, disruptions_per_s=0.05, disruptions=OLDER, kinds=SINGLE)
    survival = await survive(tmp_path, seed, plan, database, shrink_runs=SHRINK_RUNS)
    assert survival.violations == [], survival
