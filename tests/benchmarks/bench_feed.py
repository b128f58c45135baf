"""The change feed on PostgreSQL: ``python -m tests.benchmarks.bench_feed [PART ...]``.

``idle``: what the idle platform asks of the database, and the CPU of its processes. ``start``: submit to process, as
``bench_jobs start``. ``lock``: submissions a second by 1, 2 and 4 processes, with the lock that orders events and
without it (nothing follows then, so nothing is lost). PostgreSQL has fsync on.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import shutil
import sqlite3
import statistics
import tempfile
import time
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path

import psycopg
from sqlalchemy import text

from gpu_platform.client import AsyncClient
from gpu_platform.store import Store, database
from gpu_platform.store.jobs import jobs
from tests.benchmarks.bench_jobs import start_latency
from tests.benchmarks.process_cpu import cpu_below
from tests.support.postgres import Databases, find_binaries, running_postgres
from tests.support.store_cluster import spec
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

IDLE_S = 20.0
STARTS = 50
"""Jobs of ``bench_jobs start``."""
ROUNDS = 2
LOCKS = {
    "as it is": None,
    "no NOTIFY": "SELECT pg_advisory_xact_lock(:lock), :channel",
    "no lock, no NOTIFY": "SELECT :lock, :channel",
}


async def platform(url: str, parts: list[str]) -> None:
    state_dir = Path(tempfile.mkdtemp(prefix="gpu-platform-bench-"))
    nodes = tuple(NodeSpec(f"h{number}", "dgx-h100") for number in range(2))
    config = ClusterConfig(state_dir=state_dir, nodes=nodes, ui=False, database_url=url)
    try:
        async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=60) as client:
            await client.wait((await client.submit(spec(command=["/bin/true"]))).id, timeout_s=60)
            if "idle" in parts:
                await idle(cluster, url, "nobody follows events")
                following = asyncio.create_task(follow(client))
                await idle(cluster, url, "one client follows events")
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            if "start" in parts:
                before = size_of(state_dir)
                await start_latency(cluster, client)
                print(f"Temporal's database: {(size_of(state_dir) - before) / STARTS / 1e3:.0f} kB a job", flush=True)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


def size_of(state_dir: Path) -> int:
    """Bytes of Temporal's database, without its log."""
    with sqlite3.connect(state_dir / "temporal.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        [pages] = connection.execute("PRAGMA page_count").fetchone()
        [free] = connection.execute("PRAGMA freelist_count").fetchone()
        [size] = connection.execute("PRAGMA page_size").fetchone()
    return (pages - free) * size


async def follow(client: AsyncClient) -> None:
    async for _ in client.events(follow=True):
        pass


async def idle(cluster: LocalCluster, url: str, what: str) -> None:
    await asyncio.sleep(3)  # what began with the start ends
    before, cpu = transactions(url), cpu_of_processes(cluster)
    began = time.monotonic()
    await asyncio.sleep(IDLE_S)
    took = time.monotonic() - began
    after = cpu_of_processes(cluster)
    each = ", ".join(f"{name} {(after[name] - cpu[name]) / took * 100:.1f}" for name in after)
    print(f"idle, {what}: {(transactions(url) - before) / took:.0f} transactions/s; % of a core: {each}", flush=True)


def transactions(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        [row] = connection.execute(
            "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database WHERE datname = current_database()"
        )
        return int(row[0])


def cpu_of_processes(cluster: LocalCluster) -> dict[str, float]:
    return {child.name: cpu_below(child.pid) for child in cluster.children if child.pid is not None}


def lock(url: str) -> None:
    databases = Databases(url)
    print(f"submissions a second, median of {ROUNDS}", flush=True)
    for writers in (1, 2, 4):
        rates: dict[str, list[float]] = {name: [] for name in LOCKS}
        for _ in range(ROUNDS):  # in turns: the speed of the machine changes
            for name in LOCKS:
                rates[name].append(submissions_per_s(databases, name, writers))
        told = ", ".join(f"{name} {statistics.median(rate):.0f}" for name, rate in rates.items())
        print(f"  {writers} writers: {told}", flush=True)


def submissions_per_s(databases: Databases, variant: str, writers: int, seconds: float = 4.0) -> float:
    name = databases.create()
    url = databases.url(name)
    store = Store(url)
    store.migrate()
    store.close()
    context = multiprocessing.get_context("spawn")
    together = context.Barrier(writers)
    with context.Pool(writers, _share, (together,)) as pool:
        counts = pool.starmap(submit, [(url, variant, number, seconds) for number in range(writers)], chunksize=1)
    databases.drop(name)
    return sum(counts) / seconds


_together: Barrier


def _share(together: Barrier) -> None:
    global _together
    _together = together


def submit(url: str, variant: str, number: int, seconds: float) -> int:
    if (statement := LOCKS[variant]) is not None:
        database._LOCK_EVENTS = text(statement)
    store = Store(url)
    given = spec(name="submitted", command=["/bin/true"])
    jobs.submit_job(store, f"j-first-{number}", given, actor="ada", now=datetime.now(UTC), idempotency_key=None)
    _together.wait()
    ends, count = time.monotonic() + seconds, 0
    while time.monotonic() < ends:
        job_id = f"j-{number}-{count}"
        jobs.submit_job(store, job_id, given, actor="ada", now=datetime.now(UTC), idempotency_key=job_id)
        count += 1
    store.close()
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="idle, start, lock")
    parts = parser.parse_args().parts or ["idle", "start", "lock"]
    binaries = find_binaries()
    if binaries is None:
        print("PostgreSQL is not installed")
        return
    with running_postgres(binaries, durable=True) as url:
        databases = Databases(url)
        if "idle" in parts or "start" in parts:
            asyncio.run(platform(databases.url(databases.create()), parts))
        if "lock" in parts:
            lock(url)


if __name__ == "__main__":
    main()
