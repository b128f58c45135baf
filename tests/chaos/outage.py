"""Parts of the control plane are away, or stand still, or are started again, and jobs run on.

What counts is what the jobs wrote themselves: each writes ``began`` once, and then the time, twice a second.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx

from gpu_platform.client import AsyncClient
from gpu_platform.client.credentials import TOKEN_FILE
from gpu_platform.domain.errors import PlatformError
from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.store import Store, events
from tests.support.membership import every_host_knows_all
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec
from workers.local.supervision import ChildProcess

WRITES_ITS_LIFE = "echo began >> $OUT; while true; do date +%s.%N >> $OUT; sleep 0.5; done"
LONGEST_GAP_S = 3.0
"""A job that runs writes twice a second. The rest is for a machine on which other tests run."""
PATIENCE_S = 120.0


@dataclass
class Outage:
    """A cluster with jobs that run and jobs that wait for their GPUs."""

    cluster: LocalCluster
    client: AsyncClient
    out: Path
    running: list[Job] = field(default_factory=list)
    waiting: list[Job] = field(default_factory=list)
    submitted: list[Job] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    began_at: float = field(default_factory=time.time)

    async def begin(self, running: int, waiting: int) -> None:
        self.running = [await self.client.submit(long_job(self.out / str(number))) for number in range(running)]
        for job in self.running:
            await eventually(lambda job=job: self._runs(job), f"{job.id} to run", within_s=PATIENCE_S)
        self.waiting = [await self.client.submit(short_job(gpus=8)) for _ in range(waiting)]
        await eventually(lambda: every_host_knows_all(self.cluster), "each host to have the list of all", within_s=60)
        self.began_at = time.time()

    async def submit_steadily(self) -> None:
        """Until cancelled, one job a second, with the client's usual patience."""
        async with AsyncClient(self.cluster.api_urls) as client:
            while True:
                try:
                    self.submitted.append(await client.submit(short_job(gpus=1)))
                except PlatformError as error:
                    self.refused.append(error.message)
                await asyncio.sleep(1.0)

    def client_of_the_second(self) -> AsyncClient:
        """A client of the second service alone, with the token that is kept for the first."""
        token = (self.cluster.config.state_dir / TOKEN_FILE).read_text().strip()
        return AsyncClient(self.cluster.api_urls[1], token=token)

    def last_ways(self) -> dict[str, str]:
        """Host -> the last event that says which way its reports come. On a busy machine there may have been earlier
        ones."""
        told = self.happened("host.reports_through_temporal", "host.reports_to_a_service")
        return {event.host: event.kind for event in told if event.host is not None}

    def happened(self, *kinds: str) -> list[Event]:
        store = Store(self.cluster.database_url)
        try:
            return [event for event in events.read_events(store, 0, 100_000) if event.kind in kinds]
        finally:
            store.close()

    async def hosts_by_temporal(self) -> float:
        """What the leader's metric says; a standby says 0."""
        found = [await metric(child, "gpu_platform_hosts_by_temporal") for child in self.cluster.schedulers]
        return max(found)

    async def all_ready(self) -> bool:
        states = [host.state async for host in self.client.hosts()]
        return states == [HostState.READY] * len(self.cluster.nodes)

    async def check_unharmed(self) -> float:
        """Nothing was restarted and no host was LOST. Returns the longest time in which a job wrote nothing, in
        seconds."""
        await eventually(self.all_ready, "every host to be READY", within_s=90)
        found = [await self.client.get(job.id) for job in self.running]
        unharmed = {(JobState.RUNNING, 1): len(self.running)}
        assert Counter((job.state, job.attempt) for job in found) == unharmed, [job.failure for job in found]
        assert self.happened("host.lost") == []
        gaps = [self._longest_gap_s(self.out / str(number)) for number in range(len(self.running))]
        assert max(gaps) <= LONGEST_GAP_S, gaps
        return max(gaps)

    async def check_the_rest_ends(self) -> None:
        """What waited, and what was submitted meanwhile, runs as soon as there is room."""
        for job in self.running:
            await self.client.cancel(job.id)
        ended = [await self.client.wait(job.id, timeout_s=PATIENCE_S) for job in (*self.waiting, *self.submitted)]
        assert {(job.state, job.attempt) for job in ended} <= {(JobState.COMPLETED, 1)}

    def _longest_gap_s(self, file: Path) -> float:
        began, *times = file.read_text().split()
        assert began == "began"
        assert "began" not in times, f"{file.name} began twice"
        at = [self.began_at, *(one for one in map(float, times) if one > self.began_at), time.time()]
        return max(later - earlier for earlier, later in pairwise(at))

    async def _runs(self, job: Job) -> bool:
        return (await self.client.get(job.id)).state is JobState.RUNNING


@asynccontextmanager
async def outage(tmp_path: Path, hosts: int, *, know_all: bool = True, **config: object) -> AsyncIterator[Outage]:
    """``know_all``: hosts know all services; False: only the first."""
    nodes = tuple(NodeSpec(f"h{number}", "dgx-h100") for number in range(hosts))
    made = ClusterConfig(state_dir=tmp_path / "state", nodes=nodes, ui=False, **config)  # type: ignore[arg-type]
    (tmp_path / "out").mkdir()
    cluster = LocalCluster(made)
    for node in cluster.nodes.values():
        node.env |= {} if know_all else {"GPU_PLATFORM_API_URLS": "[]"}
    async with cluster, AsyncClient(cluster.api_urls, retry_for_s=PATIENCE_S) as client:
        yield Outage(cluster, client, tmp_path / "out")


def long_job(out: Path) -> JobSpec:
    command = ["/bin/sh", "-c", WRITES_ITS_LIFE]
    return JobSpec(command=command, env={"OUT": str(out)}, grace_s=1, gpus=ResourceRequest(gpus_per_host=2))


def short_job(gpus: int) -> JobSpec:
    return JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=gpus))


@asynccontextmanager
async def frozen(children: Sequence[ChildProcess]) -> AsyncIterator[None]:
    """They are there, and do not answer: the kernel accepts connections for them."""
    pids = [pid for child in children if (pid := child.pid) is not None]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def dead(children: Sequence[ChildProcess]) -> AsyncIterator[None]:
    for child in children:
        await child.kill()
    try:
        yield
    finally:
        for child in children:
            await child.start()


async def restart_one_by_one(children: Sequence[ChildProcess], is_back: Callable[[], Awaitable[bool]]) -> None:
    """As an upgrade does it: SIGTERM, start, and the next one when all is well."""
    for child in children:
        await child.stop()
        await child.start()
        await eventually(is_back, f"{child.name} to be back", within_s=60)


async def is_ready(url: str) -> bool:
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=5) as http:
            return (await http.get(f"{url}/readyz")).is_success
    except httpx.TransportError:
        return False


async def metric(child: ChildProcess, name: str) -> float:
    """The value of a metric without labels that a process of a local cluster serves."""
    port = re.findall(r'"port": (\d+).*"metrics.served"', child.log_file.read_text())[-1]
    async with httpx.AsyncClient(trust_env=False, timeout=10) as http:
        lines = (await http.get(f"http://127.0.0.1:{port}/metrics")).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))
