"""Which hosts a gang gets: one host, or as many as asked, as close together as can be.

Of the domains (one leaf, then one spine, then all hosts) that have enough hosts, those with one kind of
GPU go first; then the best mean score decides and, when packing, the tightest domain. Within
a spine, whole leaves go first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.job import GpuRequest, Strategy
from gpu_platform.scheduling.framework import Offers
from gpu_platform.scheduling.snapshot import Slots, Snapshot

TIGHT_DOMAIN_WEIGHT = 1.0


def choose_hosts(request: GpuRequest, snapshot: Snapshot, offers: Offers, hosts: Slots) -> Slots | None:
    """The gang's hosts in rank order, out of ``hosts``, which all have an offer; None if they are too few."""
    if len(hosts) < request.hosts:
        return None
    if request.hosts == 1:
        score = offers.score[hosts]
        best = hosts[score == score.max()]
        return best[[np.argmin(snapshot.by_name[best])]]
    everywhere = np.zeros(len(hosts), np.intp)
    for domain in (snapshot.leaf[hosts], snapshot.spine[hosts], everywhere):
        for kind in (snapshot.kind[hosts], everywhere):
            group = domain * (int(kind.max()) + 1) + kind
            chosen = _best_group(request, snapshot, offers, hosts, group)
            if chosen is not None:
                return _closest(request.hosts, snapshot, offers, chosen)
    raise AssertionError("all hosts together are one group, and they were enough")


def _best_group(
    request: GpuRequest, snapshot: Snapshot, offers: Offers, hosts: Slots, group: NDArray[np.intp]
) -> Slots | None:
    """All hosts of the best group with enough of them."""
    score, name = offers.score[hosts], snapshot.by_name[hosts]
    order = np.lexsort((name, -score, group))
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    enough = sizes >= request.hosts
    starts, sizes = starts[enough], sizes[enough]
    if not len(starts):
        return None
    total = np.concatenate(([0.0], np.cumsum(score[order])))
    mean = (total[starts + request.hosts] - total[starts]) / request.hosts
    tight = request.hosts / sizes * (TIGHT_DOMAIN_WEIGHT if request.strategy is Strategy.PACK else -TIGHT_DOMAIN_WEIGHT)
    # Sums round differently at different places of the array: equal must stay equal.
    worth = np.round(mean + tight, 9)
    best = np.lexsort((name[order[starts]], -worth))[0]
    return hosts[order[starts[best] : starts[best] + sizes[best]]]


def _closest(count: int, snapshot: Snapshot, offers: Offers, hosts: Slots) -> Slots:
    """The best ``count`` of a group: best level first, then on as few leaves as can be, neighbours side by side."""
    name = snapshot.by_name[hosts]
    _, leaf, leaf_size = np.unique(snapshot.leaf[hosts], return_inverse=True, return_counts=True)
    first_name = np.full(len(leaf_size), len(snapshot), np.int64)
    np.minimum.at(first_name, leaf, name)
    keys = (name, -offers.score[hosts], first_name[leaf], -leaf_size[leaf], offers.level[hosts])
    taken = np.lexsort(keys)[:count]
    return hosts[taken[np.lexsort((name[taken], first_name[leaf[taken]]))]]
