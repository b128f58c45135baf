"""What looking at NVLink and NUMA is worth: chosen GPUs against those that a blind choice takes."""

from __future__ import annotations

import random
import statistics

from gpu_platform.topology.description import load_description, machine_ids
from gpu_platform.topology.machine import machine_of, members
from gpu_platform.topology.rings import ring_bandwidths
from gpu_platform.topology.subsets import best_subset

STATES = 300
"""Hosts with other jobs on them, per size."""


def gain_of_topology() -> None:
    """On every machine that is shipped: mean bandwidth of the best ring of the chosen set, ours, first free, random."""
    print(f"{'machine':28} {'GPUs':>4} {'chosen':>8} {'first free':>11} {'random':>8}   gain over the better of them")
    for name in machine_ids():
        machine = machine_of(load_description(name).inventory("host"))
        rings = ring_bandwidths(machine.pair_gb_s)
        for size in (2, 4, 8):
            if size > machine.size:
                continue
            rng, ours, first, blind = random.Random(size), [], [], []
            for _ in range(STATES):
                free = rng.sample(range(machine.size), rng.randint(size, machine.size))
                best = best_subset(machine, sum(1 << gpu for gpu in free), size, allow_cross_numa=True)
                assert best is not None, "any set will do"
                ours.append(float(rings[best.gpus]))
                assert len(members(best.gpus)) == size
                first.append(float(rings[sum(1 << gpu for gpu in sorted(free)[:size])]))
                blind.append(float(rings[sum(1 << gpu for gpu in rng.sample(free, size))]))
            chosen, others = statistics.mean(ours), (statistics.mean(first), statistics.mean(blind))
            gain = chosen / max(others) - 1.0
            print(f"{name:28} {size:4} {chosen:8.1f} {others[0]:11.1f} {others[1]:8.1f}   {gain:+.0%}")
