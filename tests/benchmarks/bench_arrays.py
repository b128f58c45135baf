"""Arrays on real processes: ``python -m tests.benchmarks.bench_arrays [--elements 2000] [--wide 100000]``.

Eight simulated DGX H100 (64 GPUs), Temporal dev server on disk, SQLite. Budgets: docs/explanation/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from pathlib import Path

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.array import Array, ArraySpec
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import ArrayState
from tests.benchmarks.bench_jobs import HOSTS, cpu_seconds, memory, reference_loop
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

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
    asyncio.run(main(parser.parse_args().elements))
