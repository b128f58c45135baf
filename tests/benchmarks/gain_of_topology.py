"""What looking at NVLink and NUMA is worth: chosen GPUs against those that a blind choice takes."""

from __future__ import annotations

import random
import statistics

from gpu_platform.topology.description import load_description, machine_ids
from gpu_platform.topology.machine import Machine, machine_of
from gpu_platform.topology.rings import ring_bandwidths
from gpu_platform.topology.subsets import best_subset

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


def is_local(machine: Machine, gpus: int) -> bool:
    return any(gpus & ~node == 0 for node in machine.numa_nodes)
