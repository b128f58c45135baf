"""A cluster of the last release is upgraded process by process under load, and goes back: no job notices.

The service comes first, as the instructions for an upgrade say: it migrates the tables while all others are old.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from gpu_platform.domain.states import JobState
from tests.chaos.plan import make_plan
from tests.chaos.releases import prepare_as, previous_release
from tests.chaos.storm import storm
from tests.support.waiting import eventually
from workers.local.cluster import LocalCluster
from workers.local.supervision import ChildProcess

FIRST_S = 3.0
"""The old release works for so long before the upgrade begins."""
BETWEEN_S = 2.5
"""Between two processes: each works for a while beside the others of both releases."""
PROCESSES = 8
SECONDS = FIRST_S + 2 * PROCESSES * (BETWEEN_S + 1.5)


@pytest.mark.chaos
@pytest.mark.timeout(600)
async def test_a_cluster_under_load_is_upgraded_and_goes_back(tmp_path: Path) -> None:
    old = previous_release(tmp_path)
    rolled: list[str] = []
    rolling: list[asyncio.Task[None]] = []
    started: list[ChildProcess] = []

    def begin_old(cluster: LocalCluster) -> None:
        processes = [child for child in cluster.children if child is not cluster.temporal]
        assert len(processes) == PROCESSES
        for child in processes:
            child.env |= old
        cluster.prepare = lambda: prepare_as(cluster, old)  # type: ignore[method-assign]
        started.extend(processes)
        rolling.append(asyncio.create_task(roll(cluster, processes, old, rolled)))

    kinds = {"quick": 8, "wide": 1, "gang": 3, "array": 2, "pipeline": 1}
    plan = make_plan(1, SECONDS, jobs_per_s=1.5, disruptions_per_s=0.001, disruptions={"cancel": 1}, kinds=kinds)
    plan = [step for step in plan if step.job is not None]
    try:
        outcome = await storm(tmp_path / "run", plan, prepare=begin_old, control_workers=2)
    finally:
        for task in rolling:
            task.cancel()
    await asyncio.gather(*rolling)
    assert len(rolled) == 2 * PROCESSES, f"the storm ended before the upgrade: {rolled}"
    assert list(map(str, outcome.violations)) == []
    for child in started:
        assert child.restarts == 0, f"{child.name} died by itself:\n{child.last_lines()}"
    jobs = outcome.facts.jobs
    wrong = {
        job_id: f"{job.state}, attempt {job.attempt}: {job.failure}"
        for job_id, job in jobs.items()
        if outcome.facts.plans[job_id].exit_code == 0 and (job.state, job.attempt) != (JobState.COMPLETED, 1)
    }
    assert wrong == {}
    print(f"\n{len(rolled)} processes exchanged under load, {len(jobs)} jobs: 0 lost, 0 run twice, 0 tried again")


async def roll(cluster: LocalCluster, processes: list[ChildProcess], old: dict[str, str], rolled: list[str]) -> None:
    """Each process once to this release, and then, in the other order, back to the old one."""
    await eventually(lambda: all(child.pid is not None for child in processes), "the cluster to run", within_s=120)
    with contextlib.suppress(Exception):
        await cluster.wait_until_ready()
    await asyncio.sleep(FIRST_S)
    for child in processes:
        for name in old:
            del child.env[name]
        await exchange(child, rolled, "new")
    for child in reversed(processes):
        child.env |= old
        await exchange(child, rolled, "old")


async def exchange(child: ChildProcess, rolled: list[str], release: str) -> None:
    await child.stop()
    await child.start()
    rolled.append(f"{child.name} is {release}")
    await asyncio.sleep(BETWEEN_S)
