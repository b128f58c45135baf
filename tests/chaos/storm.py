"""A stream of jobs while faults come, the calm after it, and the account of both."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import select

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines.pipeline import PipelineState
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.store import models
from tests.chaos.arena import Arena
from tests.chaos.audit import Audit
from tests.chaos.bad_io import hand_out_io
from tests.chaos.checks import find_violations
from tests.chaos.clocks import hand_out
from tests.chaos.disks import small_disk
from tests.chaos.facts import Facts, Kind, Violation, holds_of
from tests.chaos.feed import Feed
from tests.chaos.killable_postgres import Server
from tests.chaos.monkey import play
from tests.chaos.network import lay, running_network
from tests.chaos.plan import CLOCKS, HANGS, MACHINES, Step
from tests.chaos.truth import boottime, observed, read_truth
from tests.power_cut import PowerCut
from tests.support.hosts_rig import RESET_FOR_EVER
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

HOSTS = (
    NodeSpec("a", "dgx-h100", leaf="leaf-1"),
    NodeSpec("b", "dgx-h100", leaf="leaf-1"),
    NodeSpec("c", "dgx-1v", leaf="leaf-2"),
)
MANY_HOSTS = (
    *HOSTS,
    NodeSpec("d", "dgx-h100", leaf="leaf-2"),
    NodeSpec("e", "dgx-h100", leaf="leaf-3"),
    NodeSpec("f", "dgx-1v", leaf="leaf-3"),
)
"""Twice as many faults a second concern disjoint hosts then, and settling takes as long as with three."""
STRIKE_AGAIN = {
    "GPU_PLATFORM_NODE__FAULT_POLICY": str(RESET_FOR_EVER),
    # What fails again and again would be kept out, and nothing were left to strike.
    "GPU_PLATFORM_REMEDIATION__FLAPPING_FIRST_MIN": "0",
}
SHORT_LEASES = {"GPU_PLATFORM_LEASE_TTL_S": "4", "GPU_PLATFORM_NODE__LEASE_INTERVAL_S": "0.5"}
STANDSTILL_S = 120.0
"""After the last fault a job must end at least so often, until all have ended: how many wait says how busy it was."""


@dataclass
class Outcome:
    facts: Facts
    violations: list[Violation] = field(default_factory=list)
    settled_s: float = 0.0


async def storm(
    directory: Path,
    plan: Sequence[Step],
    database: Server | None = None,
    prepare: Callable[[LocalCluster], None] = lambda _: None,
    control_workers: int = 1,
    hosts: Sequence[NodeSpec] = HOSTS,
) -> Outcome:
    """``prepare`` changes the cluster before it starts."""
    directory.mkdir(parents=True, exist_ok=True)
    config = ClusterConfig(
        state_dir=directory / "state",
        nodes=tuple(hosts),
        ui=False,
        control_workers=control_workers,
        settings=SHORT_LEASES | STRIKE_AGAIN,
        database_url=database.url if database else None,
    )
    cluster = LocalCluster(config)
    prepare(cluster)
    async with _arena(cluster, directory, database, {step.verb for step in plan}) as arena:
        with observed(directory):
            try:
                await play(arena, plan)
                calm = time.monotonic()
                found = await settle(arena)
                settled_s = time.monotonic() - calm
                await arena.feed.catch_up()
                await ranks_gone(directory)
            except BaseException:
                print("\n".join(arena.log.lines()))
                raise
        facts = await asyncio.to_thread(facts_of, arena)
        found += find_violations(facts) + await asyncio.to_thread(arena.audit.leftovers)
        return Outcome(facts, found, settled_s)


@contextlib.asynccontextmanager
async def _arena(
    cluster: LocalCluster, directory: Path, database: Server | None, verbs: Collection[str]
) -> AsyncIterator[Arena]:
    """The cluster, started with everything that these faults need."""
    powered = "power_cut" in verbs
    async with contextlib.AsyncExitStack() as stack:
        network = stack.enter_context(running_network())
        lay(network, cluster)
        power = PowerCut(cluster.config.state_dir, directory / "disk") if powered else None
        clocks = {} if (CLOCKS | MACHINES).keys().isdisjoint(verbs) else hand_out(cluster, directory)
        bad_io = {} if HANGS.keys().isdisjoint(verbs) else hand_out_io(cluster, directory)
        host = None if powered else stack.enter_context(small_disk(cluster, can_hang="hung_disk" in verbs))
        if power is None:
            await stack.enter_async_context(cluster)
        else:
            await power.start_cluster(cluster)
            stack.push_async_exit(cluster)
        client = await stack.enter_async_context(AsyncClient(cluster.api_url, retry_for_s=1800))
        audit = Audit.of(cluster)
        stack.callback(audit.close)
        feed = await stack.enter_async_context(Feed(audit))
        yield Arena(
            cluster, client, audit, feed, directory, database, network,
            clocks=clocks, bad_io=bad_io, power=power, small_disk=host,
        )  # fmt: skip


async def settle(arena: Arena) -> list[Violation]:
    """Every job ends, every GPU comes back, and the platform is as good as new."""
    temporal_is_older = arena.log.counts()["older_temporal"] > 0
    left, ended_at = dict.fromkeys([*arena.jobs, *arena.pipelines], ""), time.monotonic()
    while left:
        before, began = left, time.monotonic()
        left = await arena.audit.open_jobs(arena.jobs.keys() & before.keys(), temporal_is_older=temporal_is_older)
        left |= await _open_pipelines(arena)
        if len(left) < len(before):
            ended_at = time.monotonic()
        elif time.monotonic() - ended_at > STANDSTILL_S:
            stuck = f"while no job ended for {STANDSTILL_S:.0f} s"
            return [Violation(Kind.HISTORY, f"{job}: {text}, {stuck}") for job, text in left.items()]
        # To look at hundreds of jobs takes seconds of CPU, which the platform needs just now.
        await asyncio.sleep(max(0.5, 4 * (time.monotonic() - began)))
    if again := await arena.audit.open_jobs(arena.jobs, temporal_is_older=temporal_is_older):
        return [Violation(Kind.HISTORY, f"{job} had ended, and now: {text}") for job, text in again.items()]
    if wrong := [*await _wrong_pipelines(arena), *await asyncio.to_thread(_unknown_jobs, arena)]:
        return wrong
    away: dict[str, str] = {}

    async def gpus_back() -> bool:
        away.clear()
        away.update({gpu.info.uuid: f"{gpu.state} {gpu.reason}" async for gpu in arena.client.gpus()})
        return set(away.values()) == {f"{GpuState.AVAILABLE} {None}"}

    try:
        await eventually(gpus_back, "every GPU to be AVAILABLE", within_s=60)
    except AssertionError:
        wrong = {uuid: text for uuid, text in away.items() if text != f"{GpuState.AVAILABLE} {None}"}
        return [Violation(Kind.LEFTOVER, f"{uuid} after 60 s: {text}") for uuid, text in wrong.items()]
    job = await arena.client.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
    ended = await arena.client.wait(job.id, timeout_s=20)
    return [] if ended.state is JobState.COMPLETED else [Violation(Kind.LEFTOVER, f"a last job ended {ended.state}")]


async def _open_pipelines(arena: Arena) -> dict[str, str]:
    """Those that have not ended. The jobs of all of them count as submitted."""
    found: dict[str, str] = {}
    for pipeline_id, plan in arena.pipelines.items():
        pipeline = await arena.client.pipelines.get(pipeline_id)
        jobs = [one.job_id for step in pipeline.steps for one in step.jobs if one.job_id is not None]
        arena.jobs.update(dict.fromkeys(jobs, plan))
        if pipeline.state is PipelineState.RUNNING:
            found[pipeline_id] = f"{pipeline.state}: " + ", ".join(f"{one.name} {one.state}" for one in pipeline.steps)
    return found


async def _wrong_pipelines(arena: Arena) -> list[Violation]:
    """Nobody stops their jobs, and none of these fails by itself."""
    wrong: list[Violation] = []
    for pipeline_id in arena.pipelines:
        pipeline = await arena.client.pipelines.get(pipeline_id)
        jobs = {step.name: [one.state for one in step.jobs] for step in pipeline.steps}
        expected = {name: [JobState.COMPLETED] * number for name, number in (("first", 1), ("each", 3), ("last", 1))}
        if pipeline.state is not PipelineState.COMPLETED or jobs != expected:
            wrong.append(Violation(Kind.HISTORY, f"pipeline {pipeline_id} is {pipeline.state}: {jobs}"))
    return wrong


def _unknown_jobs(arena: Arena) -> list[Violation]:
    """Jobs that nobody has submitted: a pipeline may have submitted a step twice."""
    with arena.audit.store.read() as session:
        found = session.execute(select(models.job.c.id, models.job.c.name)).all()
    return [
        Violation(Kind.JOB_UNKNOWN, f"nobody submitted {row.id} {row.name}")
        for row in found
        if row.id not in arena.jobs
    ]


async def ranks_gone(directory: Path) -> None:
    """What still lives after this is a violation."""

    def gone() -> bool:
        return all(run.end is not None for run in read_truth(directory).runs)

    with contextlib.suppress(AssertionError):
        await eventually(gone, "the observer to have seen every end", within_s=5)


def facts_of(arena: Arena) -> Facts:
    feed = arena.feed
    known = arena.audit.jobs(list(arena.jobs))
    return Facts(
        now=boottime(),
        truth=read_truth(arena.directory),
        events=feed.seen,
        promises=feed.promises,
        faults=arena.log.faults,
        jobs=known,
        plans=arena.jobs,
        stopped=arena.stopped,
        usage=arena.audit.usage({hold.job for hold in holds_of(feed.seen)}),
        forgotten=feed.forgotten,
    )
