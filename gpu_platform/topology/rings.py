"""The best ring through a set of GPUs: the one whose slowest hop is fastest.

Collectives run in rings, so this hop is what a gang gets (Patarasuk and Yuan, "Bandwidth optimal
all-reduce algorithms for clusters of workstations", 2009).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ring_bandwidths(pair_gb_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the slowest hop of the best ring for every set of GPUs, [2**n]. 0: there is no ring, or one GPU only.

    Dynamic programming over sets (Held and Karp, 1962) with the bottleneck instead of the sum. All sets of one size
    are computed together: 2**n * n**2 steps, 100 ms for 16 GPUs. A ring of two is one hop.
    """
    n = len(pair_gb_s)
    sets = np.arange(1 << n)
    sizes = np.bitwise_count(sets)
    lowest = np.bitwise_count((sets & -sets) - 1)
    # path[s, j]: the best bottleneck of a path through all of s, from its lowest member to j; 0: none.
    path = np.zeros((1 << n, n))
    path[1 << np.arange(n), np.arange(n)] = np.inf
    for size in range(2, n + 1):
        layer = sets[sizes == size]
        for last in range(n):
            ending = layer[(layer >> last & 1 == 1) & (lowest[layer] < last)]
            before = path[ending ^ (1 << last)]
            path[ending, last] = np.minimum(before, pair_gb_s[:, last]).max(axis=1, initial=0.0)
    rings = np.zeros(1 << n)
    rings[1:] = np.minimum(path[1:], pair_gb_s[lowest[1:]]).max(axis=1, initial=0.0)
    return rings


def greedy_ring_bandwidth(pair_gb_s: NDArray[np.float64]) -> float:
    """Return the slowest hop of a ring that always hops to the fastest neighbour left, [n, n] with n > 1.

    For machines with too many GPUs to try all rings.
    """
    ring, left = [0], set(range(1, len(pair_gb_s)))
    slowest = np.inf
    while left:
        following = max(left, key=lambda gpu: (pair_gb_s[ring[-1], gpu], -gpu))
        slowest = min(slowest, pair_gb_s[ring[-1], following])
        left.remove(following)
        ring.append(following)
    return float(min(slowest, pair_gb_s[ring[-1], 0]))
