"""What a scrape of each process costs, in a cluster of a hundred simulated hosts with jobs.

``python -m tests.benchmarks.bench_metrics``. Prometheus asks each process every 15 s. Budget: a scrape costs less than
100 ms of CPU, so less than 1 % of a core.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from tests.benchmarks.process_cpu import cpu_of
from tests.support.lines import whole_lines
from tests.support.waiting import eventually
from workers.fleet.spec import FleetSpec
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec
from workers.local.supervision import ChildProcess

HOSTS, RUNNING, WAITING, SCRAPES = 100, 100, 1000, 40
AT_ONCE = 20


async def main() -> None:
    """Start the cluster, fill it, and ask each process again and again."""
    with tempfile.TemporaryDirectory() as directory:
        config = ClusterConfig(
            state_dir=Path(directory) / "state",
            nodes=(NodeSpec("single", "dgx-h100"),),
            fleets=(FleetSpec.parse(f"rack*=dgx-h100:{HOSTS}"),),
            ui=False,
        )
        async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=60) as client:
            await _fill(cluster, client)
            print(f"{HOSTS + 1} hosts of 8 GPUs, {RUNNING} jobs that run, {WAITING} that wait", flush=True)
            for child, url, headers in _processes(cluster):
                await _measure(child, url, headers)


async def _fill(cluster: LocalCluster, client: AsyncClient) -> None:
    run = JobSpec(name="run", command=["sleep", "3600"], gpus=ResourceRequest(gpus_per_host=8))
    for count, spec in ((RUNNING, run), (WAITING, run.model_copy(update={"name": "wait"}))):
        for first in range(0, count, AT_ONCE):
            await asyncio.gather(*(client.submit(spec) for _ in range(first, min(first + AT_ONCE, count))))

    async with httpx.AsyncClient(headers=cluster.headers, timeout=30) as http:

        async def all_run() -> bool:
            text = (await http.get(f"{cluster.api_url}/metrics")).text
            found = re.search(r'^gpu_platform_jobs{state="RUNNING"} (\S+)$', text, re.MULTILINE)
            return found is not None and float(found[1]) >= RUNNING

        await eventually(all_run, "the jobs run", within_s=300)


def _processes(cluster: LocalCluster) -> list[tuple[ChildProcess, str, dict[str, str]]]:
    found = [(cluster.service, f"{cluster.api_url}/metrics", cluster.headers)]
    for child in (*cluster.controls, *cluster.schedulers):
        port = _logged(child, "metrics.served")["port"]
        found.append((child, f"http://127.0.0.1:{port}/metrics", {}))
    for child in cluster.nodes.values():
        address = urlsplit(str(_logged(child, "node.starts")["url"])).netloc
        found.append((child, f"http://{address}/metrics", {}))
    return found


def _logged(child: ChildProcess, event: str) -> dict[str, object]:
    lines = (json.loads(line) for line in whole_lines(child.log_file) if line.startswith("{"))
    return next(line for line in lines if line.get("event") == event)


async def _measure(child: ChildProcess, url: str, headers: dict[str, str]) -> None:
    assert child.pid is not None
    taken: list[float] = []
    text = ""
    async with httpx.AsyncClient(headers=headers, timeout=30) as http:
        idle = cpu_of(child.pid)[0]
        await asyncio.sleep(2.0)
        idle = (cpu_of(child.pid)[0] - idle) / 2.0
        before, began = cpu_of(child.pid)[0], time.perf_counter()
        for _ in range(SCRAPES):
            started = time.perf_counter()
            answer = await http.get(url)
            taken.append((time.perf_counter() - started) * 1000)
            answer.raise_for_status()
            text = answer.text
        spent = cpu_of(child.pid)[0] - before - idle * (time.perf_counter() - began)
    series = [line for line in text.splitlines() if line and not line.startswith("#")]
    sdk = sum(line.startswith("temporal_") for line in series)
    print(
        f"{child.name:<14} p50 {statistics.median(taken):7.1f} ms  longest {max(taken):7.1f} ms  CPU "
        f"{max(0.0, spent) / SCRAPES * 1000:6.1f} ms each  {len(series):5} series ({sdk} of Temporal's SDK)  "
        f"{len(text) / 1000:6.1f} kB",
        flush=True,
    )


if __name__ == "__main__":
    asyncio.run(main())
