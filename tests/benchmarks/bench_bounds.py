"""What others notice of the largest inputs: ``python -m tests.benchmarks.bench_bounds [--seconds 12] [ROW ...]``.

For each row of ``tests/security/test_bounds.py`` one user sends the largest input that is allowed, again and again, and
another one asks for a list. Prints the p99 of that one alone and beside it, their ratio, the slowest ``/healthz``,
and by how much the service grew. The service, the sender and each asker are processes of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import httpx

from gpu_platform.store import Store
from tests.security.test_bounds import ALICE, MALLORY, ROWS, Row, send, serving
from tests.support.api_server import bearer
from tests.support.service_process import ServiceProcess

BETWEEN_S = 0.02


def ask(url: str, path: str, headers: dict[str, str], over: Event, into: Any) -> None:
    """Ask again and again on one connection, and send the seconds of each answer at the end."""
    found: list[float] = []
    address = httpx.URL(url)
    connection = http.client.HTTPConnection(address.host, address.port or 80, timeout=60)
    into.send("begun")
    while not over.wait(BETWEEN_S):
        began = time.perf_counter()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answer.read()
        found.append(time.perf_counter() - began)
        assert answer.status == 200, answer.status
    connection.close()
    into.send(found)


class Asked:
    """The seconds of all answers."""

    def __init__(self) -> None:
        self.list_s: list[float] = []
        self.healthz_s: list[float] = []


@contextmanager
def asking(url: str) -> Iterator[Asked]:
    """Ask as another user, as long as the block lasts."""
    found, spawned = Asked(), multiprocessing.get_context("spawn")
    over = spawned.Event()
    readers: list[tuple[list[float], Any, Any]] = []
    for path, headers, into in (("/v1/jobs", bearer(ALICE), found.list_s), ("/healthz", {}, found.healthz_s)):
        reader, writer = spawned.Pipe(duplex=False)
        process = spawned.Process(target=ask, args=(url, path, headers, over, writer))
        process.start()
        readers.append((into, reader, process))
    for _, reader, _ in readers:
        reader.recv()
    try:
        yield found
    finally:
        over.set()
        for into, reader, process in readers:
            into += reader.recv()
            process.join()


def p99_ms(found: list[float]) -> float:
    return sorted(found)[int(len(found) * 0.99) - 1] * 1e3


async def measure(service: ServiceProcess, row: Row, seconds: float) -> None:
    body, sent = row.largest(), 0
    with asking(service.url) as alone:
        await asyncio.sleep(seconds)
    service.forget_peak()
    before = service.memory_mib()
    with asking(service.url) as beside:
        async with httpx.AsyncClient(base_url=service.url, timeout=60, headers=bearer(MALLORY)) as http:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                await send(http, row, body)
                sent += 1
    one, two = p99_ms(alone.list_s), p99_ms(beside.list_s)
    print(
        f"{row.name:40} {len(body) / 2**20:6.2f} MiB, sent {sent:4}: p99 alone {one:6.1f} ms, beside {two:6.1f} ms, "
        f"{two / one:5.2f} x; /healthz at most {max(beside.healthz_s) * 1e3:4.0f} ms; "
        f"grew by {service.memory_mib('VmHWM') - before} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="names of rows; all without one")
    parser.add_argument("--seconds", type=float, default=12.0)
    asked = parser.parse_args()
    directory = Path(tempfile.mkdtemp())
    try:
        store = Store(f"sqlite:///{directory / 'platform.db'}")
        store.migrate()
        with serving(store, directory) as service:
            for row in ROWS:
                if not asked.rows or row.name in asked.rows:
                    asyncio.run(measure(service, row, asked.seconds))
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
