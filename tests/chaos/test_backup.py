"""Databases are lost under load and put back from dumps, or not at all: nothing is given twice, no GPU stays held.

Hosts and their ranks run on meanwhile, as the instructions for a restore say.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import CannotStart, NotFound
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.states import GpuState, JobState
from tests.chaos.monkey import spec_of
from tests.chaos.plan import JobPlan
from tests.chaos.truth import Run, observed, read_truth
from tests.real_cluster.binaries import why_not
from tests.real_cluster.cluster import RealCluster, real_cluster
from tests.real_cluster.dumps import Dump, destroy, dump_platform, dump_temporal, make_empty, put_back, why_no_dumps
from tests.support.waiting import eventually
from workers.local.cluster import NodeSpec

NODES = (NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100"), NodeSpec("c", "dgx-h100"))
LONG = JobPlan(75.0)
"""It runs before the first dump, and when everything is back."""
QUICK = JobPlan(1.0)
BETWEEN_S = 5.0
"""Between the dumps, and between the last one and the loss: jobs are submitted, begin and end meanwhile."""

missing = why_not() or why_no_dumps()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(missing is not None, reason=str(missing)),
]


@dataclass
class Submitted:
    """Jobs that were acknowledged, by when: before the first dump, between the dumps, after the last one."""

    jobs: dict[str, list[str]] = field(default_factory=dict)

    async def some(self, client: AsyncClient, directory: Path, when: str, *plans: JobPlan) -> None:
        for plan in plans:
            job = await client.submit(spec_of(plan, directory))
            self.jobs.setdefault(when, []).append(job.id)

    async def for_a_while(self, client: AsyncClient, directory: Path, when: str) -> None:
        """A job every half second, every fourth of them a long one."""
        for number in range(round(BETWEEN_S / 0.5)):
            await self.some(client, directory, when, LONG if number % 4 == 0 else QUICK)
            await asyncio.sleep(0.5)

    @property
    def ids(self) -> list[str]:
        return [job for jobs in self.jobs.values() for job in jobs]


@dataclass
class Outcome:
    jobs: dict[str, Job | None]
    """None: nobody knows it any more."""
    runs: tuple[Run, ...]

    def told(self, submitted: Submitted) -> str:
        """How the jobs of each time ended, for people."""
        lines = []
        for when, ids in submitted.jobs.items():
            ends = Counter(
                "unknown" if (job := self.jobs[one]) is None else f"{job.state} in attempt {job.attempt}" for one in ids
            )
            lines.append(f"  {when}: " + ", ".join(f"{count} {end}" for end, count in sorted(ends.items())))
        return "\n".join(lines)


@pytest.mark.parametrize("first", ["temporal", "platform"])
async def test_all_databases_are_put_back_from_dumps_of_different_moments(tmp_path: Path, first: str) -> None:
    async with real_cluster(tmp_path, nodes=NODES, each=1) as cluster, AsyncClient(cluster.platform.api_urls) as client:
        submitted = Submitted()
        with observed(tmp_path):
            await submitted.some(client, tmp_path, "before the first dump", LONG, LONG, LONG, LONG, QUICK, QUICK)
            await all_run(client, submitted.ids[:4])
            takers = {
                "temporal": (dump_temporal, cluster.temporal_database),
                "platform": (dump_platform, cluster.database),
            }
            order = sorted(takers, key=lambda name: name != first)
            dumps: list[Dump] = []
            for number, name in enumerate(order):
                take, server = takers[name]
                dumps.append(await asyncio.to_thread(take, server, tmp_path / "dumps"))
                when = ("between the dumps", "after the last dump")[number]
                await submitted.for_a_while(client, tmp_path, when)
            await lose(cluster, *dumps)
            for dump in dumps:
                await asyncio.to_thread(put_back, dump)
            await come_back(cluster)
            outcome = await settle(client, tmp_path, submitted)
        print(f"\nthe dump of {first} first:\n{outcome.told(submitted)}")
        check(outcome)
        known = [outcome.jobs[job] for job in submitted.jobs["before the first dump"]]
        assert {None if job is None else job.state for job in known} == {JobState.COMPLETED}
        assert {job.attempt for job in known if job is not None} == {1}, "what ran on is found, and not run again"


@pytest.mark.parametrize("lost", ["temporal", "platform"])
async def test_one_database_is_lost_without_a_dump(tmp_path: Path, lost: str) -> None:
    """The other one knows the jobs: they are found, or end with a reason."""
    async with real_cluster(tmp_path, nodes=NODES, each=1) as cluster, AsyncClient(cluster.platform.api_urls) as client:
        submitted = Submitted()
        with observed(tmp_path):
            await submitted.some(client, tmp_path, "before the loss", LONG, LONG, LONG, LONG, QUICK)
            await all_run(client, submitted.ids[:4])
            server = cluster.temporal_database if lost == "temporal" else cluster.database
            dump = await asyncio.to_thread(
                dump_temporal if lost == "temporal" else dump_platform, server, tmp_path / "dumps"
            )
            await lose(cluster, dump)
            if lost == "temporal":
                await cluster.temporal.make_tables()
            else:
                await asyncio.to_thread(make_empty, dump)
                await asyncio.to_thread(cluster.platform.prepare)
            await come_back(cluster)
            outcome = await settle(client, tmp_path, submitted)
        print(f"\nthe database of {lost} is lost:\n{outcome.told(submitted)}")
        check(outcome)
        assert None not in outcome.jobs.values(), "every acknowledged job is known"


async def all_run(client: AsyncClient, jobs: list[str]) -> None:
    async def run() -> bool:
        return {(await client.get(job)).state for job in jobs} == {JobState.RUNNING}

    await eventually(run, "the long jobs to run", within_s=60)


async def lose(cluster: RealCluster, *dumps: Dump) -> None:
    """The machines of the control plane die, and their databases with them. Hosts live on."""
    platform, hosts = cluster.platform, list(cluster.platform.nodes.values())
    dead = [child for child in platform.children if child not in hosts]
    await asyncio.gather(*[child.kill() for child in (*dead, *cluster.temporal.processes.values())])
    for dump in dumps:
        await asyncio.to_thread(destroy, dump)


async def come_back(cluster: RealCluster) -> None:
    platform, hosts = cluster.platform, list(cluster.platform.nodes.values())
    await cluster.temporal.start()
    for child in platform.children:
        if child not in hosts:
            await child.start()
    try:
        await platform.wait_until_ready()
    except CannotStart:  # hosts with attempts that neither database knows are kept out for SPARED_FOR
        await platform.wait_until_ready()


async def settle(client: AsyncClient, directory: Path, submitted: Submitted) -> Outcome:
    """Every job that is known ends, every GPU is free, and every rank is gone."""
    found: dict[str, Job | None] = {}

    async def ended() -> bool:
        for job in submitted.ids:
            found[job] = await known_or_none(client, job)
        return all(job is None or job.state.is_terminal for job in found.values())

    def open_ones() -> str:
        return ", ".join(f"{job.id} {job.state}" for job in found.values() if job and not job.state.is_terminal)

    await waited(ended, "every job to end", open_ones, within_s=240)

    async def free() -> bool:
        return {gpu.state async for gpu in client.gpus()} == {GpuState.AVAILABLE}

    await eventually(free, "every GPU to be AVAILABLE", within_s=60)
    await eventually(lambda: all(run.end is not None for run in read_truth(directory).runs), "every rank to be gone")
    return Outcome(found, read_truth(directory).runs)


async def waited(condition: Callable[[], object], what: str, left: Callable[[], str], within_s: float) -> None:
    try:
        await eventually(condition, what, within_s=within_s)
    except AssertionError as error:
        raise AssertionError(f"{error}: {left()}") from None


async def known_or_none(client: AsyncClient, job: str) -> Job | None:
    try:
        return await client.get(job)
    except NotFound:
        return None


def check(outcome: Outcome) -> None:
    """Nothing was given twice, and what did not complete says why."""
    for first in outcome.runs:
        for second in outcome.runs:
            if first is not second and first.begin < second.begin < (first.end or 0.0):
                assert not {*first.gpus} & {*second.gpus}, f"{first.name} and {second.name} lived on one GPU"
                assert first.job != second.job, f"{first.name} and {second.name} lived together"
    for job in outcome.jobs.values():
        assert job is None or job.state is JobState.COMPLETED or job.failure is not None, job
