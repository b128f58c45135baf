"""No-op jobs on the dev server and on a real Temporal server, side by side in time: ``bench_real_cluster [JOBS]``.

Three platforms with the same eight hosts, alternately: dev server and SQLite (what ``up`` starts), dev server and
PostgreSQL, and a real Temporal server with PostgreSQL for both. Everything that is acknowledged is synced. Needs
``make cluster-setup``. With ``--shards 4 16 64`` the real one alone, with each of these numbers of history shards.
Figures: docs/reference/measurements.md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

from gpu_platform.client import AsyncClient
from tests.benchmarks.bench_jobs import HOSTS, reference_loop, start_latency, throughput
from tests.chaos.killable_postgres import new_server
from tests.real_cluster.binaries import why_not
from tests.real_cluster.cluster import real_cluster
from tests.real_cluster.temporal import SHARDS
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

NODES = tuple(NodeSpec(f"h{number}", "dgx-h100") for number in range(HOSTS))
ROUNDS = 2
Running = tuple[LocalCluster, Mapping[str, int]]
"""The platform, and name and pid of the servers beside it."""


@asynccontextmanager
async def as_up(directory: Path) -> AsyncIterator[Running]:
    async with LocalCluster(ClusterConfig(state_dir=directory, nodes=NODES, ui=False)) as cluster:
        yield cluster, {}


@asynccontextmanager
async def with_postgresql(directory: Path) -> AsyncIterator[Running]:
    with new_server(durable=True) as database:
        config = ClusterConfig(state_dir=directory, nodes=NODES, ui=False, database_url=database.url)
        async with LocalCluster(config) as cluster:
            yield cluster, {"PostgreSQL": database.pid}


@asynccontextmanager
async def real(directory: Path, shards: int = SHARDS) -> AsyncIterator[Running]:
    async with real_cluster(directory, nodes=NODES, each=1, durable=True, shards=shards) as cluster:
        temporal = {child.name: child.pid or 0 for child in cluster.temporal.processes.values()}
        servers = {"PostgreSQL": cluster.database.pid, "PostgreSQL of Temporal": cluster.temporal_database.pid}
        yield cluster.platform, {**temporal, **servers}


PLATFORMS: Mapping[str, Callable[[Path], AbstractAsyncContextManager[Running]]] = {
    "dev server, SQLite": as_up,
    "dev server, PostgreSQL": with_postgresql,
    "real Temporal, PostgreSQL": real,
}


async def main(jobs: int, shards: Sequence[int]) -> None:
    platforms = {f"real Temporal, {number} shards": partial(real, shards=number) for number in shards} or PLATFORMS
    for _ in range(ROUNDS):
        for name, platform in platforms.items():
            print(f"\n{name}:", flush=True)
            with tempfile.TemporaryDirectory(prefix="gpu-platform-bench-") as directory:
                async with (
                    platform(Path(directory)) as (cluster, beside),
                    AsyncClient(cluster.api_url, retry_for_s=60) as client,
                ):
                    reference_loop()
                    await start_latency(cluster, client)
                    await throughput(cluster, client, jobs, beside)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="?", type=int, default=500)
    parser.add_argument("--shards", nargs="+", type=int, default=[], help="compare these numbers of history shards")
    options = parser.parse_args()
    if reason := why_not():
        print(f"not measured: {reason}")
    else:
        asyncio.run(main(options.jobs, options.shards))
