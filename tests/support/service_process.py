"""The service as a process of its own, and what others notice of it while somebody sends it much."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx

from gpu_platform.node.system.ports import free_port

T = TypeVar("T")


@dataclass
class ServiceProcess:
    """One that runs, and the process that answers its large requests."""

    url: str
    pid: int

    @property
    def pids(self) -> list[int]:
        """The service, and its children."""
        found = [self.pid]
        for pid in found:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            found += map(int, children)
        return found

    def memory_mib(self, what: str = "VmRSS") -> int:
        """What they have in memory, with what they share; ``VmHWM``: at most, since :meth:`forget_peak`."""
        found = 0
        for pid in self.pids:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            found += next(int(line.split()[1]) for line in lines if line.startswith(what))
        return found >> 10

    def forget_peak(self) -> None:
        """Begin to measure the peak anew."""
        for pid in self.pids:
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def processor_s(self) -> float:
        """CPU time that it has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def service_process(
    database_url: str, state_dir: Path, *, warm: bool = True, **environ: str
) -> Iterator[ServiceProcess]:
    """Run the service on a free port until the end of the block. There is no Temporal: what needs it says so.

    ``warm``: its process for large requests has begun, so that what is measured later is what requests take.
    """
    port = free_port()
    variables = {
        "GPU_PLATFORM_DATABASE_URL": database_url,
        "GPU_PLATFORM_STATE_DIR": str(state_dir),
        "GPU_PLATFORM_SERVICE__PORT": str(port),
        "GPU_PLATFORM_TEMPORAL__ADDRESS": "127.0.0.1:1",
        **environ,
    }
    log = state_dir / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.service"], env={**os.environ, **variables}, stdout=output, stderr=output
        )
        try:
            url = f"http://127.0.0.1:{port}"
            until = time.monotonic() + 180
            while True:
                try:
                    httpx.get(f"{url}/healthz", timeout=1)
                    break
                except httpx.TransportError:
                    assert process.poll() is None, log.read_text()[-2000:]
                    assert time.monotonic() < until, log.read_text()[-2000:]
                    time.sleep(0.1)
            if warm:
                httpx.post(f"{url}/v1/arrays", json={}, timeout=30)
            yield ServiceProcess(url, process.pid)
        finally:
            process.terminate()
            process.wait(20)


def slowness() -> float:
    """How much longer something takes here than its CPU time, because other work has the cores: 1 on an idle machine.
    Limits of time are multiplied by it."""
    began, used = time.monotonic(), time.process_time()
    while time.process_time() - used < 0.2:
        sum(range(1000))
    return max(1.0, (time.monotonic() - began) / 0.2)


@dataclass
class Noticed:
    """What others noticed meanwhile."""

    healthz_s: list[float] = field(default_factory=list[float])
    others_s: list[float] = field(default_factory=list[float])
    grown_mib: int = 0
    """By how much the service's memory was larger, at its peak."""

    @property
    def slowest_healthz_s(self) -> float:
        """The slowest answer of ``/healthz``."""
        return max(self.healthz_s)

    @property
    def p99_s(self) -> float:
        """Of another user's requests: of a hundred, the slowest but one."""
        return sorted(self.others_s)[int(len(self.others_s) * 0.99) - 1] if self.others_s else 0.0


@contextmanager
def noticed(service: ServiceProcess, other: dict[str, str]) -> Iterator[Noticed]:
    """Ask for ``/healthz``, and for a list as another user (``other``: its headers), as long as the block lasts.

    In threads: what the test itself sends does not hold up the clock.
    """
    found = Noticed()
    over = threading.Event()

    def ask(path: str, into: list[float], headers: dict[str, str]) -> None:
        with httpx.Client(base_url=service.url, timeout=60, headers=headers) as http:
            while not (into and over.is_set()):
                began = time.monotonic()
                answer = http.get(path)
                assert answer.status_code == 200, answer.text
                into.append(time.monotonic() - began)
                over.wait(0.02)

    service.forget_peak()
    before = service.memory_mib()
    with ThreadPoolExecutor(2) as pool:
        asking = [
            pool.submit(ask, "/healthz", found.healthz_s, {}),
            pool.submit(ask, "/v1/jobs", found.others_s, other),
        ]
        time.sleep(0.2)
        try:
            yield found
        finally:
            over.set()
            for one in asking:
                one.result()
            found.grown_mib = service.memory_mib("VmHWM") - before


async def all_of(*asked: Awaitable[T]) -> list[T]:
    """The answers, in their order."""
    return list(await asyncio.gather(*asked))
