"""What the processes of a cgroup may use: memory, tasks, CPUs, and their weight against others.

The same limits are set for all jails together, for each attempt and for each rank. Each is written where the host has
the controller, in cgroup v2 or v1; without it there is no such limit, and the host says so. Kernel:
Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/{memory,pids,cpusets,blkio-controller}.rst. Standard library only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import NamedTuple

from gpu_platform.node.isolation.cgroups.cgroup import Cgroup, write_control

DEFAULT_WEIGHT, GREATEST_WEIGHT = 100, 10_000
"""Weights as cgroup v2 counts them, from 1 to 10,000."""
_V1_CPU_SHARES = 1024
"""What cgroup v1 gives a cgroup that has the default weight."""
_V1_GREATEST_IO_WEIGHT = 1000


class Limits(NamedTuple):
    """The limits of a cgroup. None: no limit. It can be sent as JSON; new fields come at the end."""

    memory_bytes: int | None = None
    pids: int | None = None
    """The most tasks. Each thread is a task."""
    cpus: str | None = None
    """The CPUs as a kernel list, e.g. ``0-31,64-95``."""
    mems: str | None = None
    """The NUMA nodes of the memory, as a kernel list. They belong to ``cpus``."""
    cpu_weight: int | None = None
    """Its part of the CPUs when they are short, against the cgroups beside it: 1 to 10,000."""
    io_weight: int | None = None
    """The same for local disks. Only with the scheduler BFQ or the kernel's I/O cost model."""
    io_bytes_s: int | None = None
    """The most bytes a second that it reads from each local disk, and the most that it writes."""


def apply_limits(cgroup: Cgroup, limits: Limits, *, ends_together: bool = False) -> None:
    """Set the limits. ``ends_together``: at the memory limit the kernel ends all processes of the cgroup, not one.

    Raises ``OSError``.
    """
    _limit_memory(cgroup, limits.memory_bytes, ends_together)
    if limits.pids is not None and (path := cgroup.path_of("pids")):
        write_control(f"{path}/pids.max", str(limits.pids))
    if limits.cpus is not None and (path := cgroup.path_of("cpuset")):
        write_control(f"{path}/cpuset.cpus", limits.cpus)
        if limits.mems is not None:
            write_control(f"{path}/cpuset.mems", limits.mems)
    _weigh(cgroup, limits)
    if limits.io_bytes_s is not None and (path := cgroup.path_of("io")):
        _limit_io(path, limits.io_bytes_s, v2="io" in cgroup.hierarchies.v2)


def local_disks(sys_block: str = "/sys/block") -> list[str]:
    """``major:minor`` of each disk of this machine, never of a partition: the kernel takes limits for whole disks only.
    Loop devices, RAM disks, what is made of other disks, and the hidden paths to an NVMe disk are left out."""
    return list(_disks(sys_block))


def _disks(sys_block: str) -> Iterator[str]:
    for name in sorted(os.listdir(sys_block)):
        if os.path.exists(f"{sys_block}/{name}/device"):
            try:
                with open(f"{sys_block}/{name}/dev") as file:
                    yield file.read().strip()
            except FileNotFoundError:  # hidden, or pulled out just now
                continue


def _limit_memory(cgroup: Cgroup, limit_bytes: int | None, ends_together: bool) -> None:
    path = cgroup.path_of("memory")
    if limit_bytes is None or path is None:
        return
    if "memory" in cgroup.hierarchies.v2:
        write_control(f"{path}/memory.max", str(limit_bytes))
        if ends_together:
            write_control(f"{path}/memory.oom.group", "1")
        _write_if_there(f"{path}/memory.swap.max", "0")
    else:
        _limit_memory_v1(path, str(limit_bytes))


def _limit_memory_v1(path: str, limit: str) -> None:
    """Memory, and memory with swap. The kernel refuses a moment at which the first limit is above the second."""
    with_swap = f"{path}/memory.memsw.limit_in_bytes"
    try:
        write_control(f"{path}/memory.limit_in_bytes", limit)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        _write_if_there(with_swap, limit)
        write_control(f"{path}/memory.limit_in_bytes", limit)
    _write_if_there(with_swap, limit)


def _limit_io(path: str, bytes_s: int, *, v2: bool) -> None:
    for disk in local_disks():
        try:
            if v2:
                write_control(f"{path}/io.max", f"{disk} rbps={bytes_s} wbps={bytes_s}")
            else:
                write_control(f"{path}/blkio.throttle.read_bps_device", f"{disk} {bytes_s}")
                write_control(f"{path}/blkio.throttle.write_bps_device", f"{disk} {bytes_s}")
        except OSError as error:
            if error.errno != errno.ENODEV:  # it was pulled out just now
                raise


def _weigh(cgroup: Cgroup, limits: Limits) -> None:
    if limits.cpu_weight is not None and (path := cgroup.path_of("cpu")):
        if "cpu" in cgroup.hierarchies.v2:
            write_control(f"{path}/cpu.weight", str(limits.cpu_weight))
        else:
            write_control(f"{path}/cpu.shares", str(max(2, limits.cpu_weight * _V1_CPU_SHARES // DEFAULT_WEIGHT)))
    if limits.io_weight is not None and (path := cgroup.path_of("io")):
        if "io" in cgroup.hierarchies.v2:
            _write_if_there(f"{path}/io.weight", str(limits.io_weight))
            _write_if_there(f"{path}/io.bfq.weight", str(min(limits.io_weight, _V1_GREATEST_IO_WEIGHT)))
        else:
            _write_if_there(f"{path}/blkio.bfq.weight", str(min(limits.io_weight, _V1_GREATEST_IO_WEIGHT)))


def _write_if_there(path: str, text: str) -> None:
    """Write to a control file that not every kernel has."""
    if os.path.exists(path):
        write_control(path, text)
