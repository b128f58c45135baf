"""A total that may split: on one host if it fits there, else on the fewest hosts, in slices of different sizes if
necessary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import INSIDE_ONE_HOST, MAX_GPUS_PER_HOST, ResourceRequest
from gpu_platform.domain.placing.placement_request import PlacementRequest
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot
from gpu_platform.scheduling.placing.candidates import Candidates
from gpu_platform.scheduling.placing.domains import domains_of

MAX_MIXED = 64
"""How many hosts are looked at if no host can take exactly the GPUs that are left over."""

CandidateLookup = Callable[[PlacementRequest], Candidates]
"""Finds the candidates for a plain request."""


@dataclass(frozen=True)
class HostShard:
    """A part of a total: ``resources`` (equal slices of one size) on ``hosts``."""

    resources: ResourceRequest
    hosts: HostIndices


def sizes_of(resources: ResourceRequest, snapshot: Snapshot) -> range:
    """Return the possible sizes of a slice, smallest first."""
    largest = min(int(snapshot.size.max(initial=0)), MAX_GPUS_PER_HOST)
    return range(1, min(resources.gpus, largest) + 1)


def capacities(
    request: PlacementRequest, snapshot: Snapshot, answers: Callable[[PlacementRequest], NDArray[np.bool_]]
) -> NDArray[np.intp]:
    """Return by host index the largest slice that each host could take.

    ``answers`` says by host index which hosts can take a plain slice.
    """
    most = np.zeros(len(snapshot), np.intp)
    for size in sizes_of(request.resources, snapshot):
        most[answers(request.asking_for(request.resources.slices(size)))] = size
    return most


def can_hold(resources: ResourceRequest, snapshot: Snapshot, capacity: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return the hosts whose domain could hold the whole total. ``capacity``: the largest slice of each host, by host
    index.
    """
    if resources.required_level in INSIDE_ONE_HOST:
        return capacity >= resources.gpus
    domain = domains_of(resources, snapshot, np.arange(len(snapshot)))
    together = np.bincount(domain, weights=capacity, minlength=1)
    return (capacity > 0) & (together[domain] >= resources.gpus)


def split_total(
    request: PlacementRequest, snapshot: Snapshot, lookup: CandidateLookup, usable: NDArray[np.bool_]
) -> list[HostShard] | None:
    """Divide the total over several of the ``usable`` hosts (by host index), largest slices first. None: they are too
    few.

    The division with the fewest hosts is best, then the one that leaves the fewest GPUs unused on its last host.
    """
    resources = request.resources
    if resources.required_level in INSIDE_ONE_HOST:
        return None
    sizes = sizes_of(resources, snapshot)
    fits = {size: lookup(request.asking_for(resources.slices(size))).fits & usable for size in sizes}
    capacity = np.zeros(len(snapshot), np.intp)
    for size in sizes:
        capacity[fits[size]] = size
    hosts = np.flatnonzero(can_hold(resources, snapshot, capacity))
    domain = domains_of(resources, snapshot, hosts)
    best: tuple[tuple[int, int, int], dict[int, int]] | None = None
    for number in np.unique(domain).tolist():
        inside = hosts[domain == number]
        order = inside[np.lexsort((snapshot.by_name[inside], -capacity[inside]))]
        taken = _fewest(resources.gpus, order, capacity, fits) or _mixed(resources.gpus, order[:MAX_MIXED], fits)
        if taken is not None:
            unused = sum(int(capacity[host_index]) - size for host_index, size in taken.items())
            worth = (len(taken), unused, int(snapshot.by_name[order[0]]))
            if best is None or worth < best[0]:
                best = (worth, taken)
    return None if best is None else _host_shards(resources, snapshot, best[1])


def _fewest(
    total: int, order: HostIndices, capacity: NDArray[np.intp], fits: dict[int, NDArray[np.bool_]]
) -> dict[int, int] | None:
    """Fill the largest hosts, and put the rest on the host that it fills best."""
    full = capacity[order]
    count = int(np.searchsorted(np.cumsum(full), total)) + 1
    if count > len(order):
        return None
    rest = total - int(full[: count - 1].sum())
    last = [host_index for host_index in order[count - 1 :].tolist() if fits[rest][host_index]]
    if not last:
        return None
    tightest = min(last, key=lambda host_index: int(capacity[host_index]))
    return {**dict(zip(order[: count - 1].tolist(), full.tolist(), strict=False)), tightest: rest}


def _mixed(total: int, order: HostIndices, fits: dict[int, NDArray[np.bool_]]) -> dict[int, int] | None:
    """Find sizes that add up exactly, on the fewest hosts. Needed e.g. if rings of two and four GPUs exist but none
    of three."""
    never = len(order) + 1
    fewest = np.full(total + 1, never)
    fewest[0] = 0
    chosen = np.zeros((len(order), total + 1), np.int16)
    for number, host_index in enumerate(order.tolist()):
        before = fewest.copy()
        for size, where in fits.items():
            if where[host_index]:
                better = before[:-size] + 1 < fewest[size:]
                fewest[size:][better] = before[:-size][better] + 1
                chosen[number, size:][better] = size
    if fewest[total] == never:
        return None
    taken: dict[int, int] = {}
    left = total
    for number in range(len(order) - 1, -1, -1):
        if size := int(chosen[number, left]):
            taken[int(order[number])] = size
            left -= size
    return taken


def _host_shards(resources: ResourceRequest, snapshot: Snapshot, taken: dict[int, int]) -> list[HostShard]:
    shards = []
    for size in sorted(set(taken.values()), reverse=True):
        hosts = np.array([host_index for host_index in taken if taken[host_index] == size], np.intp)
        near = [numbers[hosts] for numbers in snapshot.domains.values()]
        hosts = hosts[np.lexsort((snapshot.by_name[hosts], *near))]
        shards.append(HostShard(resources.slices(size, len(hosts)), hosts))
    return shards
