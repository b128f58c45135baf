"""The system call filter of jailed processes: an allow-list, compiled by libseccomp.

A call that ``system_calls`` does not name is refused: with EPERM if libseccomp knows it, else with ENOSYS, as a kernel
without that call answers, so that programs fall back. A call of another architecture (32-bit, x32) is refused too. The
filter is compiled once in a process (a few milliseconds) and is installed from memory by each rank.
Kernel: seccomp(2), Documentation/userspace-api/seccomp_filter.rst; libseccomp: seccomp_rule_add(3),
seccomp_export_bpf(3). Standard library and libseccomp.so.2 only: the spawner imports it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from gpu_platform.node.isolation.filters.system_calls import (
    ALLOWED,
    AS_IF_MISSING,
    CLONE_NEW_ANY,
    PERSONALITIES,
    SOCKET_FAMILIES,
)

LIBRARY = "libseccomp.so.2"
INSTALL_HINT = "libseccomp is not installed (apt-get install libseccomp2)"

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW = 0x7FFF_0000
_ERRNO = 0x0005_0000
_ATTRIBUTE_BAD_ARCHITECTURE, _ATTRIBUTE_OPTIMIZE = 2, 8
_BINARY_TREE = 2
_EQUAL, _MASKED_EQUAL = 4, 7
_FAMILIES = 64
"""More than the kernel has families of sockets (AF_MAX)."""
_LAST_NUMBER = 640
"""All numbers that libseccomp knows of x86_64 and aarch64 are below it, with room for years."""


class _Comparison(ctypes.Structure):
    """``struct scmp_arg_cmp``."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class _Rule(NamedTuple):
    call: str
    action: int
    argument: tuple[int, int, int] | None = None
    """(operator, first, second value) of the comparison with the call's first argument. None: any argument."""


@cache
def program() -> bytes:
    """The filter, as the kernel takes it: a row of ``struct sock_filter``.

    Raises ``OSError`` if libseccomp is missing or refuses.
    """
    return _compile(_Library())


def install() -> None:
    """Install the filter. It holds for this process and all its children, for ever. Raises ``OSError``.

    The process must have no new privileges (prctl(2)), or be root.
    """
    code = program()
    buffer = ctypes.create_string_buffer(code, len(code))
    argument = struct.pack("<HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, argument, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_SECCOMP): {os.strerror(number)}")


def program_file() -> int:
    """A descriptor from which another program reads the filter (``bwrap --seccomp``). The caller closes it."""
    return _in_memory(program())


def why_not() -> str | None:
    """Why there can be no filter here, for people. None: there can."""
    try:
        program()
    except FileNotFoundError:
        return INSTALL_HINT
    except OSError as error:
        return f"the system call filter cannot be compiled: {error.strerror or error}"
    return None


class _Library:
    """The functions of libseccomp that are needed. Raises ``FileNotFoundError`` if there is no such library."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise FileNotFoundError(errno.ENOENT, str(error), LIBRARY) from error
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_void_p
        self._native = self._library.seccomp_arch_native()
        self._free = ctypes.CDLL(None).free

    def number_of(self, name: str) -> int:
        """The call's number here. Negative: this architecture has no such call, or the library does not know it."""
        return self._library.seccomp_syscall_resolve_name(name.encode())

    def known(self, number: int) -> bool:
        """True if the library knows a call of this number here."""
        name = self._library.seccomp_syscall_resolve_num_arch(self._native, number)
        self._free(ctypes.c_void_p(name))
        return name is not None

    def export(self, default: int, attributes: dict[int, int], rules: Iterable[tuple[int, _Rule]]) -> bytes:
        """Compile the rules, each with the number of its call. Raises ``OSError``."""
        context = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default)))
        if not context:
            raise OSError(errno.EINVAL, "seccomp_init(3) failed")
        fd = _in_memory(b"")
        try:
            for attribute, value in attributes.items():
                self._check(self._library.seccomp_attr_set(context, attribute, ctypes.c_uint32(value)), "attribute")
            for number, rule in rules:
                compared = () if rule.argument is None else (_Comparison(0, *rule.argument),)
                array = (_Comparison * len(compared))(*compared)
                added = self._library.seccomp_rule_add_exact_array(
                    context, ctypes.c_uint32(rule.action), number, len(compared), array
                )
                self._check(added, rule.call)
            self._check(self._library.seccomp_export_bpf(context, fd), "export")
            return os.pread(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)
            self._library.seccomp_release(context)

    @staticmethod
    def _check(result: int, what: str) -> None:
        if result < 0:
            raise OSError(-result, f"libseccomp, {what}: {os.strerror(-result)}")


def _compile(library: _Library) -> bytes:
    attributes = {_ATTRIBUTE_BAD_ARCHITECTURE: _ERRNO | errno.EPERM, _ATTRIBUTE_OPTIMIZE: _BINARY_TREE}
    rules = [(number, rule) for rule in _rules() if (number := library.number_of(rule.call)) >= 0]
    named = {number for number, _ in rules} | {library.number_of(name) for name in AS_IF_MISSING}
    rules += [
        (number, _Rule(f"call {number}", _ERRNO | errno.EPERM))
        for number in range(_LAST_NUMBER)
        if number not in named and library.known(number)
    ]
    return library.export(_ERRNO | errno.ENOSYS, attributes, rules)


def _rules() -> list[_Rule]:
    """What is allowed, and what a refused argument is answered. Any other argument gets the answer of unknown calls."""
    refused = [family for family in range(_FAMILIES) if family not in SOCKET_FAMILIES.values()]
    new = [1 << bit for bit in range(CLONE_NEW_ANY.bit_length()) if CLONE_NEW_ANY >> bit & 1]
    return [
        *(_Rule(name, _ALLOW) for name in sorted(ALLOWED)),
        *(_Rule("socket", _ALLOW, (_EQUAL, family, 0)) for family in SOCKET_FAMILIES.values()),
        *(_Rule("socket", _ERRNO | errno.EAFNOSUPPORT, (_EQUAL, family, 0)) for family in refused),
        *(_Rule("personality", _ALLOW, (_EQUAL, persona, 0)) for persona in PERSONALITIES),
        _Rule("clone", _ALLOW, (_MASKED_EQUAL, CLONE_NEW_ANY, 0)),
        *(_Rule("clone", _ERRNO | errno.EPERM, (_MASKED_EQUAL, flag, flag)) for flag in new),
    ]


def _in_memory(content: bytes) -> int:
    fd = os.memfd_create("seccomp", os.MFD_CLOEXEC)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
