"""The device filter: the kernel lets the processes of a cgroup open only certain device nodes.

With cgroup v2 an eBPF program of type ``BPF_PROG_TYPE_CGROUP_DEVICE``, written here instruction by
instruction and attached to the cgroup, where it stays until the cgroup is removed; every cgroup
below obeys it as well. With cgroup v1 the devices controller. Kernel:
Documentation/admin-guide/cgroup-v2.rst "Device controller", include/uapi/linux/bpf.h, bpf(2).
Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
from collections.abc import Sequence
from typing import NamedTuple

from gpu_platform.hosts.isolation.cgroup import Cgroup, write_control

MKNOD, READ, WRITE = 1, 2, 4
_ACCESS = READ | WRITE
_CHAR = 2
"""The kernel's BPF_DEVCG_DEV_CHAR."""


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
        _attach(_load(program(devices)), cgroup.path)
    else:
        _admit_only_v1(cgroup, devices)


def is_supported(cgroup: Cgroup) -> bool:
    """True if the kernel can filter devices: by eBPF in cgroup v2, or by the devices controller of v1."""
    return (cgroup.hierarchies.unified is not None and has_bpf()) or "devices" in cgroup.hierarchies.v1


def has_bpf() -> bool:
    """True if the kernel accepts such a program from this process (root, CONFIG_CGROUP_BPF)."""
    try:
        os.close(_load(program(())))
    except OSError:
        return False
    return True


def program(devices: Sequence[Device]) -> bytes:
    """The eBPF program. It returns 1 if one of ``devices`` is to be read or written, else 0.

    Its context, ``struct bpf_cgroup_dev_ctx``, has three words: access << 16 | kind, major, minor.
    """
    code = [
        _instruction(0x61, 2, 1, 0, 0),  # r2 = word 0
        _instruction(0xBF, 3, 2, 0, 0),  # r3 = r2
        _instruction(0x57, 2, 0, 0, 0xFFFF),  # r2 = kind
        _instruction(0x77, 3, 0, 0, 16),  # r3 = access
        _instruction(0x57, 3, 0, 0, ~_ACCESS),  # r3 = access that is not reading or writing
        _instruction(0x61, 4, 1, 4, 0),  # r4 = major
        _instruction(0x61, 5, 1, 8, 0),  # r5 = minor
        _instruction(0xB7, 0, 0, 0, 0),  # r0 = 0
        _instruction(0x15, 2, 0, 1, _CHAR),  # if it is a character device, skip the next
        _instruction(0x95, 0, 0, 0, 0),  # refuse
        _instruction(0x15, 3, 0, 1, 0),  # if there is only reading and writing, skip the next
        _instruction(0x95, 0, 0, 0, 0),  # refuse
    ]
    for device in devices:
        if device.minor is None:
            code += [_instruction(0x55, 4, 0, 2, device.major)]  # if the major is another one, skip the next two
        else:
            code += [
                _instruction(0x55, 4, 0, 3, device.major),
                _instruction(0x55, 5, 0, 2, device.minor),
            ]
        code += [_instruction(0xB7, 0, 0, 0, 1), _instruction(0x95, 0, 0, 0, 0)]  # admit
    code += [_instruction(0x95, 0, 0, 0, 0)]
    return b"".join(code)


def _instruction(code: int, target: int, source: int, offset: int, value: int) -> bytes:
    """One ``struct bpf_insn``."""
    return struct.pack("<BBhi", code, target | source << 4, offset, value)


def _admit_only_v1(cgroup: Cgroup, devices: Sequence[Device]) -> None:
    directory = os.path.join(cgroup.hierarchies.v1["devices"], cgroup.name)
    write_control(f"{directory}/devices.deny", "a")
    for device in devices:
        minor = "*" if device.minor is None else device.minor
        write_control(f"{directory}/devices.allow", f"c {device.major}:{minor} rw")


# -- bpf(2) ------------------------------------------------------------------------------------

_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_PROG_TYPE_CGROUP_DEVICE = 15
_ATTACH_CGROUP_DEVICE = 6
_ALLOW_MULTI = 2
"""BPF_F_ALLOW_MULTI: the programs of outer cgroups stay active beside ours."""
_libc = ctypes.CDLL(None, use_errno=True)


def _bpf(command: int, attributes: bytes) -> int:
    number = _SYS_BPF.get(platform.machine())
    if number is None:
        raise OSError(38, f"bpf(2) is not known on {platform.machine()}")
    buffer = ctypes.create_string_buffer(attributes, len(attributes))
    result = _libc.syscall(number, command, buffer, len(attributes))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf(2): {os.strerror(code)}")
    return result


def _load(code: bytes) -> int:
    """Load the program. Returns its descriptor."""
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"Apache-2.0")
    attributes = struct.pack(
        "<IIQQIIQII16s",
        _PROG_TYPE_CGROUP_DEVICE,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        0,
        0,
        0,
        0,
        0,
        b"gpu_platform",
    )
    return _bpf(_PROG_LOAD, attributes)


def _attach(program_fd: int, directory: str) -> None:
    cgroup_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _bpf(_PROG_ATTACH, struct.pack("<IIII", cgroup_fd, program_fd, _ATTACH_CGROUP_DEVICE, _ALLOW_MULTI))
    finally:
        os.close(cgroup_fd)
        os.close(program_fd)
