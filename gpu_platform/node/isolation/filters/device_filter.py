"""The device filter: the kernel lets the processes of a cgroup open only certain device nodes.

With cgroup v2 an eBPF program of type ``BPF_PROG_TYPE_CGROUP_DEVICE``, written here instruction by
instruction and attached to the cgroup, where it stays until the cgroup is removed; every cgroup
below obeys it as well. With cgroup v1 the devices controller. Kernel:
Documentation/admin-guide/cgroup-v2.rst "Device controller", include/uapi/linux/bpf.h, bpf(2).
Standard library only.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from gpu_platform.node.isolation.cgroups.cgroup import Cgroup, write_control
from gpu_platform.node.isolation.filters import bpf
from gpu_platform.node.isolation.filters.bpf import instruction

MKNOD, READ, WRITE = 1, 2, 4
_ACCESS = READ | WRITE
_CHAR = 2
"""The kernel's BPF_DEVCG_DEV_CHAR."""
_PROG_TYPE_CGROUP_DEVICE = 15
_ATTACH_CGROUP_DEVICE = 6


class Device(NamedTuple):
    """A character device that may be read and written. Making its node is never allowed."""

    major: int
    minor: int | None
    """None: every minor."""


HARMLESS = (
    Device(1, 3),  # null
    Device(1, 5),  # zero
    Device(1, 7),  # full
    Device(1, 8),  # random
    Device(1, 9),  # urandom
    Device(5, 0),  # tty: the caller's own terminal
    Device(5, 2),  # ptmx: makes terminals of the private devpts
    Device(136, None),  # the slaves of these terminals
)
"""Devices that every program expects, and that cannot harm other jobs."""


def device_of(path: str) -> Device:
    """The device of a node. Raises ``OSError``, or ``ValueError`` if the file is no character device."""
    status = os.stat(path)
    if not stat.S_ISCHR(status.st_mode):
        raise ValueError(f"{path} is not a character device")
    return Device(os.major(status.st_rdev), os.minor(status.st_rdev))


def admit_only(cgroup: Cgroup, devices: Sequence[Device]) -> None:
    """Let processes in and below ``cgroup`` open only these devices, from now on. Raises ``OSError``."""
    if cgroup.hierarchies.unified is not None and has_bpf():
        bpf.attach(_load(devices), cgroup.path, _ATTACH_CGROUP_DEVICE)
    else:
        _admit_only_v1(cgroup, devices)


def is_supported(cgroup: Cgroup) -> bool:
    """True if the kernel can filter devices: by eBPF in cgroup v2, or by the devices controller of v1."""
    return (cgroup.hierarchies.unified is not None and has_bpf()) or "devices" in cgroup.hierarchies.v1


def has_bpf() -> bool:
    """True if the kernel accepts such a program from this process (root, CONFIG_CGROUP_BPF)."""
    try:
        os.close(_load(()))
    except OSError:
        return False
    return True


def program(devices: Sequence[Device]) -> bytes:
    """The eBPF program. It returns 1 if one of ``devices`` is to be read or written, else 0.

    Its context, ``struct bpf_cgroup_dev_ctx``, has three words: access << 16 | kind, major, minor.
    """
    code = [
        instruction(0x61, 2, 1, 0, 0),  # r2 = word 0
        instruction(0xBF, 3, 2, 0, 0),  # r3 = r2
        instruction(0x57, 2, 0, 0, 0xFFFF),  # r2 = kind
        instruction(0x77, 3, 0, 0, 16),  # r3 = access
        instruction(0x57, 3, 0, 0, ~_ACCESS),  # r3 = access that is not reading or writing
        instruction(0x61, 4, 1, 4, 0),  # r4 = major
        instruction(0x61, 5, 1, 8, 0),  # r5 = minor
        instruction(0xB7, 0, 0, 0, 0),  # r0 = 0
        instruction(0x15, 2, 0, 1, _CHAR),  # if it is a character device, skip the next
        instruction(0x95, 0, 0, 0, 0),  # refuse
        instruction(0x15, 3, 0, 1, 0),  # if there is only reading and writing, skip the next
        instruction(0x95, 0, 0, 0, 0),  # refuse
    ]
    for device in devices:
        if device.minor is None:
            code += [instruction(0x55, 4, 0, 2, device.major)]  # if the major is another one, skip the next two
        else:
            code += [
                instruction(0x55, 4, 0, 3, device.major),
                instruction(0x55, 5, 0, 2, device.minor),
            ]
        code += [instruction(0xB7, 0, 0, 0, 1), instruction(0x95, 0, 0, 0, 0)]  # admit
    code += [instruction(0x95, 0, 0, 0, 0)]
    return b"".join(code)


def _load(devices: Sequence[Device]) -> int:
    return bpf.load(program(devices), _PROG_TYPE_CGROUP_DEVICE)


def _admit_only_v1(cgroup: Cgroup, devices: Sequence[Device]) -> None:
    directory = os.path.join(cgroup.hierarchies.v1["devices"], cgroup.name)
    write_control(f"{directory}/devices.deny", "a")
    for device in devices:
        minor = "*" if device.minor is None else device.minor
        write_control(f"{directory}/devices.allow", f"c {device.major}:{minor} rw")
