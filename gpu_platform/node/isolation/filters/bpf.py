"""Loads eBPF programs that the kernel runs for the processes of a cgroup: bpf(2), include/uapi/linux/bpf.h.

The programs are short and written instruction by instruction, so no compiler and no library is needed. Once attached,
a program stays until its cgroup is removed, and every cgroup below obeys it as well. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

_SYS_BPF = {"x86_64": 321, "aarch64": 280}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_ALLOW_MULTI = 2
"""BPF_F_ALLOW_MULTI: the programs of outer cgroups stay active beside ours."""
_libc = ctypes.CDLL(None, use_errno=True)


def instruction(code: int, target: int, source: int, offset: int, value: int) -> bytes:
    """One ``struct bpf_insn``."""
    return struct.pack("<BBhi", code, target | source << 4, offset, value)


def load(code: bytes, kind: int, attach_to: int = 0) -> int:
    """Load a program of a type (``BPF_PROG_TYPE_…``). Returns its descriptor. Raises ``OSError``.

    ``attach_to``: where it will be attached (``BPF_CGROUP_…``), for the types that the kernel checks by it.
    """
    instructions = ctypes.create_string_buffer(code, len(code))
    licence = ctypes.create_string_buffer(b"MIT")
    attributes = struct.pack(
        "<IIQQIIQII16sII",
        kind,
        len(code) // 8,
        ctypes.addressof(instructions),
        ctypes.addressof(licence),
        0,
        0,
        0,
        0,
        0,
        b"gpu_platform",
        0,
        attach_to,
    )
    return _bpf(_PROG_LOAD, attributes)


def attach(program_fd: int, directory: str, attach_to: int) -> None:
    """Attach a program to the cgroup of this directory, and close its descriptor. Raises ``OSError``."""
    cgroup_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _bpf(_PROG_ATTACH, struct.pack("<IIII", cgroup_fd, program_fd, attach_to, _ALLOW_MULTI))
    finally:
        os.close(cgroup_fd)
        os.close(program_fd)


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
