"""``make cluster``: the real cluster with two of each process, until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import tempfile
from pathlib import Path

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import IllegalTransition, PlatformError
from gpu_platform.domain.states import ArrayState, JobState
from gpu_platform.observability import configure_logging
from gpu_platform.settings import Settings
from tests.real_cluster.binaries import why_not
from tests.real_cluster.cluster import RealCluster, real_cluster
from tests.support.postgres import find_binaries

JOBS_END_S = 60.0


async def main() -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    with tempfile.TemporaryDirectory(prefix="gpu-platform-cluster-") as directory:
        print("starting: PostgreSQL twice, Temporal's six processes, the platform", flush=True)
        async with real_cluster(Path(directory)) as cluster:
            greet(cluster)
            await stopped.wait()
            print("stopping; nothing of it is kept", flush=True)
            await end_jobs(cluster)


async def end_jobs(cluster: RealCluster) -> None:
    """Kill what runs: ranks outlive their node workers, and would run on without their records."""
    async with AsyncClient(cluster.platform.api_urls) as client:
        jobs = [job.id async for job in client.list(states=[state for state in JobState if not state.is_terminal])]
        arrays = [
            one.id async for one in client.arrays(states=[state for state in ArrayState if not state.is_terminal])
        ]
        for kill, name in [*((client.kill_array, name) for name in arrays), *((client.kill, name) for name in jobs)]:
            with contextlib.suppress(IllegalTransition):  # it has just ended
                await kill(name)
        for array_id in arrays:
            await client.wait_for_array(array_id, timeout_s=JOBS_END_S)
        for job_id in jobs:
            await client.wait(job_id, timeout_s=JOBS_END_S)


def greet(cluster: RealCluster) -> None:
    platform = cluster.platform
    print(f"services:        {'  '.join(platform.api_urls)}")
    print(f"Temporal:        {cluster.temporal.address}, namespace default")
    print(f"PostgreSQL:      {cluster.database.url}")
    print(f"  of Temporal:   {cluster.temporal_database.url}")
    for child in [*cluster.temporal.processes.values(), *platform.children]:
        print(f"  {child.name:20} pid {child.pid:<8} {child.log_file}")
    python = Path(sys.executable).parent
    print(f"export GPU_PLATFORM_API_URL={platform.api_url} GPU_PLATFORM_API_URLS='{json.dumps(platform.api_urls[1:])}'")
    print(f"{python}/gpu-platform submit --gpus 2 --follow -- env")
    print("A process that dies is started again. Ctrl-C ends all.", flush=True)


if __name__ == "__main__":
    if reason := why_not():
        sys.exit(f"cluster: {reason}")
    if find_binaries() is None:
        sys.exit("cluster: PostgreSQL is not installed (Debian: apt-get install postgresql)")
    configure_logging("cluster", cluster=Settings().cluster.name, level="WARNING", json=False)
    try:
        asyncio.run(main())
    except PlatformError as error:
        sys.exit(f"cluster: {error.message}")
