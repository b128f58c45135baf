"""Reading a large log: ``python -m tests.benchmarks.bench_logs [--mib 230]``.

From a host's disk through its node worker's HTTP side and the service to a client that throws it away; all of it in
this one process, so on one core. Prints MB/s and by how much the process grew.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import tempfile
import time
from pathlib import Path

import httpx

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.node.processes import logs, rank_log
from gpu_platform.node.system import paths
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.reservations import reserving
from tests.support.api_server import LogFiles, application, bearer, served
from tests.support.store_cluster import NOW, Cluster, key, placement, spec

LINE = b"step 1234567: loss 0.12345678, 8123 tokens/s, 71 degrees\n"


class LogsOnDisk(LogFiles):
    """The node worker's HTTP side over files as a rank's supervisor writes them."""

    def __init__(self, home: Path) -> None:
        super().__init__()
        self._home = home

    def read_log(self, key: AttemptKey, rank: int, offset: int, limit: int) -> logs.LogRead:
        return logs.read_log(self._home, key, rank, offset, limit)


async def measure(directory: Path, mib: int) -> None:
    store = Store(f"sqlite:///{directory / 'platform.db'}")
    store.migrate()
    log = paths.rank_dir(directory, key("j-1"), 0)
    log.mkdir(parents=True)
    writer = rank_log.LogWriter(str(log), rank_log.LogBounds(64 << 20, 1000))
    piece = LINE * (1024 * 1024 // len(LINE))
    for _ in range(mib):
        writer.write(piece)
    async with LogsOnDisk(directory).served() as worker_url, served(application(store, "127.0.0.1:1")) as url:
        Cluster(store).host("a", gpus=1, url=worker_url)
        jobs.submit_job(store, "j-1", spec(), actor="ada", now=NOW, idempotency_key=None)
        jobs.admit_job(store, "j-1", NOW)
        reserving.reserve_gang(store, key("j-1"), placement({"a": [0]}), now=NOW)
        before, began, cpu, got = _peak_mib(), time.perf_counter(), time.process_time(), 0
        async with httpx.AsyncClient(headers=bearer()) as http, http.stream("GET", f"{url}/v1/jobs/j-1/logs") as answer:
            async for data in answer.aiter_raw():
                got += len(data)
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
    store.close()
    assert got == mib * len(piece), got
    print(
        f"a log of {mib} MiB: {took:.2f} s, {got / took / 1e6:.0f} MB/s ({got / cpu / 1e6:.0f} MB per CPU second, "
        f"client included), {_peak_mib() - before:.0f} MiB more memory"
    )


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=230)
    mib = parser.parse_args().mib
    directory = Path(tempfile.mkdtemp())
    try:
        asyncio.run(measure(directory, mib))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
