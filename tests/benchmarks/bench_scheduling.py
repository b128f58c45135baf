"""What a decision costs: ``python -m tests.benchmarks.bench_scheduling`` (``make bench-scheduler``).

Nothing is asserted. Times are wall clock, with the CPU time of this process and a reference loop of plain Python beside
them, so that numbers of different machines and loads can be compared. The core has no clock: the time is taken here.
Budgets are those of the design.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from gpu_platform.domain.hosts.gpu import HostInventory
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.domain.placing.scheduler_input import GpuRow, HostRow, RunningRow
from gpu_platform.domain.states import GpuState, HostState
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.topology.description import load_description
from gpu_platform.topology.fabric import FabricConfig, FabricRule
from tests.benchmarks.gain_of_topology import gain_of_topology
from tests.benchmarks.machines import widened
from tests.builders import job

MIX = ("dgx-h100", "dgx-a100-40gb", "dgx-b200", "rtx4090-8x-all-sys")
LEAF_HOSTS, SPINE_LEAVES = 32, 16


def main(only: list[str]) -> None:
    table = Table()
    for hosts, gpus in ((1_000, 10), (12_500, 8)):
        name = f"{hosts}x{gpus}"
        if only and name not in only:
            continue
        small = hosts == 1_000
        table.head(f"{hosts:,} hosts x {gpus} GPUs, mixed machines, {LEAF_HOSTS} hosts a leaf, 80 % full")
        before = resident_mib()
        bench = Cluster(hosts, gpus)
        bench.arrivals(20)
        table.memory("scheduler and its rows in memory", before, "< 256 MiB" if small else "< 1 GiB")
        budget = "p99 < 5 ms, >= 3,000/s" if small else ">= 500/s"
        table.row("one job of 1 to 8 GPUs arrives: decided", bench.arrivals(1_000), budget)
        table.row("the same with its confirmation and end", bench.arrivals(1_000, whole=True))
        for gang_hosts in (2, 16, 128):
            budget = "p99 < 50 ms" if gang_hosts == 128 and small else ""
            table.row(f"a gang of {gang_hosts} x 8 = {gang_hosts * 8} GPUs", bench.arrivals(60, gang_hosts), budget)
        table.row("feed: one GPU changes hands", bench.gpu_changes(3_000))
        table.row("feed: one host moves to another leaf", bench.host_moves(300))
        table.row("the whole fabric is another one, and a decision", bench.fabric_changes(10), "< 100 ms")
        for waiting in (1_000, 10_000):
            bench.line_up(waiting)
            what = f"{waiting:,} jobs wait that cannot start"
            table.row(f"{what}: one arrives that can", bench.arrivals(500, model="A100"), "as without them")
            table.row(
                f"{what}: a GPU changes hands, a decision", bench.gpu_changes(500, decide=True), "as without them"
            )
            table.row(f"{what}: all reasons, once (not in a decision)", bench.explanations(1 if not small else 3))
        table.memory("scheduler and its rows in memory", before, "< 256 MiB" if small else "< 1 GiB")
    if not only or "classes" in only:
        table.head("100 hosts, all taken; each waiting job asks for something of its own; one GPU is released")
        for classes in (500, 5_000):
            table.row(f"{classes:,} classes of jobs", many_classes(hosts=100, classes=classes))
    if not only or "gain" in only:
        print("\nBus bandwidth of chosen GPUs, GB/s, on hosts where others have GPUs at random")
        gain_of_topology()


@dataclass
class Times:
    wall: list[float]
    cpu_s: float
    note: str = ""


class Table:
    def head(self, text: str) -> None:
        print(
            f"\n{text}\n{'':62} {'p50 ms':>9} {'p99 ms':>9} {'per s':>8} {'CPU ms':>9} {'loop ms':>8}  budget",
            flush=True,
        )

    def row(self, what: str, times: Times, budget: str = "") -> None:
        ordered = sorted(times.wall)
        p50, p99 = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
        numbers = f"{p50 * 1e3:9.3f} {p99 * 1e3:9.3f} {len(ordered) / sum(ordered):8.0f}"
        cpu = times.cpu_s / len(ordered)
        print(f"{what + times.note:62} {numbers} {cpu * 1e3:9.3f} {reference_loop() * 1e3:8.1f}  {budget}", flush=True)

    def memory(self, what: str, before: float, budget: str) -> None:
        now = resident_mib()
        print(f"{what:62} {now - before:6.0f} MiB, {now:.0f} MiB with Python and libraries  {budget}", flush=True)


class Cluster:
    """A scheduler that leads 80 % taken machines: 15 % of the hosts are empty, 65 % full, the others in between."""

    def __init__(self, hosts: int, gpus: int) -> None:
        self._rng = random.Random(7)
        self._clock = 0.0
        self._names = count()
        self.scheduler = Scheduler()
        inventories = [widened(load_description(name), gpus) for name in MIX]
        for number in range(hosts):
            leaf = number // LEAF_HOSTS
            self._add_host(f"h{number:05d}", inventories[leaf % len(MIX)], leaf)
        self.scheduler.decide(self._clock)

    def _add_host(self, name: str, inventory_of: Callable[[str], HostInventory], leaf: int) -> None:
        inventory, rng = inventory_of(name), self._rng
        self.scheduler.upsert_host(HostRow(name, HostState.READY, inventory, f"l{leaf}", f"s{leaf // SPINE_LEAVES}"))
        uuids, size = [gpu.uuid for gpu in inventory.gpus], len(inventory.gpus)
        taken = rng.choices((0, size, rng.choice((size // 2, size - 4, size - 2, size - 1))), (15, 65, 20))[0]
        at = 0
        while at < taken:
            part = min(taken - at, rng.choice((1, 1, 2, 4, 8)))
            self._start(uuids[at : at + part])
            at += part
        rows = [GpuRow(uuid, name, i, _STATE[i >= taken], free=i >= taken) for i, uuid in enumerate(uuids)]
        self.scheduler.upsert_gpus(rows)

    def _start(self, uuids: list[str]) -> None:
        """Half of the jobs have a time limit."""
        limit = self._rng.choice((None, float(self._rng.randrange(3_600, 86_400))))
        name = f"r{next(self._names)}"
        self.scheduler.started(RunningRow(name, 1, "default", "anna", 0, tuple(uuids), 0.0, limit))

    def arrivals(self, rounds: int, hosts: int = 1, *, model: str | None = None, whole: bool = False) -> Times:
        """A job arrives, is placed, and is gone before the next one. ``whole``: all of it counts."""
        rng, scheduler, placed = self._rng, self.scheduler, 0

        def steps() -> Iterator[None]:
            nonlocal placed
            for _ in range(rounds):
                wanted = job(
                    rng.choice((1, 1, 2, 4, 8)) if hosts == 1 else 8, hosts=hosts, name=f"n{next(self._names)}"
                )
                row = wanted.needs(model=model).arrived(1e6).row
                self._clock += 0.01
                yield
                scheduler.add(row)
                placements = scheduler.decide(self._clock).placements
                if not whole:
                    yield
                placed += len(placements)
                self._live_and_die(row, placements[0][1].gpu_uuids if placements else [])
                if whole:
                    yield

        times = timed(steps())
        times.note = "" if placed == rounds else f" ({placed} of {rounds} fit)"
        return times

    def _live_and_die(self, row: PlacementRequest, uuids: list[str]) -> None:
        """Through the feed: the store confirms, and later says that the GPUs are free."""
        for free in (False, True):
            places = [self.scheduler.snapshot.locate(uuid) for uuid in uuids]
            rows = [
                GpuRow(uuid, self.scheduler.snapshot.names[place[0]], place[1], _STATE[free], free=free)
                for uuid, place in zip(uuids, places, strict=True)
                if place is not None
            ]
            self.scheduler.upsert_gpus(rows)
            if not free:
                self.scheduler.confirm(row.job_id, row.attempt)
        self.scheduler.remove(row.job_id)

    def gpu_changes(self, rounds: int, decide: bool = False) -> Times:
        snapshot = self.scheduler.snapshot

        def steps() -> Iterator[None]:
            for number in range(rounds):
                host_index = self._rng.randrange(len(snapshot)) if number % 2 == 0 else host_index  # noqa: F821
                uuid = snapshot.uuid(host_index, 0)
                row = GpuRow(
                    uuid, snapshot.names[host_index], 0, _STATE[not snapshot.is_free(uuid)], not snapshot.is_free(uuid)
                )
                self._clock += 0.01
                yield
                self.scheduler.upsert_gpus([row])
                if decide:
                    self.scheduler.decide(self._clock)
                yield

        return timed(steps())

    def host_moves(self, rounds: int) -> Times:
        def steps() -> Iterator[None]:
            for _ in range(rounds):
                row = self.scheduler.snapshot.host_row(self._rng.choice(self.scheduler.snapshot.names))
                yield
                self.scheduler.upsert_host(replace(row, leaf=f"l{self._rng.randrange(99)}"))
                yield

        return timed(steps())

    def fabric_changes(self, rounds: int) -> Times:
        """Half of the hosts go to one other leaf and back."""

        def steps() -> Iterator[None]:
            for number in range(rounds):
                rule = FabricRule(hosts="h*[02468]", domains={"leaf": "new", "spine": "new"})
                config = FabricConfig(rules=(rule,) if number % 2 == 0 else ())
                self.scheduler.add(row := job(8, hosts=2, name=f"n{next(self._names)}").row)
                yield
                self.scheduler.configure_fabric(config)
                self.scheduler.decide(self._clock)
                yield
                self.scheduler.reject(row.job_id, row.attempt)
                self.scheduler.remove(row.job_id)

        return timed(steps())

    def line_up(self, waiting: int) -> None:
        """Gangs of 20 kinds for H100s that others have, each of another namespace or with another time limit."""
        scheduler = self.scheduler
        hosts = sum(
            self.scheduler.snapshot.machines[n].gpus[0].model.find("H100") >= 0 for n in scheduler.snapshot.machine
        )
        for number in range(len(scheduler.queue), waiting):
            wanted = job(8, hosts=max(2, hosts - 20 + number % 20), name=f"w{number:05d}").needs(model="H100")
            limited = wanted.of(f"team-{number % 30}").lasting(600.0 + number).arrived(number)
            scheduler.add(limited.row)
        while scheduler.decide(self._clock).reasons or scheduler.unexplained:
            self._clock += 1.0

    def explanations(self, rounds: int) -> Times:
        def steps() -> Iterator[None]:
            for _ in range(rounds):
                yield
                self.scheduler.explain(self._clock)
                yield

        return timed(steps())


def many_classes(hosts: int, classes: int) -> Times:
    bench = Cluster(hosts, 8)
    scheduler, snapshot = bench.scheduler, bench.scheduler.snapshot
    uuids = [snapshot.uuid(host_index, position) for host_index in range(hosts) for position in range(8)]
    scheduler.upsert_gpus(GpuRow(uuid, "", 0, GpuState.IN_USE, free=False) for uuid in uuids)
    for number in range(classes):
        avoided = [uuids[number % len(uuids)], uuids[number // len(uuids)]]
        scheduler.add(job(8, name=f"c{number:05d}").avoiding(gpus=avoided).row)
    while scheduler.decide(0.0).reasons or scheduler.unexplained:
        pass

    def steps() -> Iterator[None]:
        for number in range(200):
            yield
            scheduler.upsert_gpus([GpuRow(uuids[number * 3], "", 0, _STATE[1], free=True)])
            scheduler.decide(number / 10)
            yield

    return timed(steps())


def timed(steps: Iterator[None]) -> Times:
    """Between every first and second ``yield``."""
    wall, cpu = [], 0.0
    for _ in steps:
        begin, begin_cpu = time.perf_counter(), time.process_time()
        next(steps)
        wall.append(time.perf_counter() - begin)
        cpu += time.process_time() - begin_cpu
    return Times(wall, cpu)


def reference_loop() -> float:
    """Seconds for 1,000,000 additions in plain Python, the best of three."""

    def additions() -> float:
        begin, total = time.perf_counter(), 0
        for number in range(1_000_000):
            total += number
        return time.perf_counter() - begin

    return min(additions() for _ in range(3))


def resident_mib() -> float:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


_STATE = {False: GpuState.IN_USE, True: GpuState.AVAILABLE}


if __name__ == "__main__":
    main(sys.argv[1:])
