"""``make cluster``: the real cluster with two of each process, until Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tempfile
from pathlib import Path

from gpu_platform.domain.errors import PlatformError
from gpu_platform.observability import configure_logging
from tests.postgres import find_binaries
from tests.real_cluster.binaries import why_not
from tests.real_cluster.cluster import RealCluster, real_cluster


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
    configure_logging("cluster", level="WARNING", json=False)
    try:
        asyncio.run(main())
    except PlatformError as error:
        sys.exit(f"cluster: {error.message}")
