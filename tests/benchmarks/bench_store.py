"""What the store costs: ``python -m tests.benchmarks.bench_store [--seconds 2]``.

Prints, for SQLite and PostgreSQL (durable: fsync on), the cost of each function on a job's way, and how many
reservations per second there are for single GPUs and for gangs of 8, with one thread and with several.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.placement import Reason, WaitCode
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events
from gpu_platform.store.hosts import hosts
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.leadership import leader, leases
from gpu_platform.store.reservations import attempts, releasing, reserving
from gpu_platform.store.reservations.attempts import AttemptResult
from tests.support.postgres import Databases, find_binaries, running_postgres
from tests.support.store_cluster import Cluster, key, placement, set_job_state, spec

HOSTS = 100
GPUS = 8
WAITING = 1000
ROUNDS = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each rate is measured")
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as directory:
        report("SQLite", Store(f"sqlite:///{Path(directory) / 'platform.db'}"), seconds)
    binaries = find_binaries()
    if binaries is None:
        print("PostgreSQL is not installed")
        return
    with running_postgres(binaries, durable=True) as url:
        databases = Databases(url)
        report("PostgreSQL", Store(databases.url(databases.create())), seconds)


def report(name: str, store: Store, seconds: float) -> None:
    store.migrate()
    cluster = Cluster(store)
    for index in range(HOSTS):
        cluster.host(f"h{index}", gpus=GPUS, now=datetime.now(UTC))
    print(f"{name}: {HOSTS} hosts x {GPUS} GPUs, {WAITING} jobs waiting, median (p95) of {ROUNDS} calls")
    for number in range(WAITING):
        cluster.queued(f"waiting-{number}")
    for function, costs in function_costs(store).items():
        p95 = statistics.quantiles(costs, n=20)[-1]
        print(f"  {function:<24} {statistics.median(costs) * 1e3:7.3f} ms  ({p95 * 1e3:.3f})")
    for gpus in (1, GPUS):
        for threads in (1, 4):
            rate = reservations_per_second(store, gpus, threads, seconds)
            print(f"  reserve + release, {gpus} GPU{'s' * (gpus > 1)}, {threads} thread(s): {rate:,.0f}/s")
    store.close()


def function_costs(store: Store) -> dict[str, list[float]]:
    """Seconds of each call along a job's way."""
    costs: dict[str, list[float]] = {}

    @contextmanager
    def timed(function: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        costs.setdefault(function, []).append(time.perf_counter() - started)

    cluster = Cluster(store)
    epoch = leader.begin_epoch(store, "bench", datetime.now(UTC))
    for number in range(ROUNDS):
        now = datetime.now(UTC)
        job_id = f"cost-{number}"
        this = key(job_id)
        host = f"h{number % HOSTS}"
        with timed("submit_job"):
            jobs.submit_job(store, job_id, spec(gpus_per_host=8), actor="ada", now=now, idempotency_key=job_id)
        with timed("admit_job"):
            jobs.admit_job(store, job_id, now)
        with timed("enqueue"):
            cluster.enqueue(job_id, now=now)
        with timed("change_token"):
            events.change_token(store)
        seq = events.last_seq(store)
        with timed("read_events (3)"):
            events.read_events(store, seq - 3)
        with timed("read_queue (1 job)"):
            queue.read_queue(store, [job_id])
        with timed("read_gpus (1 host)"):
            hosts.read_gpus(store, [host])
        with timed("get_job (waiting)"):
            jobs.get_job(store, job_id)
        with timed("set_reasons (1)"):
            queue.set_reasons(store, {"class": Reason(code=WaitCode.WAITING_FOR_GPUS, message="m")}, now)
        with timed("current_epoch"):
            leader.current_epoch(store)
        plan = placement({host: list(range(GPUS))}, epoch)
        with timed("reserve_gang (8 GPUs)"):
            reserving.reserve_gang(store, this, plan, now=now)
        with timed("mark_running"):
            attempts.mark_running(store, this, now)
        with timed("get_job (running)"):
            jobs.get_job(store, job_id)
        with timed("report_host (no news)"):
            cluster.report(host, GPUS, now=now)
        with timed("read_leases"):
            leases.read_leases(store, 10.0)
        if number % 2:
            with timed("release_gang (8 GPUs)"):
                releasing.release_gang(store, this, now=now)
            with timed("set_job_state"):
                set_job_state(
                    store, job_id, JobState.COMPLETED, now=now, actor="control", update=JobUpdate(exit_code=0)
                )
        else:
            with timed("end_attempt (8 GPUs)"):
                attempts.end_attempt(
                    store,
                    this,
                    [JobState.COMPLETED],
                    now=now,
                    actor="control",
                    result=AttemptResult(update=JobUpdate(exit_code=0)),
                )
        if number % 10 == 0:
            with timed("list_jobs (100)"):
                jobs.list_jobs(store)
            with timed("read_queue (all)"):
                queue.read_queue(store)
    return costs


def reservations_per_second(store: Store, gpus: int, threads: int, seconds: float) -> float:
    """Gangs reserved (and released again) per second; each thread on hosts of its own."""
    cluster = Cluster(store)
    label = f"rate-{gpus}-{threads}"
    for thread in range(threads):
        cluster.queued(f"{label}-{thread}")
    ends = time.perf_counter() + seconds

    def work(thread: int) -> int:
        job_id, done = f"{label}-{thread}", 0
        while time.perf_counter() < ends:
            now = datetime.now(UTC)
            host = f"h{(done * threads + thread) % HOSTS}"
            this = AttemptKey(job_id=job_id, attempt=done + 1)
            reserving.reserve_gang(store, this, placement({host: list(range(gpus))}), now=now)
            attempts.end_attempt(store, this, [JobState.QUEUED], now=now, actor="bench")
            done += 1
        return done

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(work, range(threads))) / seconds


if __name__ == "__main__":
    main()
