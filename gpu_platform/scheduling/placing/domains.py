"""Domains of the fabric that a gang of several hosts must not leave: those of the required level of its request."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_platform.domain.jobs.resources import INSIDE_ONE_HOST, NETWORK_GB_S, ResourceRequest
from gpu_platform.scheduling.cluster.snapshot import HostIndices, Snapshot


def together(request: ResourceRequest, snapshot: Snapshot, hosts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return those of ``hosts`` (by host index) whose domain has enough of them for the gang."""
    host_indices = np.flatnonzero(hosts)
    if request.hosts == 1:
        return hosts
    answer = np.zeros(len(hosts), bool)
    if len(host_indices) >= request.hosts:
        allowed = domains_of(request, snapshot, host_indices)
        answer[host_indices[np.bincount(allowed)[allowed] >= request.hosts]] = True
    return answer


def is_between_hosts(level: str | None) -> bool:
    """Tell whether the level matters to a gang of several hosts."""
    return level is not None and level != "any" and level not in INSIDE_ONE_HOST


def domains_of(request: ResourceRequest, snapshot: Snapshot, hosts: HostIndices) -> NDArray[np.intp]:
    """Return, for each host, the number of the domain that the gang must not leave."""
    level = request.gang_level
    if level is None or not is_between_hosts(level):
        return np.zeros(len(hosts), np.intp)
    if level not in snapshot.domains:  # nobody has a domain of an unknown level
        return np.arange(len(hosts))
    domains = snapshot.domains[level][hosts]
    if request.min_bandwidth_gb_s <= NETWORK_GB_S:
        return domains
    ports = np.array([machine.port_gb_s for machine in snapshot.machines])[snapshot.machine[hosts]]
    slow = ports < request.min_bandwidth_gb_s
    alone = int(domains.max(initial=0)) + 1 + np.arange(len(hosts))
    return np.where(slow, alone, domains)
