"""A steady stream of submissions through one client, and how long it stood still."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, pairwise
from pathlib import Path

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.states import JobState
from tests.chaos.arena import Arena
from tests.chaos.audit import Audit
from tests.chaos.checks import find_violations
from tests.chaos.facts import Facts, Violation
from tests.chaos.feed import Feed
from tests.chaos.monkey import spec_of
from tests.chaos.plan import JobPlan
from tests.chaos.storm import facts_of, ranks_gone, settle
from tests.chaos.truth import boottime, observed, read_truth
from tests.real_cluster.cluster import RealCluster
from tests.real_cluster.victims import KINDS
from tests.support.waiting import eventually

PLANS = (JobPlan(0.1), JobPlan(2.0))
FLOWS_S = 120.0


@dataclass(frozen=True)
class Gap:
    """What the death of one process did to the stream. Times in seconds."""

    killed: str
    away_s: float | None
    """How long the process was dead. None: no process was killed."""
    accepted_s: float
    """The longest time without a submission that was accepted."""
    started_s: float
    """The longest time in which no job began."""
    slowest_s: float
    """The longest from a job's acknowledgement until it began, of the jobs acknowledged meanwhile or just before."""

    def __str__(self) -> str:
        away = "–" if self.away_s is None else f"{self.away_s:.1f}"
        return f"| {self.killed} | {away} | {self.accepted_s:.1f} | {self.started_s:.1f} | {self.slowest_s:.1f} |"


COLUMNS = ("killed", "dead for, s", "without an accepted submission, s", "without a started job, s", "slowest start, s")
HEAD = f"| {' | '.join(COLUMNS)} |\n|---|---:|---:|---:|---:|"
JUST_BEFORE_S = 2.0


@dataclass
class Outcome:
    """After the stream has ended and every job with it."""

    facts: Facts
    violations: list[Violation]
    failed: list[str]
    """Submissions that the client gave up."""
    gaps: list[Gap]

    @property
    def lost(self) -> list[str]:
        """Acknowledged jobs that did not end as their program did."""
        known = self.facts.jobs
        return [job for job in self.facts.plans if job not in known or known[job].state is not JobState.COMPLETED]

    @property
    def doubled(self) -> list[str]:
        """Jobs whose program ran more than once, by what the programs wrote."""
        runs = Counter(run.job for run in (*self.facts.truth.runs, *self.facts.truth.repeated))
        return [job for job, count in runs.items() if count > 1]

    def __str__(self) -> str:
        counts = f"{len(self.facts.plans)} jobs, {len(self.failed)} failed submissions"
        found = f"{len(self.lost)} lost, {len(self.doubled)} doubled, {len(self.violations)} violations"
        lines = [f"{counts}, {found}", HEAD, *map(str, self.gaps)]
        return "\n".join([*lines, *self.failed[:10], *self.lost[:10], *self.doubled[:10], *map(str, self.violations)])


@dataclass(frozen=True)
class Period:
    """From a death until the stream flowed again, by CLOCK_BOOTTIME."""

    killed: str
    away_s: float | None
    begin: float
    end: float

    def gap(self, accepted: Mapping[str, float], begun: Mapping[str, float]) -> Gap:
        """``accepted`` and ``begun``: when each job was acknowledged, and when it began."""
        slowest = max(
            begun[job] - at
            for job, at in accepted.items()
            if self.begin - JUST_BEFORE_S < at < self.end and job in begun
        )
        without_accepted, without_started = (
            longest(list(of.values()), self.begin, self.end) for of in (accepted, begun)
        )
        return Gap(self.killed, self.away_s, without_accepted, without_started, slowest)


@dataclass
class Load:
    """Submissions at a steady rate, whether or not those before were answered."""

    arena: Arena
    cluster: RealCluster
    per_s: float
    flowing: int
    """So many jobs that were submitted after a process was back must have started: then the stream flows again."""
    accepted: dict[str, float] = field(default_factory=dict)
    """Job -> when it was acknowledged, by CLOCK_BOOTTIME."""
    failed: list[str] = field(default_factory=list)
    periods: list[Period] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """From here to the end of the block; then every submission has been answered."""
        stop = asyncio.Event()
        stream = asyncio.create_task(self._run(stop))
        try:
            yield
        finally:
            stop.set()
            await stream

    async def _run(self, stop: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        begin, submissions = loop.time(), []
        for number, plan in enumerate(cycle(PLANS)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(begin + number / self.per_s):
                    await stop.wait()
            if stop.is_set():
                break
            submissions.append(asyncio.create_task(self._submit(plan)))
        await asyncio.gather(*submissions)

    async def _submit(self, plan: JobPlan) -> None:
        try:
            job = await self.arena.client.submit(spec_of(plan, self.arena.directory))
        except PlatformError as error:
            self.failed.append(str(error))
            return
        self.accepted[job.id] = boottime()
        self.arena.jobs[job.id] = plan

    async def undisturbed(self) -> None:
        """Wait until the stream flows, and note its gaps as they are without any fault."""
        await self._flows()
        begin = boottime()
        await self._flows()
        self.periods.append(Period("nothing", None, begin, boottime()))

    async def kill(self, kind: str, away_s: float) -> None:
        """Kill a process of this kind, start it again after ``away_s``, and wait until the stream flows."""
        victim = KINDS[kind](self.cluster, self.arena.client)
        begin = boottime()
        with self.arena.log.lasting("kill_process", victim.name, hosts=victim.hosts):
            await victim.kill()
            try:
                await asyncio.sleep(away_s)
            finally:
                await victim.start()
        dead_s = boottime() - begin
        await self._flows()
        self.periods.append(Period(kind, dead_s, begin, boottime()))
        print(
            f"{kind}: dead for {dead_s:.1f} s, all flows again {boottime() - begin:.1f} s after its death", flush=True
        )

    async def _flows(self) -> None:
        since = boottime()

        def flows() -> bool:
            begun = {run.job for run in read_truth(self.arena.directory).runs}
            return sum(at > since for job, at in self.accepted.items() if job in begun) >= self.flowing

        await eventually(flows, f"{self.flowing} new jobs to start", within_s=FLOWS_S)


def longest(times: Sequence[float], begin: float, end: float) -> float:
    """The longest stretch between two neighbours of these times that has a part between ``begin`` and ``end``."""
    pairs = pairwise(sorted(times))
    return max((later - earlier for earlier, later in pairs if later > begin and earlier < end), default=0.0)


async def endure(
    cluster: RealCluster,
    directory: Path,
    deaths: Sequence[tuple[str, float]],
    *,
    per_s: float,
    flowing: int = 10,
    patience_s: float = 10.0,
) -> Outcome:
    """Kill these kinds of processes, one after the other, for so many seconds each, under ``per_s`` submissions a
    second, and account for every job. The client gives a submission up after ``patience_s``; 10 is its default."""
    audit = Audit.of(cluster.platform)
    try:
        async with AsyncClient(cluster.platform.api_urls, retry_for_s=patience_s) as client, Feed(audit) as feed:
            arena = Arena(cluster.platform, client, audit, feed, directory)
            load = Load(arena, cluster, per_s, flowing)
            with observed(directory):
                async with load.running():
                    await load.undisturbed()
                    for kind, away_s in deaths:
                        await load.kill(kind, away_s)
                violations = await settle(arena)
                await feed.catch_up()
                await ranks_gone(directory)
            facts = await asyncio.to_thread(facts_of, arena)
            violations += find_violations(facts) + await asyncio.to_thread(audit.leftovers)
            begun = {run.job: run.begin for run in facts.truth.runs}
            gaps = [period.gap(load.accepted, begun) for period in load.periods]
            return Outcome(facts, violations, load.failed, gaps)
    finally:
        audit.close()
