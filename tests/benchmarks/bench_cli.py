"""How long the command line takes: a new process for each command, as a user has it, at a service on this machine.

``python -m tests.benchmarks.bench_cli [--runs 30]``. The median counts, with the load of the machine beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import structlog

from gpu_platform.store import Store
from tests.support.api_server import application, recording, served, temporal_dev_server
from tests.support.store_cluster import Cluster

COMMAND = str(Path(sys.executable).with_name("gpu-platform"))
WANTED_MS = {("--version",): 50, ("jobs", "list"): 130, ("submit", "--", "true"): 130}
COMMANDS = (*WANTED_MS, ("jobs", "list", "-o", "csv"), ("status",), ("--help",))
JOBS = 50


async def main(address: str, runs: int) -> None:
    # The service runs in this process; its lines would stand between the figures.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as text:
        os.environ["XDG_CONFIG_HOME"] = text
        store = Store(f"sqlite:///{text}/platform.db")
        store.migrate()
        cluster = Cluster(store)
        cluster.host("a", gpus=8)
        for number in range(JOBS):
            cluster.queued(f"j-{number}")
        async with recording(address), served(application(store, address)) as url:
            await asyncio.to_thread(_measure, url, runs)
        store.close()


def _measure(url: str, runs: int) -> None:
    env = {**os.environ, "GPU_PLATFORM_API_URL": url, "GPU_PLATFORM_USER": "ada"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    bare = [sys.executable, "-c", "pass"]
    print(f"load of the machine: {os.getloadavg()[0]:.1f}; {JOBS} jobs; {runs} runs")
    print(f"{'command':28} {'median':>8} {'fastest':>8} {'CPU':>8}")
    for arguments in (None, *COMMANDS):
        argv = bare if arguments is None else [COMMAND, *arguments]
        wall, cpu = zip(*[_timed(argv, env) for _ in range(runs + 1)][1:], strict=True)
        name = "python -c pass" if arguments is None else " ".join(arguments)
        limit = WANTED_MS.get(arguments) if arguments else None
        wanted = "" if limit is None else f"   (wanted: at most {limit} ms)"
        median, processor = statistics.median(wall), statistics.median(cpu)
        print(f"{name:28} {median:5.0f} ms {min(wall):5.0f} ms {processor:5.0f} ms{wanted}")


def _timed(argv: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Wall and processor time of a process, in ms."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    took, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took * 1000, used * 1000


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    arguments = parser.parse_args()
    with temporal_dev_server() as temporal:
        asyncio.run(main(temporal, arguments.runs))
