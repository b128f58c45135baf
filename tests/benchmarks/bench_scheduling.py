"""What a decision costs: ``python -m tests.benchmarks.bench_scheduling``.

Prints wall-clock times on this machine; nothing is asserted. The core has no clock: the time is taken here.
"""

from __future__ import annotations

import random
import resource
import statistics
import time
from collections.abc import Callable

from gpu_platform.scheduling.scheduler import Scheduler
from tests.builders import cluster, job

MIX = ("dgx-h100", "dgx-a100-40gb", "dgx-b200", "dgx-1v", "rtx4090-8x-all-sys")


def main() -> None:
    print(f"reference: a loop of 1,000,000 additions takes {_reference_loop() * 1e3:.1f} ms now")
    many_waiting_jobs(hosts=8, waiting=2_000)
    many_waiting_jobs(hosts=8, waiting=10_000)
    many_classes(hosts=100, classes=500)
    for hosts in (1_000, 12_500):
        single_hosts(hosts)
        for gang_hosts in (2, 16, 128):
            gangs(hosts, gang_hosts)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process: {peak:.0f} MiB")


def many_waiting_jobs(hosts: int, waiting: int) -> None:
    """All GPUs taken, identical jobs wait; one GPU is released, one job placed, again and again."""
    machines = cluster().hosts(hosts)
    scheduler = machines.scheduler()
    for number in range(waiting):
        scheduler.add(job(1, name=f"j{number:06d}").row)
    running = list(scheduler.decide(0.0).placements)
    for row, placement in running:
        machines.busy(placement.hosts[0], *placement.slices[0].gpu_indices)
        scheduler.upsert_gpus([machines.gpu_rows[uuid] for uuid in placement.gpu_uuids])
        scheduler.confirm(row.job_id, row.attempt)
    times = []
    for _, placement in running:
        machines.free(placement.hosts[0], *placement.slices[0].gpu_indices)
        scheduler.upsert_gpus([machines.gpu_rows[uuid] for uuid in placement.gpu_uuids])
        times.append(_timed(lambda: scheduler.decide(0.0)))
    _print(f"{hosts * 8} GPUs, {waiting} identical jobs wait, one GPU released: decide", times)


def single_hosts(hosts: int) -> None:
    """A mixed cluster, 80 % full; one job of 1 to 8 GPUs arrives, is placed, and one like it ends."""
    scheduler, rng = _mixed(hosts)
    times = []
    for number in range(400):
        row = job(rng.choice((1, 1, 2, 4, 8)), name=f"s{number}").row
        scheduler.add(row)
        times.append(_timed(lambda: scheduler.decide(0.0)))
        scheduler.reject(row.job_id, row.attempt)
        scheduler.remove(row.job_id)
    _print(f"{hosts} hosts, 80 % full, one single-host job: decide", times[20:])


def gangs(hosts: int, gang_hosts: int) -> None:
    """The same cluster; a gang of whole hosts arrives and is placed, and one like it ends."""
    scheduler, _ = _mixed(hosts)
    times, placed = [], 0
    for number in range(40):
        row = job(8, hosts=gang_hosts, name=f"g{number}").row
        scheduler.add(row)
        begin = time.perf_counter()
        placed += len(scheduler.decide(0.0).placements)
        times.append(time.perf_counter() - begin)
        scheduler.reject(row.job_id, row.attempt)
        scheduler.remove(row.job_id)
    _print(f"{hosts} hosts, 80 % full, a gang of {gang_hosts * 8} GPUs ({placed} of 40 fit): decide", times[5:])


def many_classes(hosts: int, classes: int) -> None:
    """Every waiting job asks for something of its own (another GPU excluded); one GPU is released."""
    machines = cluster().hosts(hosts)
    for name in machines.host_rows:
        machines.busy(name)
    scheduler = machines.scheduler()
    uuids = list(machines.gpu_rows)
    for number in range(classes):
        scheduler.add(job(8, name=f"c{number:05d}").avoiding(gpus=[uuids[number % len(uuids)]]).row)
    times = []
    for number in range(20):
        machines.free(f"dgx-h100-{number}", 0)
        scheduler.upsert_gpus([machines.gpu_rows[uuids[number * 8]]])
        times.append(_timed(lambda: scheduler.decide(0.0)))
    _print(f"{hosts} hosts, {classes} classes of jobs wait, one GPU released: decide", times[1:])


def _mixed(hosts: int) -> tuple[Scheduler, random.Random]:
    rng = random.Random(7)
    machines = cluster()
    for number in range(hosts):
        name, leaf = f"h{number:05d}", number // 32
        machines.host(name, MIX[number // 32 % len(MIX)], leaf=f"leaf-{leaf}", spine=f"spine-{leaf // 16}")
        taken = rng.choice((8, 8, 8, 8, 8, 8, 8, 6, 4, 0))
        if taken:
            machines.busy(name, *sorted(rng.sample(range(8), taken)))
    return machines.scheduler(), rng


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _reference_loop() -> float:
    def additions() -> None:
        total = 0
        for number in range(1_000_000):
            total += number

    return min(_timed(additions) for _ in range(3))


def _print(what: str, times: list[float]) -> None:
    ordered = sorted(times)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    print(f"{what}: p50 {p50 * 1e3:.3f} ms, p99 {p99 * 1e3:.3f} ms, {len(ordered) / sum(ordered):.0f} decisions/s")


if __name__ == "__main__":
    main()
