"""Domains of the fabric that a gang of several hosts must not leave: those of the required level of its request."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import INSIDE_ONE_HOST, NETWORK_GB_S, ResourceRequest
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot


def together(resources: ResourceRequest, snapshot: Snapshot, hosts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return those of ``hosts`` (by host index) whose domain has enough of them for the gang."""
    host_indices = np.flatnonzero(hosts)
    if resources.hosts == 1:
        return hosts
    answer = np.zeros(len(hosts), bool)
    if len(host_indices) >= resources.hosts:
        allowed = domains_of(resources, snapshot, host_indices)
        answer[host_indices[np.bincount(allowed)[allowed] >= resources.hosts]] = True
    return answer


def soonest(
    at: NDArray[np.float64], hosts: HostIndices, ties: NDArray[np.intp], is_later: Callable[[int], bool]
) -> Iterator[int]:
    """Yield ``hosts`` in the order in which they are ready; those with the smaller ``ties`` first.

    ``at``, by host index, may be too early. ``is_later`` is called before a host is yielded: it corrects the host's
    time, and tells whether that is later now. So only hosts that are looked at need the right time. Infinity: never.
    """
    order = np.lexsort((ties, at[hosts]))
    in_order = zip(at[hosts[order]].tolist(), ties[order].tolist(), hosts[order].tolist(), strict=True)
    following, put_back = next(in_order, None), list[tuple[float, int, int]]()
    while following is not None or put_back:
        if following is None or (put_back and put_back[0] < following):
            _, tie, host_index = heappop(put_back)
        else:
            (_, tie, host_index), following = following, next(in_order, None)
        if not is_later(host_index):
            yield host_index
        elif at[host_index] < math.inf:
            heappush(put_back, (float(at[host_index]), tie, host_index))


def is_between_hosts(level: str | None) -> bool:
    """Tell whether the level matters to a gang of several hosts."""
    return level is not None and level != "any" and level not in INSIDE_ONE_HOST


def domains_of(resources: ResourceRequest, snapshot: Snapshot, hosts: HostIndices) -> NDArray[np.intp]:
    """Return, for each host, the number of the domain that the gang must not leave."""
    level = resources.gang_level
    if level is None or not is_between_hosts(level):
        return np.zeros(len(hosts), np.intp)
    if level not in snapshot.domains:  # nobody has a domain of an unknown level
        return np.arange(len(hosts))
    domains = snapshot.domains[level][hosts]
    if resources.min_bandwidth_gb_s <= NETWORK_GB_S:
        return domains
    ports = np.array([machine.port_gb_s for machine in snapshot.machines])[snapshot.machine[hosts]]
    slow = ports < resources.min_bandwidth_gb_s
    alone = int(domains.max(initial=0)) + 1 + np.arange(len(hosts))
    return np.where(slow, alone, domains)
