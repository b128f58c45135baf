"""Seconds until work goes on after a part of the platform died: ``python -m tests.benchmarks.bench_recovery``.

Six simulated DGX H100 in three racks, Temporal dev server on disk, PostgreSQL. What died is started again at once, as
systemd would. Budgets: docs/reference/measurements.md.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from tests.benchmarks.bench_jobs import NOOP, last_epoch, reference_loop, running
from tests.chaos.killable_postgres import Server, new_server
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec
from workers.local.supervision import ChildProcess

RACKS = ("a", "b", "c")
TIMES = 3
Strike = Callable[[LocalCluster, Server], Awaitable[None]]


def killing(choose: Callable[[LocalCluster], Collection[ChildProcess]]) -> Strike:
    async def strike(cluster: LocalCluster, _: Server) -> None:
        for child in choose(cluster):
            os.kill(child.pid or 0, signal.SIGKILL)

    return strike


async def restart_database(_: LocalCluster, database: Server) -> None:
    await asyncio.to_thread(database.kill, signal.SIGKILL)
    await asyncio.to_thread(database.restart)


CONTROL_PLANE: dict[str, Strike] = {
    "service": killing(lambda cluster: [cluster.service]),
    "control worker": killing(lambda cluster: cluster.controls),
    "leader": killing(lambda cluster: [max(cluster.schedulers, key=lambda child: last_epoch(child.log_file))]),
    "Temporal": killing(lambda cluster: [cluster.temporal]),
    "database": restart_database,
    "whole control plane": killing(
        lambda cluster: [child for child in cluster.children if child not in cluster.nodes.values()]
    ),
}


async def control_plane(cluster: LocalCluster, client: AsyncClient, database: Server) -> None:
    """SIGKILL, then a submission: until that job has ended well."""
    for name, strike in CONTROL_PLANE.items():
        times: list[float] = []
        for _ in range(TIMES):
            began = time.monotonic()
            await strike(cluster, database)
            job = await client.submit(NOOP)
            await client.wait(job.id, timeout_s=120)
            times.append(time.monotonic() - began)
            await cluster.wait_until_ready()
        print(f"{name} killed -> next job done: p50 {statistics.median(times):.1f} s, longest {max(times):.1f} s")


async def hosts(cluster: LocalCluster, client: AsyncClient, what: str, groups: Collection[tuple[str, ...]]) -> None:
    """One of the ``groups`` stands still, each host with a job: until every job's next attempt runs elsewhere."""
    count = max(map(len, groups))
    spec = JobSpec(command=["/bin/sleep", "3600"], grace_s=1, gpus=ResourceRequest(gpus_per_host=8))
    jobs = [await client.submit(spec) for _ in range(len(cluster.nodes) - count)]
    on = {}
    for job in jobs:
        placement = (await running(client, job.id, 1)).placement
        assert placement is not None
        on[placement.hosts[0]] = job.id
    lost = next(group for group in groups if on.keys() >= set(group))
    pids = [cluster.nodes[name].pid or 0 for name in lost]
    began = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.gather(*[running(client, on[name], 2) for name in lost])
        print(f"{what} frozen -> next attempts run: {time.monotonic() - began:.1f} s")
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    for job in jobs:
        await client.kill(job.id)
        await client.wait(job.id, timeout_s=60)
    await cluster.wait_until_ready()


async def main() -> None:
    state_dir = Path(tempfile.mkdtemp(prefix="gpu-platform-bench-"))
    nodes = tuple(NodeSpec(f"{rack}{number}", "dgx-h100", leaf=f"leaf-{rack}") for rack in RACKS for number in range(2))
    try:
        with new_server() as database:
            config = ClusterConfig(state_dir=state_dir, nodes=nodes, ui=False, database_url=database.url)
            async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=120) as client:
                reference_loop()
                await control_plane(cluster, client, database)
                await hosts(cluster, client, "host", [(name,) for name in cluster.nodes])
                await hosts(cluster, client, "rack of two hosts", [(f"{rack}0", f"{rack}1") for rack in RACKS])
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


if __name__ == "__main__":
    asyncio.run(main())
