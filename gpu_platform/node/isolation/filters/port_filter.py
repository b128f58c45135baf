"""The port filter: the kernel refuses ranks in the host's network the ports that are others'.

There, a rank could take the ports of other attempts' rendezvous, or that of the node worker while it restarts. An eBPF
program of type ``BPF_PROG_TYPE_CGROUP_SOCK_ADDR`` looks at each bind(2), for IPv4 and IPv6, TCP and UDP. Ports that
nobody of the platform uses stay free for all: a notebook goes on to listen on the port that its user chose. Kernel:
include/uapi/linux/bpf.h (``struct bpf_sock_addr``), bpf(2). Standard library only.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from gpu_platform.node.isolation.cgroups.cgroup import Cgroup, find_hierarchies
from gpu_platform.node.isolation.filters import bpf
from gpu_platform.node.isolation.filters.bpf import instruction

_PROG_TYPE_CGROUP_SOCK_ADDR = 18
_BINDS = (8, 9)
"""``BPF_CGROUP_INET4_BIND`` and ``BPF_CGROUP_INET6_BIND``."""
_USER_PORT = 24
"""The offset of ``user_port`` in ``struct bpf_sock_addr``."""


class Ports(NamedTuple):
    """The ports that the ranks of an attempt in the host's network may bind. It can be sent as JSON."""

    own: list[list[int]]
    """[first, last] of the ranges that are the attempt's own."""
    closed: list[list[int]]
    """[first, last] of what is others', except ``own``."""


def are_ports(value: object) -> bool:
    """True for the values of a :class:`Ports`, as JSON brings them."""
    return isinstance(value, list) and len(value) == 2 and all(map(_are_ranges, value))


def refuse_ports(cgroup: Cgroup, ports: Ports) -> None:
    """Refuse processes in and below ``cgroup`` to bind what is closed to them. Raises ``OSError``."""
    for attach_to in _BINDS:
        bpf.attach(_load(ports, attach_to), cgroup.path, attach_to)


def is_supported() -> bool:
    """True if the kernel accepts such a program (Linux 4.17) and has cgroup v2."""
    if find_hierarchies().unified is None:
        return False
    try:
        os.close(_load(Ports([], []), _BINDS[0]))
    except OSError:
        return False
    return True


def program(ports: Ports) -> bytes:
    """The eBPF program. It returns 1 if the port may be bound, else 0; bind(2) then fails with EPERM.

    Port 0 lets the kernel choose, outside of all ranges of ours.
    """
    code = [
        instruction(0x61, 2, 1, _USER_PORT, 0),  # r2 = port, as on the network
        instruction(0xDC, 2, 0, 0, 16),  # r2 = port
    ]
    for answer, ranges in ((1, ports.own), (0, ports.closed)):
        for first, last in ranges:
            code += [
                instruction(0xA5, 2, 0, 3, first),  # if the port is lower, skip the next three
                instruction(0x25, 2, 0, 2, last),  # if it is greater, skip the next two
                instruction(0xB7, 0, 0, 0, answer),
                instruction(0x95, 0, 0, 0, 0),
            ]
    return b"".join([*code, instruction(0xB7, 0, 0, 0, 1), instruction(0x95, 0, 0, 0, 0)])


def _load(ports: Ports, attach_to: int) -> int:
    return bpf.load(program(ports), _PROG_TYPE_CGROUP_SOCK_ADDR, attach_to)


def _are_ranges(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(one, int) and 0 < one < 65_536 for one in pair)
        for pair in value
    )
