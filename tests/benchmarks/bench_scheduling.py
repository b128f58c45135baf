"""What a decision costs: ``python -m tests.benchmarks.bench_scheduling``.

Prints wall-clock times on this machine; nothing is asserted. The core has no clock: the time is taken here.
"""

from __future__ import annotations

import random
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import combinations

from gpu_platform.domain.rows import GpuRow
from gpu_platform.domain.states import GpuState
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import load_description, machine_ids
from gpu_platform.topology.machine import machine_of
from gpu_platform.topology.rings import ring_bandwidths
from gpu_platform.topology.subsets import best_subset
from tests.builders import cluster, job

MIX = ("dgx-h100", "dgx-a100-40gb", "dgx-b200", "dgx-1v", "rtx4090-8x-all-sys")


def main() -> None:
    print(f"reference: a loop of 1,000,000 additions takes {_reference_loop() * 1e3:.1f} ms now")
    many_waiting_jobs(hosts=8, waiting=2_000)
    many_waiting_jobs(hosts=8, waiting=10_000)
    many_classes(hosts=100, classes=500)
    many_time_limits(hosts=1_000, waiting=10_000)
    gain_of_topology()
    for hosts in (1_000, 12_500):
        single_hosts(hosts)
        for gang_hosts in (2, 16, 128):
            gangs(hosts, gang_hosts)
        feed(hosts)
        print(f"{hosts} hosts: peak memory so far {_peak_mib():.0f} MiB")
    print(f"reference again: {_reference_loop() * 1e3:.1f} ms")


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
    """The same cluster; a gang arrives and is placed, and one like it ends.

    1,000 hosts have too few free for 128 whole ones: there it takes half ones.
    """
    scheduler, _ = _mixed(hosts)
    gpus_per_host = 8 if gang_hosts < 128 or hosts > 1_000 else 4
    times, placed = [], 0
    for number in range(40):
        row = job(gpus_per_host, hosts=gang_hosts, name=f"g{number}").row
        scheduler.add(row)
        begin = time.perf_counter()
        placed += len(scheduler.decide(0.0).placements)
        times.append(time.perf_counter() - begin)
        scheduler.reject(row.job_id, row.attempt)
        scheduler.remove(row.job_id)
    what = f"a gang of {gang_hosts} x {gpus_per_host} GPUs ({placed} of 40 fit)"
    _print(f"{hosts} hosts, 80 % full, {what}: decide", times[5:])


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


def many_time_limits(hosts: int, waiting: int) -> None:
    """Gangs wait that fit nowhere yet, each with a time limit of its own, the first with a dated reservation."""
    scheduler, _ = _mixed(hosts)
    for number in range(waiting):
        scheduler.add(job(8, hosts=200 + number % 10, name=f"w{number:05d}").lasting(100.0 + number).row)
    scheduler.decide(0.0)
    times = []
    for number in range(20):
        scheduler.snapshot.touch([scheduler.snapshot.uuid(number, 0)])
        times.append(_timed(lambda: scheduler.decide(1.0)))
    _print(f"{hosts} hosts, {waiting} gangs of 10 kinds, each its own time limit, one host changes: decide", times)


def gain_of_topology() -> None:
    """Bandwidth of the chosen GPUs against the mean of all sets, on every machine with all GPUs free."""
    for name in machine_ids():
        machine = machine_of(load_description(name).inventory("host"))
        parts = []
        for size in (2, 4, 8):
            best = best_subset(machine, machine.everything, size, allow_cross_numa=True)
            if best is None or size > machine.size:
                continue
            rings = ring_bandwidths(machine.pair_gb_s)
            sets = combinations(range(machine.size), size)
            blind = statistics.mean(float(rings[sum(1 << p for p in gpus)]) for gpus in sets)
            parts.append(f"{size} GPUs {best.bandwidth_gb_s:.0f} against {blind:.0f} GB/s")
        print(f"topology against blind choice, {name}: {', '.join(parts)}")


def feed(hosts: int) -> None:
    """One GPU changes hands, and one host moves to another leaf: what the snapshot's update costs."""
    scheduler, rng = _mixed(hosts)
    machines = [(name, scheduler.snapshot.uuid(slot, 0)) for slot, name in enumerate(scheduler.snapshot.names)]
    updates, moves = [], []
    for _ in range(2_000):
        name, uuid = rng.choice(machines)
        row = GpuRow(uuid, name, 0, GpuState.AVAILABLE, free=rng.random() < 0.5)
        updates.append(_timed(partial(scheduler.upsert_gpus, [row])))
    for _ in range(200):
        row = scheduler.snapshot.host_row(rng.choice(machines)[0])
        moved = replace(row, leaf=f"leaf-{rng.randrange(99)}")
        moves.append(_timed(partial(scheduler.upsert_host, moved)))
    _print(f"{hosts} hosts: one GPU row", updates)
    _print(f"{hosts} hosts: one host moves to another leaf", moves)


def _mixed(hosts: int, leaf_hosts: int = 32) -> tuple[Scheduler, random.Random]:
    rng = random.Random(7)
    machines = cluster()
    for number in range(hosts):
        name, leaf = f"h{number:05d}", number // leaf_hosts
        machines.host(name, MIX[number // leaf_hosts % len(MIX)], leaf=f"leaf-{leaf}", spine=f"spine-{leaf // 16}")
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


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _print(what: str, times: list[float]) -> None:
    ordered = sorted(times)
    p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    print(f"{what}: p50 {p50 * 1e3:.3f} ms, p99 {p99 * 1e3:.3f} ms, {len(ordered) / sum(ordered):.0f} decisions/s")


if __name__ == "__main__":
    main()
