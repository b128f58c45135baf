"""Arrays on real processes: ``python -m tests.benchmarks.bench_arrays [--elements 2000] [--wide 100000]``.

Eight simulated DGX H100 (64 GPUs), Temporal dev server on disk, SQLite. Budgets: docs/reference/measurements.md.
``--wide``: one array of so many elements of simulated duration on a fleet of 32 hosts. SIGKILL of each process of the
platform in turn; memory, history and the ends of all elements are looked at.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path

from sqlalchemy import func, select
from temporalio.client import Client

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.array import Array, ArraySpec
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.store import Store, models
from tests.benchmarks.bench_jobs import HOSTS, cpu_seconds, memory, reference_loop
from workers.fleet.spec import FleetSpec
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

SIMULATED = JobSpec(
    name="simulated", command=["simulated:sleep", "0.1"], grace_s=1, gpus=ResourceRequest(gpus_per_host=1)
)
NOOP = JobSpec(name="noop", command=["/bin/true"], grace_s=1, gpus=ResourceRequest(gpus_per_host=1))


async def run(cluster: LocalCluster, client: AsyncClient, elements: int) -> None:
    """From the submission to the end of the last element."""
    before, began = cpu_seconds(cluster), time.monotonic()
    array = await client.submit_array(NOOP, ArraySpec(indices=f"0-{elements - 1}"))
    accepted = time.monotonic() - began
    array = await _ended(client, array.id)
    took, after = time.monotonic() - began, cpu_seconds(cluster)
    assert array.state is ArrayState.COMPLETED, array.counts
    print(
        f"array of {elements} no-op elements, {HOSTS * 8} GPUs: {elements / took:.0f} elements/s, accepted in "
        f"{accepted * 1000:.0f} ms   (budget >= 500/s)"
    )
    each = {name: (after[name] - before[name]) / elements * 1000 for name in after}
    parts = ", ".join(f"{name} {ms:.2f}" for name, ms in each.items())
    print(f"  CPU per element: {sum(each.values()):.2f} ms: {parts}   (budget <= 4 ms)")


async def _ended(client: AsyncClient, array_id: str) -> Array:
    while not (array := await client.array(array_id)).state.is_terminal:  # noqa: ASYNC110  # in other processes
        await asyncio.sleep(0.25)
    return array


async def run_wide(elements: int, fleet: str) -> None:
    """A wide array, while processes are killed."""
    state_dir = Path(tempfile.mkdtemp(prefix="gpu-platform-bench-"))
    config = ClusterConfig(state_dir=state_dir, nodes=(), fleets=(FleetSpec.parse(fleet),), ui=False)
    try:
        async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=300) as client:
            reference_loop()
            before, began = cpu_seconds(cluster), time.monotonic()
            array = await client.submit_array(SIMULATED, ArraySpec(indices=f"0-{elements - 1}"))
            victims = [*cluster.children, *cluster.children]
            for number, victim in enumerate(victims, start=1):
                await _until_ended(client, array.id, elements * number // (len(victims) + 2))
                print(
                    f"after {time.monotonic() - began:.0f} s {_rss_text(cluster)}; SIGKILL of {victim.name}", flush=True
                )
                if victim.pid is not None:
                    os.kill(victim.pid, signal.SIGKILL)
            array = await _ended(client, array.id)
            took, after = time.monotonic() - began, cpu_seconds(cluster)
            print(f"array of {elements} simulated elements: {array.state}, {array.counts}; {elements / took:.0f}/s")
            each = {name: (after[name] - before[name]) / elements * 1000 for name in after}
            print("  CPU per element, without that of killed processes: " + _parts(each))
            print(f"  {_rss_text(cluster)}")
            await _histories(cluster, array.id)
            _print_account(cluster, array.id, elements)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


async def _until_ended(client: AsyncClient, array_id: str, elements: int) -> None:
    while (array := await client.array(array_id)).counts.get(JobState.COMPLETED, 0) < elements:
        assert not array.state.is_terminal, array.counts
        await asyncio.sleep(0.5)


def _parts(each: dict[str, float]) -> str:
    return f"{sum(each.values()):.2f} ms: " + ", ".join(f"{name} {ms:.2f}" for name, ms in each.items())


def _rss_mib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def _rss_text(cluster: LocalCluster) -> str:
    sizes = {child.name: _rss_mib(child.pid) for child in cluster.children if child.pid is not None}
    return "MiB: " + ", ".join(f"{name} {size}" for name, size in sizes.items())


async def _histories(cluster: LocalCluster, array_id: str) -> None:
    """How long the histories of the array's workflow are: it continues as new."""
    temporal = await Client.connect(cluster.temporal_address)
    lengths: list[int] = []
    sizes: list[int] = []
    async for run in temporal.list_workflows(f'WorkflowId="{array_id}"'):
        described = await temporal.get_workflow_handle(array_id, run_id=run.run_id).describe()
        info = described.raw_description.workflow_execution_info
        lengths.append(info.history_length)
        sizes.append(info.history_size_bytes)
    print(f"  {len(lengths)} runs of its workflow; the longest history: {max(lengths)} events, {max(sizes) >> 10} KiB")


def _print_account(cluster: LocalCluster, array_id: str, elements: int) -> None:
    """What the database says of each element: how often it ran."""
    store = Store(cluster.database_url)
    with store.read() as session:
        of_array = models.job.c.array_id == array_id
        rows = session.execute(
            select(models.job.c.state, models.job.c.attempt, func.count())
            .where(of_array)
            .group_by(models.job.c.state, models.job.c.attempt)
        ).all()
        held = session.scalar(select(func.count()).where(models.allocation.c.released_at.is_(None)))
    store.close()
    found = ", ".join(f"{count} {state} in attempt {attempt}" for state, attempt, count in rows)
    print(f"  {found}; {sum(row[2] for row in rows)} of {elements} known; {held} allocations are left")


async def main(sizes: list[int]) -> None:
    state_dir = Path(tempfile.mkdtemp(prefix="gpu-platform-bench-"))
    nodes = tuple(NodeSpec(f"h{number}", "dgx-h100") for number in range(HOSTS))
    try:
        async with LocalCluster(ClusterConfig(state_dir=state_dir, nodes=nodes, ui=False)) as cluster:
            async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
                await run(cluster, client, 100)  # what is loaded and compiled once
                for elements in sizes:
                    reference_loop()
                    await run(cluster, client, elements)
            memory(cluster)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", nargs="*", type=int, default=[2000], help="sizes of the arrays")
    parser.add_argument("--wide", type=int, help="elements of one array on a fleet, instead of the others")
    parser.add_argument("--fleet", default="w*=dgx-h100:32", help="the fleet for --wide")
    options = parser.parse_args()
    asyncio.run(run_wide(options.wide, options.fleet) if options.wide else main(options.elements))
