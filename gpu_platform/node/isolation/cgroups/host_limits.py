"""How much of this host its jobs may use: all of them together, one attempt, one rank.

The defaults follow the host's size. What the host itself needs stays out of reach of the jobs: a part of the memory,
half of the process numbers, and half of the CPU time when all want it.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import structlog

from gpu_platform.domain.jobs.attempt import HostPlan
from gpu_platform.node.isolation.cgroups.cgroup import CGROUP_ROOT, Cgroup, Hierarchies
from gpu_platform.node.isolation.cgroups.cgroup_limits import DEFAULT_WEIGHT, GREATEST_WEIGHT, Limits, apply_limits
from gpu_platform.settings import NodeSettings

log = structlog.get_logger(__name__)

_RESERVE = 0.05
"""The share of the host's memory that no job gets, so that a memory bomb ends before the host does."""
_KERNEL = Path("/proc/sys/kernel")


def limit_all_jails(node: NodeSettings, hierarchies: Hierarchies, root: str = CGROUP_ROOT) -> None:
    """Limit what all jails of this machine use together. A limit that the kernel refuses now is logged."""
    cgroup = Cgroup(hierarchies, root)
    cgroup.create(domain=True)
    try:
        apply_limits(cgroup, of_host(node))
    except OSError as error:  # with cgroup v1: jobs use more already
        log.warning("isolation.host_not_limited", error=str(error))


def of_host(node: NodeSettings) -> Limits:
    """The limits of all jails together."""
    return Limits(
        memory_bytes=_memory_bytes(node),
        pids=_pids(node),
        cpu_weight=node.cpu_weight,
        io_weight=node.io_weight,
    )


def of_attempt(node: NodeSettings, plan: HostPlan) -> Limits:
    """The limits of all ranks of an attempt together. Its weight grows with its GPUs."""
    memory = plan.limits.ram_mib or node.attempt_memory_mib
    half = max(_pids(node) // 2, 1)
    pids = half if node.attempt_pids_max is None else node.attempt_pids_max
    return Limits(
        memory_bytes=memory << 20 if memory else _memory_bytes(node),
        pids=pids,
        cpu_weight=min(DEFAULT_WEIGHT * max(len(plan.gpu_uuids), 1), GREATEST_WEIGHT),
        io_bytes_s=None if node.attempt_io_mib_s is None else node.attempt_io_mib_s << 20,
    )


def of_rank(node: NodeSettings, plan: HostPlan, hierarchies: Hierarchies) -> Limits:
    """The limits of one rank. CPUs are chosen elsewhere."""
    memory = node.rank_memory_mib
    all_ranks = of_attempt(node, plan)
    part = None
    if all_ranks.io_bytes_s is not None and "io" in hierarchies.v1:
        # Cgroup v1 does not add up what the cgroups below one read and write (blkio-controller.rst).
        part = max(all_ranks.io_bytes_s // len(plan.ranks), 1)
    return Limits(
        memory_bytes=all_ranks.memory_bytes if memory is None else memory << 20,
        pids=node.rank_pids_max,
        io_bytes_s=part,
    )


def _memory_bytes(node: NodeSettings) -> int:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    reserve = int(total * _RESERVE) if node.host_reserve_mib is None else node.host_reserve_mib << 20
    return max(total - reserve, 1 << 20)


def _pids(node: NodeSettings) -> int:
    return _kernel_pids() // 2 if node.pids_max is None else node.pids_max


@cache
def _kernel_pids() -> int:
    """The most tasks that this kernel lets exist at once."""
    return min(int((_KERNEL / name).read_text()) for name in ("pid_max", "threads-max"))
