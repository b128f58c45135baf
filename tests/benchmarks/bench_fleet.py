"""A cluster of a thousand hosts on this machine: ``python -m tests.benchmarks.bench_fleet`` (``make bench-fleet``).

Real control-plane processes, a fleet of simulated hosts, jobs of simulated duration. The budgets beside the figures are
those for 1,000 hosts and two cores. Smaller runs: ``--hosts 100 --jobs 400 --waiting 500 --minutes 1``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
from sqlalchemy import func, select

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import CannotStart
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.node.fleet.register import select_hosts
from gpu_platform.node.nvml.fault_injection import switch_power
from gpu_platform.node.system.paths import control_dir, node_dir
from gpu_platform.settings import Settings
from gpu_platform.store import Store, models
from gpu_platform.store.hosts import hosts
from gpu_platform.store.jobs import jobs
from tests.benchmarks.bench_jobs import last_epoch, reference_loop
from tests.support.postgres import find_binaries, running_postgres
from workers.fleet.spec import FleetSpec
from workers.local.cluster import ClusterConfig, LocalCluster

GPUS_PER_HOST = 8
RUNS_ON = ("simulated:sleep", "86400")
LEASE = timedelta(seconds=Settings().lease_ttl_s)
STANDS_STILL_S = 30
SUBMITTED_AT_ONCE = 64
"""So many submissions wait for their answers at once: the client has 100 connections."""
TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Bench:
    """A running cluster, and what was measured of it."""

    cluster: LocalCluster
    client: AsyncClient
    store: Store
    options: argparse.Namespace
    memory: list[tuple[str, dict[str, float]]] = field(default_factory=list)

    def count(self, *states: JobState) -> int:
        """How many jobs are in these states."""
        counts = jobs.count_jobs_by_state(self.store)
        return sum(counts.get(state, 0) for state in states)

    def states(self) -> str:
        """How many jobs are in each state, for people."""
        return ", ".join(f"{count} {state}" for state, count in jobs.count_jobs_by_state(self.store).items() if count)

    async def until(self, condition: Callable[[], bool], what: str, within_s: float, pause_s: float = 0.5) -> float:
        """Wait. Returns the seconds that it took."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > within_s:
                raise TimeoutError(f"not within {within_s:.0f} s: {what}")
            await asyncio.sleep(pause_s)
        return time.monotonic() - began

    def processes(self) -> dict[str, list[int]]:
        """Name -> pids, of all processes of the platform; those of a PostgreSQL server together."""
        found = {child.name: [child.pid] for child in self.cluster.children if child.pid is not None}
        if self.options.postgres_pid is not None:
            children = Path(f"/proc/{self.options.postgres_pid}/task/{self.options.postgres_pid}/children").read_text()
            found["postgres"] = [self.options.postgres_pid, *map(int, children.split())]
        return found

    def cpu_s(self) -> dict[str, float]:
        """User and system time of each process."""
        return {name: sum(_cpu_of(pid) for pid in pids) for name, pids in self.processes().items()}

    def note_memory(self, when: str) -> None:
        """Remember the memory of each process."""
        self.memory.append((when, {name: sum(map(_rss_of, pids)) for name, pids in self.processes().items()}))

    @contextlib.contextmanager
    def cpu_per(self, what: str, count: Callable[[], int]) -> Iterator[None]:
        """Print the CPU time of each process per thing that was done in the block."""
        before = self.cpu_s()
        try:
            yield
        finally:
            done = max(1, count())
            each = {name: (seconds - before.get(name, seconds)) / done * 1000 for name, seconds in self.cpu_s().items()}
            parts = ", ".join(f"{name} {ms:.1f}" for name, ms in each.items() if ms >= 0.05)
            print(f"  CPU per {what}, of {done}: {sum(each.values()):.1f} ms: {parts}", flush=True)


def show(what: str, value: str, budget: str = "-") -> None:
    print(f"{what:<66} {value:>24}   (budget {budget})", flush=True)


async def steady(bench: Bench, what: str) -> None:
    """CPU of each process, and what goes over the service's connections, while nothing happens."""
    seconds = bench.options.steady_s
    before, sent, began = bench.cpu_s(), _service_bytes(bench.cluster), time.monotonic()
    await asyncio.sleep(seconds)
    took = time.monotonic() - began
    cores = {name: (cpu - before.get(name, cpu)) / took for name, cpu in bench.cpu_s().items()}
    show(f"steady state, {what}: service", f"{cores['service']:.2f} cores", "< 0.5 core")
    rate = (_service_bytes(bench.cluster) - sent) / took / 1e6
    show(f"steady state, {what}: network of the service", f"{rate:.2f} MB/s", "< 1 MB/s")
    parts = ", ".join(f"{name} {used:.2f}" for name, used in cores.items())
    print(f"  cores: {sum(cores.values()):.2f}: {parts}", flush=True)
    bench.note_memory(what)


async def run_jobs(bench: Bench) -> None:
    """So many jobs run at the same time: some of them submitted one by one, the others as the elements of an array."""
    wanted, singles = bench.options.jobs, min(bench.options.singles, bench.options.jobs)
    began = time.monotonic()
    with bench.cpu_per("started job", lambda: bench.count(JobState.RUNNING)):
        await _submit(bench, singles, gpus=1, name="runs")
        accepted = time.monotonic() - began
        await bench.until(lambda: bench.count(JobState.RUNNING) >= singles, "jobs running", 30 + singles / 2, pause_s=2)
    took = time.monotonic() - began
    show(f"{singles} jobs running at once, one GPU each", f"{took:.0f} s, {singles / took:.1f}/s", "all")
    print(f"  accepted in {accepted:.0f} s", flush=True)
    if elements := wanted - singles:
        began = time.monotonic()
        with bench.cpu_per("started element", lambda: bench.count(JobState.RUNNING) - singles):
            await bench.client.submit_array(_job(1, "element"), ArraySpec(indices=f"0-{elements - 1}"))
            await bench.until(lambda: bench.count(JobState.RUNNING) >= wanted, "elements running", 60 + wanted / 10)
        took = time.monotonic() - began
        show(f"{elements} elements of an array beside them", f"{took:.0f} s, {elements / took:.1f}/s", "all")
    await steady(bench, f"{wanted} jobs run")


async def lose_a_rack(bench: Bench) -> None:
    """All hosts of one leaf lose power. Their jobs must run elsewhere."""
    fleet = bench.cluster.config.fleets[0]
    state_dir = bench.cluster.config.state_dir
    lost = select_hosts(state_dir, [], [f"{fleet.name}-leaf-1"])
    running = _running_on(bench, lost)
    for name in lost:
        switch_power(control_dir(node_dir(state_dir, name)), on=False)

    async def elsewhere() -> float:
        began = time.monotonic()
        left = dict.fromkeys(running)
        while left:
            if time.monotonic() - began > 300:
                raise TimeoutError(f"{len(left)} jobs of the lost rack do not run")
            await asyncio.sleep(1.0)
            left = {name: None for name in left if not _runs_elsewhere(bench.store, name)}
        return time.monotonic() - began

    try:
        took = await elsewhere()
        show(f"a rack of {len(lost)} hosts lost, {len(running)} jobs: all run elsewhere", f"{took:.1f} s", "< 30 s")
    finally:
        for name in lost:
            switch_power(control_dir(node_dir(state_dir, name)), on=True)
    took = await bench.until(lambda: _ready(bench) == fleet.count, "the rack to return", 120)
    show("the rack has power again: all its hosts are READY", f"{took:.1f} s")


async def stand_still(bench: Bench) -> None:
    """The service stands still for longer than a lease. Then a thousand hosts want an answer at the same time."""
    before, service = _restarted(bench), bench.processes()["service"][0]
    os.kill(service, signal.SIGSTOP)
    try:
        await asyncio.sleep(STANDS_STILL_S)
    finally:
        os.kill(service, signal.SIGCONT)
    goes_on = datetime.now(UTC)
    took = await bench.until(lambda: _reported_since(bench, goes_on), "reports of all hosts", 300)
    await asyncio.sleep(2 * LEASE.total_seconds())  # what is LOST now is LOST by then
    show(f"the service stood still for {STANDS_STILL_S} s: all hosts have leases again", f"{took:.1f} s")
    lost = bench.options.hosts - _ready(bench)
    show("  hosts LOST, jobs restarted", f"{lost}, {_restarted(bench) - before}", "0, 0")
    bench.note_memory("after the service stood still")


async def fill(bench: Bench) -> None:
    """Whole hosts are taken until no GPU is free."""
    free = bench.options.hosts - -(-bench.options.jobs // GPUS_PER_HOST)
    if free > 0:
        target = bench.count(JobState.RUNNING) + free
        await _submit(bench, free, gpus=GPUS_PER_HOST, name="fills")
        await bench.until(lambda: bench.count(JobState.RUNNING) >= target, "a full cluster", 30 + free, pause_s=1)


async def submissions(bench: Bench) -> None:
    """A steady rate of submissions, while the queue grows. Their times count from when each was due."""
    rate, total = bench.options.rate, bench.options.waiting
    times: list[float] = []
    began = time.monotonic()
    at_once = asyncio.Semaphore(SUBMITTED_AT_ONCE)

    async def one(index: int) -> None:
        due = began + index / rate
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        async with at_once:
            await bench.client.submit(_job(1, "waits"))
        times.append((time.monotonic() - due) * 1000)

    with bench.cpu_per("waiting job", lambda: total):
        await asyncio.gather(*[one(index) for index in range(total)])
    took = time.monotonic() - began
    p50, p99 = _percentiles(times)
    show(
        f"{total} submissions at {rate}/s accepted",
        f"{total / took:.0f}/s, p50 {p50:.0f} p99 {p99:.0f} ms",
        f"{rate}/s",
    )
    took = await bench.until(lambda: bench.count(JobState.QUEUED) >= total, "a long queue", 30 + total / 5, pause_s=2)
    show(f"{total} jobs waiting: all QUEUED", f"{took:.0f} s after the last submission", "all")
    await steady(bench, f"{total} jobs wait")


async def lists(bench: Bench) -> None:
    """Every list, status, queue and describe."""
    async with _http(bench.cluster) as http:
        some = await bench.client.submit(_job(1, "waits"))
        running = (await http.get("/v1/jobs", params={"state": "RUNNING", "limit": 1})).json()["items"][0]["id"]
        host = next(iter(bench.cluster.config.fleets[0].hosts())).name
        asked = {
            "jobs list (100)": "/v1/jobs?limit=100",
            "jobs list --state RUNNING (100)": "/v1/jobs?state=RUNNING&limit=100",
            "jobs describe (running)": f"/v1/jobs/{running}",
            "jobs describe (waiting)": f"/v1/jobs/{some.id}",
            "jobs events": f"/v1/jobs/{running}/events",
            "queue (100)": "/v1/queue?limit=100",
            "queue (1000)": "/v1/queue?limit=1000",
            "hosts list (1000)": "/v1/hosts?limit=1000",
            "hosts describe": f"/v1/hosts/{host}",
            "gpus (1000)": "/v1/gpus?limit=1000",
            "gpus of one host": f"/v1/gpus?host={host}",
            "usage": "/v1/usage",
            "readyz": "/readyz",
            "metrics": "/metrics",
        }
        for what, path in asked.items():
            times = []
            for _ in range(bench.options.repeat):
                began = time.perf_counter()
                answer = await http.get(path)
                times.append((time.perf_counter() - began) * 1000)
                assert answer.is_success, f"{path}: {answer.status_code} {answer.text[:200]}"
            p50, p99 = _percentiles(times)
            show(f"{what}: {len(answer.content) / 1000:.0f} kB", f"p50 {p50:.0f} p99 {p99:.0f} ms", "< 300 ms")
    for words in (["status"], ["queue"], ["jobs", "list"], ["hosts", "list"]):
        times = [_command_ms(bench.cluster, words) for _ in range(3)]
        show(f"gpu-platform {' '.join(words)}: the whole command", f"best {min(times):.0f} ms", "< 300 ms + start")
    show("gpu-platform --version: the start of a command", f"{_command_ms(bench.cluster, ['--version']):.0f} ms")


async def failover(bench: Bench) -> None:
    """SIGKILL of the leader with the full cluster. A GPU becomes free then: until the next job runs on it."""
    running = await _some_running(bench)
    before = bench.count(JobState.RUNNING)
    leader = max((c for c in bench.cluster.schedulers if c.pid), key=lambda child: last_epoch(child.log_file))
    began = time.monotonic()
    os.kill(leader.pid or 0, signal.SIGKILL)
    await bench.client.kill(running)
    await bench.until(lambda: bench.count(JobState.RUNNING) < before, "the end of a job", 60, pause_s=0.05)
    await bench.until(
        lambda: bench.count(JobState.RUNNING) >= before, "a decision of the next leader", 120, pause_s=0.1
    )
    show("leader killed, full cluster -> next decision carried out", f"{time.monotonic() - began:.1f} s", "< 10 s")


async def soak(bench: Bench) -> None:
    """Memory over time."""
    for minute in range(1, bench.options.minutes + 1):
        await asyncio.sleep(60)
        if minute % max(1, bench.options.minutes // 5) == 0:
            bench.note_memory(f"after {minute} min")


def memory(bench: Bench) -> None:
    names = list(bench.memory[-1][1])
    print(f"memory in MiB (budget: flat)\n  {'':34}" + "".join(f"{name[:13]:>14}" for name in names))
    for when, found in bench.memory:
        print(f"  {when:34}" + "".join(f"{found.get(name, 0):14.0f}" for name in names), flush=True)


def _job(gpus: int, name: str) -> JobSpec:
    return JobSpec(
        name=name, command=list(RUNS_ON), grace_s=1, gpus=ResourceRequest(gpus_per_host=gpus), max_hardware_retries=100
    )


async def _submit(bench: Bench, count: int, *, gpus: int, name: str, at_once: int = 16) -> None:
    numbers = iter(range(count))

    async def submitter() -> None:
        for _ in numbers:
            await bench.client.submit(_job(gpus, name))

    await asyncio.gather(*[submitter() for _ in range(at_once)])


def _running_on(bench: Bench, names: Collection[str]) -> list[str]:
    """The jobs that hold something on these hosts, elements of arrays among them."""
    held = models.allocation.c
    with bench.store.read() as session:
        query = select(held.job_id).where(held.released_at.is_(None), held.host.in_(names)).distinct()
        return list(session.scalars(query))


async def _some_running(bench: Bench) -> str:
    async for job in bench.client.list(states=[JobState.RUNNING], page_size=10):
        return job.id
    raise AssertionError("no job runs")


def _runs_elsewhere(store: Store, job_id: str) -> bool:
    job: Job = jobs.get_job(store, job_id)
    return job.state is JobState.RUNNING and job.attempt > 1


def _ready(bench: Bench) -> int:
    return sum(row.state is HostState.READY for row in hosts.read_hosts(bench.store))


def _restarted(bench: Bench) -> int:
    """How many attempts after the first there have been."""
    with bench.store.read() as session:
        return session.scalar(select(func.sum(models.job.c.attempt - 1)).where(models.job.c.attempt > 1)) or 0


def _reported_since(bench: Bench, when: datetime) -> bool:
    """Whether each host has renewed its lease since then."""
    with bench.store.read() as session:
        silent = select(func.count()).select_from(models.host).where(models.host.c.lease_until < when + LEASE)
        return session.scalar(silent) == 0


def _percentiles(times: list[float]) -> tuple[float, float]:
    ordered = sorted(times)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, round(0.99 * len(ordered)))]


def _http(cluster: LocalCluster) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=cluster.api_url, headers=cluster.headers, timeout=60)


def _command_ms(cluster: LocalCluster, words: list[str]) -> float:
    environ = {**os.environ, **cluster.env}
    began = time.perf_counter()
    subprocess.run(
        [Path(sys.executable).with_name("gpu-platform"), *words], env=environ, check=True, capture_output=True
    )
    return (time.perf_counter() - began) * 1000


def _service_bytes(cluster: LocalCluster) -> int:
    """Bytes to and from the service, of connections that are open. 0: there is no ``ss``."""
    if shutil.which("ss") is None:
        return 0
    port = f"sport = :{cluster.config.port}"
    told = subprocess.run(["ss", "-tinH", port], capture_output=True, text=True, check=False).stdout
    return sum(map(int, re.findall(r"bytes_(?:acked|received):(\d+)", told)))


def _cpu_of(pid: int) -> float:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(int(fields[index]) for index in (11, 12, 13, 14)) / TICK
    return 0.0


def _rss_of(pid: int) -> float:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


@dataclass(frozen=True)
class Part:
    """One part of the benchmark, and how long it may take: a busy machine must not keep it for ever."""

    measure: Callable[[Bench], Awaitable[None]]
    within_s: Callable[[argparse.Namespace], float]


PARTS: dict[str, Part] = {
    "idle": Part(lambda bench: steady(bench, "nothing runs"), lambda given: 60 + 2 * given.steady_s),
    "running": Part(run_jobs, lambda given: 180 + given.jobs / 5 + given.steady_s),
    "stands-still": Part(stand_still, lambda given: 480),
    "rack": Part(lose_a_rack, lambda given: 480),
    "fill": Part(fill, lambda given: 120 + given.hosts / 2),
    "waiting": Part(submissions, lambda given: 180 + given.waiting / 10 + given.steady_s),
    "lists": Part(lists, lambda given: 300),
    "failover": Part(failover, lambda given: 240),
    "soak": Part(soak, lambda given: 120 + 60 * given.minutes),
}


@contextlib.asynccontextmanager
async def started(options: argparse.Namespace, url: str | None) -> AsyncGenerator[Bench]:
    state_dir = Path(tempfile.mkdtemp(prefix="gpu-platform-bench-"))
    fleet = FleetSpec.parse(f"rack*={options.machine}:{options.hosts}")
    cluster = LocalCluster(
        ClusterConfig(state_dir=state_dir, nodes=(), fleets=(fleet,), ui=False, database_url=url, settings=SETTINGS)
    )
    store = None
    try:
        cluster.prepare()
        store = Store(cluster.database_url)
        began = time.monotonic()
        await cluster.start()
        took = time.monotonic() - began
        show(
            f"{options.hosts} hosts x {GPUS_PER_HOST} GPUs: start of everything -> all registered",
            f"{took:.1f} s",
            "< 60 s",
        )
        async with AsyncClient(cluster.api_url, retry_for_s=120) as client:
            bench = Bench(cluster, client, store, options)
            print("  CPU so far: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in bench.cpu_s().items()))
            bench.note_memory("registered")
            yield bench
    finally:
        await cluster.stop()
        if store is not None:
            store.close()
        if options.keep is not None:
            shutil.copytree(state_dir / "logs", options.keep, dirs_exist_ok=True)
        shutil.rmtree(state_dir, ignore_errors=True)


SETTINGS = {"GPU_PLATFORM_SERVICE__RATE_LIMITS__REQUESTS": "null"}


async def measure(options: argparse.Namespace, url: str | None) -> None:
    reference_loop()
    try:
        async with started(options, url) as bench:
            for name in options.parts or PARTS:
                await attempt(bench, name)
            memory(bench)
    except CannotStart as error:
        print(f"the cluster did not start, so nothing else was measured: {error}", flush=True)


async def attempt(bench: Bench, name: str) -> None:
    """Measure one part within its time. A part that fails says why, and the others go on."""
    part = PARTS[name]
    within_s = part.within_s(bench.options)
    began, load = time.monotonic(), os.getloadavg()[0]
    try:
        async with asyncio.timeout(within_s):
            await part.measure(bench)
    except TimeoutError as error:
        print(f"FAILED {name}: {error or f'not done within {within_s:.0f} s'}; jobs: {bench.states()}", flush=True)
    except Exception as error:
        print(f"FAILED {name}: {error!r}; jobs: {bench.states()}", flush=True)
    took = time.monotonic() - began
    print(f"-- {name}: {took:.0f} s; load of the machine {load:.1f} -> {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"in this order; default: all. {', '.join(PARTS)}")
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=5000, help="that run at once, one GPU each")
    parser.add_argument("--singles", type=int, default=1000, help="so many of them are no elements of an array")
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--rate", type=int, default=100, help="submissions per second")
    parser.add_argument("--minutes", type=int, default=5, help="how long memory is watched at the end")
    parser.add_argument("--steady-s", type=float, default=30.0)
    parser.add_argument("--repeat", type=int, default=20, help="how often each list is asked for")
    parser.add_argument("--machine", default="dgx-h100")
    parser.add_argument("--database", choices=("sqlite", "postgres", "both"), default="both")
    parser.add_argument("--keep", type=Path, help="a directory to copy the logs to")
    options = parser.parse_args()
    options.postgres_pid = None
    if options.database in ("sqlite", "both"):
        print("== SQLite", flush=True)
        asyncio.run(measure(options, None))
    binaries = find_binaries()
    if options.database in ("postgres", "both"):
        if binaries is None:
            print("no PostgreSQL here: not measured")
            return
        with running_postgres(binaries, durable=True) as url:
            print("== PostgreSQL", flush=True)
            options.postgres_pid = _postmaster(url)
            asyncio.run(measure(options, url))


def _postmaster(url: str) -> int | None:
    """The pid of the server that listens at this URL."""
    port = re.search(r":(\d+)/", url)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0].endswith(b"/postgres") and port is not None and f"port={port[1]}".encode() in words:
                return int(path.parent.name)
    return None


if __name__ == "__main__":
    main()
