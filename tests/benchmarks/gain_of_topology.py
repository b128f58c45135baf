"""What looking at NVLink and NUMA is worth: chosen GPUs against those that a blind choice takes.

And what the sets of weights do to connections: ``python -m tests.benchmarks.gain_of_topology``.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from gpu_platform.domain.jobs.placement import Placement, TopologyLevel
from gpu_platform.domain.placing.scheduler_input import GpuRow
from gpu_platform.domain.states import GpuState
from gpu_platform.scheduling.policy import WEIGHTS, Policy
from gpu_platform.topology.description import load_description, machine_ids
from gpu_platform.topology.machine import Machine, machine_of
from gpu_platform.topology.rings import ring_bandwidths
from gpu_platform.topology.subsets import best_subset
from tests.builders import cluster, job

STATES = 300
"""Hosts with other jobs on them, per size."""


def gain_of_topology() -> None:
    """On every machine that is shipped: mean bandwidth of the best ring of the chosen set, ours, first free, random.

    And how often all of the set are in one NUMA node.
    """
    head = f"{'machine':28} {'GPUs':>4} {'chosen':>8} {'first free':>11} {'random':>8} {'gain':>6}"
    print(f"{head}   in one NUMA node: {'chosen':>7} {'first free':>11} {'random':>8}")
    for name in machine_ids():
        machine = machine_of(load_description(name).inventory("host"))
        rings = ring_bandwidths(machine.pair_gb_s)
        for size in (2, 4, 8):
            if size > machine.size:
                continue
            rng = random.Random(size)
            sets: list[tuple[int, int, int]] = []
            for _ in range(STATES):
                free = rng.sample(range(machine.size), rng.randint(size, machine.size))
                best = best_subset(machine, sum(1 << gpu for gpu in free), size, allow_cross_numa=True)
                assert best is not None, "any set will do"
                blind = (sorted(free)[:size], rng.sample(free, size))
                sets.append((best.gpus, *(sum(1 << gpu for gpu in gpus) for gpus in blind)))
            speeds = [statistics.mean(float(rings[gpus]) for gpus in kind) for kind in zip(*sets, strict=True)]
            local = [statistics.mean(is_local(machine, gpus) for gpus in kind) for kind in zip(*sets, strict=True)]
            gain = speeds[0] / max(speeds[1:]) - 1.0
            row = f"{name:28} {size:4} {speeds[0]:8.1f} {speeds[1]:11.1f} {speeds[2]:8.1f} {gain:+6.0%}"
            print(f"{row}   {'':17} {local[0]:7.0%} {local[1]:11.0%} {local[2]:8.0%}")


def connections_by_weights(seeds: range = range(5), names: Sequence[str] = ("tightest_fit", "default")) -> None:
    """Print how well the GPUs of jobs are connected in a cluster that is full, for each set of weights.

    64 hosts of four kinds, eight under a leaf. Jobs of 1 to 8 GPUs, every sixth a gang of 2 to 4 hosts, come 3 % faster
    than they end. All sets of weights get the same jobs. ``relative bandwidth``: that of the slowest hop, by the best
    that the machine has for so many GPUs. ``whole nodes``: the part of the free GPUs that are in NUMA nodes of which
    all GPUs are free.
    """
    print(
        f"{'weights':14} {'one node':>8} {'rel. bandwidth':>15} {'one leaf':>9} {'mean wait':>10} {'whole nodes':>12}"
    )
    for name in names:
        runs = [_Run(name, seed) for seed in seeds]
        local, bandwidth, leaf, wait, whole = (
            statistics.mean(values) for values in zip(*(run.means() for run in runs), strict=True)
        )
        print(f"{name:14} {local:8.2%} {bandwidth:15.3f} {leaf:9.2%} {wait:10.1f} {whole:12.2%}", flush=True)


class _Run:
    def __init__(self, weights: str, seed: int, jobs: int = 2_500) -> None:
        self._machines = cluster()
        for leaf, kind in enumerate(2 * ("dgx-h100", "dgx-a100-40gb", "dgx-1v", "rtx4090-8x-all-sys")):
            for number in range(8):
                self._machines.host(f"h{leaf}-{number}", kind, leaf=f"l{leaf}", spine=f"s{leaf // 4}")
        self._scheduler = self._machines.scheduler(Policy(weights=WEIGHTS[weights]))
        self._came: dict[str, float] = {}
        self._placed: list[tuple[float, Placement]] = []
        self._whole: list[float] = []
        rng, ends, capacity = random.Random(seed), list[tuple[float, str]](), 64 * 8
        lasts = dict[str, float]()
        now = 0.0
        for number in range(jobs):
            hosts = rng.choice((1, 1, 1, 1, 1, rng.choice((2, 2, 4))))
            gpus = rng.choice((4, 8, 8)) if hosts > 1 else rng.choice((1, 1, 2, 2, 3, 4, 4, 8))
            name = f"j{number:05d}"
            lasts[name] = rng.expovariate(1 / 100.0)
            now += hosts * gpus * 100.0 / (1.03 * capacity)
            while ends and ends[0][0] <= now:
                at, ended = heappop(ends)
                self._end(ended)
                for started in self._decide(at):
                    heappush(ends, (at + lasts[started], started))
            self._came[name] = now
            self._scheduler.add(job(gpus, hosts, name=name).arrived(now).lasting(1_000.0).row)
            for started in self._decide(now):
                heappush(ends, (now + lasts[started], started))
            if number > jobs // 5:
                self._whole.append(self._free_in_whole_nodes())

    def means(self) -> tuple[float, ...]:
        later = self._placed[len(self._placed) // 5 :]
        several = [placement for _, placement in later if len(placement.slices[0].gpu_uuids) > 1]
        inside = [part for placement in several for part in self._rated(placement)]
        gangs = [placement.level is TopologyLevel.LEAF for _, placement in later if len(placement.slices) > 1]
        local, relative = zip(*inside, strict=True)
        waits = [wait for wait, _ in later]
        return tuple(statistics.mean(values) for values in (local, relative, gangs, waits, self._whole))

    def _decide(self, now: float) -> list[str]:
        placed = self._scheduler.decide(now).placements
        for row, placement in placed:
            self._set(row.job_id, placement.gpu_uuids, free=False)
            self._scheduler.confirm(row.job_id, row.attempt)
            self._placed.append((now - self._came[row.job_id], placement))
        return [row.job_id for row, _ in placed]

    def _end(self, name: str) -> None:
        [row] = [row for row in self._scheduler.running_jobs if row.job_id == name]
        self._set(name, list(row.gpu_uuids), free=True)

    def _set(self, name: str, uuids: list[str], *, free: bool) -> None:
        state = GpuState.AVAILABLE if free else GpuState.IN_USE
        self._scheduler.upsert_gpus([GpuRow(uuid, "", 0, state, free=free) for uuid in uuids])

    def _rated(self, placement: Placement) -> Iterator[tuple[float, float]]:
        snapshot = self._scheduler.snapshot
        for part in placement.slices:
            host_index = snapshot.host_index(part.host)
            assert host_index is not None
            machine, gpus = snapshot.machines[snapshot.machine[host_index]], 0
            for uuid in part.gpu_uuids:
                place = snapshot.locate(uuid)
                assert place is not None
                gpus |= 1 << place[1]
            size = len(part.gpu_uuids)
            best, got = (best_subset(machine, among, size, allow_cross_numa=True) for among in (machine.all_gpus, gpus))
            assert best is not None
            assert got is not None
            yield is_local(machine, gpus), got.bandwidth_gb_s / best.bandwidth_gb_s

    def _free_in_whole_nodes(self) -> float:
        snapshot, whole, free = self._scheduler.snapshot, 0, 0
        for number, gpus in zip(snapshot.machine.tolist(), snapshot.free.tolist(), strict=True):
            free += gpus.bit_count()
            whole += sum(node.bit_count() for node in snapshot.machines[number].numa_nodes if node & gpus == node)
        return whole / free if free else 1.0


def is_local(machine: Machine, gpus: int) -> bool:
    return any(gpus & ~node == 0 for node in machine.numa_nodes)


if __name__ == "__main__":
    connections_by_weights()
