"""A stream of jobs while processes are killed and frozen, GPUs struck, hosts drained, jobs stopped and preempted.

At the end every job has ended as it should, in the store and in Temporal, and at no time was a GPU held twice:
neither by the event log nor in fact (each rank locks a file per GPU and tells when it was locked). A failure
prints its seed and what was done; ``GPU_PLATFORM_CHAOS_SEED`` repeats the plan, ``GPU_PLATFORM_CHAOS_SECONDS``
makes it longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.job import FailureKind, Job, JobSpec
from gpu_platform.domain.states import GpuState, JobState
from tests.chaos.audit import Ledger, Truth
from tests.chaos.killable_postgres import Server, new_server
from tests.chaos.monkey import Monkey
from tests.chaos.plan import JobPlan, make_plan
from tests.harness import eventually
from tests.hosts_rig import RESET_FOR_EVER
from workers.cluster import ClusterConfig, LocalCluster, NodeSpec

HOSTS = (NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100"), NodeSpec("c", "dgx-1v"))
SHORT_LEASES = {"GPU_PLATFORM_LEASE_TTL_S": "4", "GPU_PLATFORM_NODE__LEASE_INTERVAL_S": "0.5"}
SETTLED_S = 240.0


@pytest.mark.timeout(120)
async def test_a_short_storm(tmp_path: Path) -> None:
    await storm(tmp_path, seed=_seed(1), seconds=8, jobs_per_s=4, disruptions_per_s=2)


@pytest.mark.chaos
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_a_long_storm(tmp_path: Path, database: str) -> None:
    seconds = float(os.environ.get("GPU_PLATFORM_CHAOS_SECONDS", "120"))
    seed = _seed(random.randrange(10**6))
    with new_server() if database == "postgresql" else contextlib.nullcontext() as server:
        await storm(tmp_path, seed=seed, seconds=seconds, jobs_per_s=3, disruptions_per_s=1.5, database=server)


def _seed(otherwise: int) -> int:
    return int(os.environ.get("GPU_PLATFORM_CHAOS_SEED", otherwise))


async def storm(
    directory: Path,
    *,
    seed: int,
    seconds: float,
    jobs_per_s: float,
    disruptions_per_s: float,
    database: Server | None = None,
) -> None:
    plan = make_plan(seed, seconds, jobs_per_s=jobs_per_s, disruptions_per_s=disruptions_per_s)
    print(f"\nGPU_PLATFORM_CHAOS_SEED={seed} ({seconds:.0f} s): {dict(Counter(step.verb for step in plan))}")
    ledger = Ledger(directory / "ledger")
    config = ClusterConfig(
        state_dir=directory / "state",
        nodes=HOSTS,
        ui=False,
        settings=SHORT_LEASES | {"GPU_PLATFORM_NODE__FAULT_POLICY": str(RESET_FOR_EVER)},
        database_url=database.url if database else None,
    )
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=120) as client:
        truth = Truth(cluster)
        monkey = Monkey(cluster, client, truth, directory, database)
        try:
            await monkey.play(plan)
            calm = time.monotonic()
            await all_settles(client, truth, monkey)
            settled_s = time.monotonic() - calm
            print(f"{len(monkey.jobs)} jobs, {len(monkey.done)} disruptions; settled {settled_s:.1f} s after the last")
            if wrong := account(truth, ledger, monkey, directory):
                pytest.fail("\n".join(wrong))
        except BaseException:
            print("\n".join(monkey.done))
            raise
        finally:
            truth.close()


async def all_settles(client: AsyncClient, truth: Truth, monkey: Monkey) -> None:
    """Every job ended, every GPU back, and the platform as good as new."""
    left: dict[str, str] = {}
    try:
        async with asyncio.timeout(SETTLED_S):
            for job_id in monkey.jobs:
                await client.wait(job_id)
            while left := await truth.open_jobs(monkey.jobs):  # noqa: ASYNC110 - Temporal tells nobody
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"not ended after {SETTLED_S} s: {left or await truth.open_jobs(monkey.jobs)}")
    away: dict[str, str] = {}

    async def gpus_back() -> bool:
        away.clear()
        away.update({gpu.info.uuid: f"{gpu.state} {gpu.reason}" async for gpu in client.gpus()})
        return set(away.values()) == {f"{GpuState.AVAILABLE} {None}"}

    try:
        await eventually(gpus_back, "every GPU to be AVAILABLE", within_s=60)
    except AssertionError:
        pytest.fail(f"not AVAILABLE after 60 s: {away}")
    job = await client.submit(JobSpec(command=["true"]))
    assert (await client.wait(job.id, timeout_s=20)).state is JobState.COMPLETED


def account(truth: Truth, ledger: Ledger, monkey: Monkey, directory: Path) -> list[str]:
    """Everything that is not as it should be."""
    found = truth.violations(ledger)
    overlaps = directory / "overlaps"
    found += overlaps.read_text().splitlines() if overlaps.exists() else []
    runs = ledger.runs()
    attempts = {job_id: {attempt for job, attempt, _ in runs if job == job_id} for job_id in monkey.jobs}
    for job in truth.jobs(monkey.jobs):
        plan = monkey.jobs[job.id]
        if not ended_as_planned(job, plan, stopped=job.id in monkey.stopped):
            found.append(f"{job.id} {plan} ended {job.state} {job.failure}, retries {job.user_retries}")
        if job.state is JobState.COMPLETED and job.attempt not in attempts[job.id]:
            found.append(f"{job.id} COMPLETED in attempt {job.attempt}, which never ran")
        tries = 1 + job.user_retries + job.hardware_retries + job.preemptions
        if job.state is not JobState.CANCELLED and job.attempt != tries:
            found.append(f"{job.id} has {job.attempt} attempts for {tries} reasons")
    return found


def ended_as_planned(job: Job, plan: JobPlan, *, stopped: bool) -> bool:
    if stopped and job.state is JobState.CANCELLED:
        return True
    if plan.endless:
        return False
    if plan.exit_code == 0:
        return job.state is JobState.COMPLETED
    return (
        job.state is JobState.FAILED
        and job.failure is not None
        and job.failure.kind is FailureKind.USER
        and (job.exit_code, job.user_retries) == (plan.exit_code, plan.max_retries)
    )
