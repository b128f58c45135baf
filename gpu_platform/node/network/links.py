"""The network of one attempt: a namespace of its own, and the links that lead out of it.

The process that makes the jail goes into a new network namespace, so that bubblewrap is born in it. The links are
made while bubblewrap mounts. ::

    in the namespace                 on the host
    lo
    eth0  198.18.x.y/32   ──veth──   gp<tag>-<n>     to what node.network.allow names; nftables decides (``rules``)
    gang0 198.19.0.<k>    ──VXLAN──  UDP to the other hosts of the gang; its frames reach this gang's namespaces only

The kernel removes all of it when the last process of the attempt has ended. Neighbours are written down, so nobody
can answer for another, and there is no IPv6 but ``::1``: it is off on both links, so that no router advertisement
gives them an address. iproute2 (``ip``, ``bridge``) does the work: ip-link(8),
Documentation/networking/vxlan.rst. Standard library only: the spawner imports it.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import os
import random
import shutil
import socket
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

UPLINK, GANG = "eth0", "gang0"
"""Names of the interfaces as ranks see them."""
TOOLS_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
VXLAN_OVERHEAD = 50
"""Bytes that VXLAN over IPv4 adds to a frame."""

_GATEWAY, _GATEWAY_MAC = "169.254.1.1", "02:67:70:ff:ff:fe"
"""The host's end of every veth, as ranks see it. It is in no subnet, so it can be the same for all."""
_IPV6 = "/proc/sys/net/ipv6/conf"
"""Of the network namespace of who opens it. It does not exist if the kernel has no IPv6."""
_TRIES = 64
_CLONE_NEWNET = 0x4000_0000
_libc = ctypes.CDLL(None, use_errno=True)


class Uplink(NamedTuple):
    """A link to the host, behind its packet filter."""

    prefix: str
    """Names of the host's ends begin with it. The filter knows them by it."""
    subnet: str
    """Each attempt on this host takes one address of it."""
    mtu: int


class GangLink(NamedTuple):
    """A link to the same attempt's namespaces on other hosts."""

    vni: int
    """The number of this gang's VXLAN."""
    node_rank: int
    hosts: list[str]
    """The address of each host of the gang, in the order of node ranks."""
    subnet: str
    port: int
    """The UDP port between the hosts."""
    mtu: int
    """That of the link in the namespace."""


class NetworkOrder(NamedTuple):
    """How the network of an attempt looks. With neither link it has only ``lo``."""

    uplink: Uplink | None = None
    gang: GangLink | None = None

    def to_json(self) -> list[Any]:
        """The values as they are sent."""
        return [None if part is None else list(part) for part in self]

    @classmethod
    def parse(cls, value: object) -> NetworkOrder:
        """Read what :meth:`to_json` made. Raises ``ValueError``."""
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError("a network is [uplink, gang]")
        uplink, gang = value
        return cls(
            None if uplink is None else Uplink(*_checked(uplink, (_is_name, _is_subnet, _is_mtu))),
            None
            if gang is None
            else GangLink(*_checked(gang, (_is_number, _is_number, _is_hosts, _is_subnet, _is_number, _is_mtu))),
        )


def is_network(value: object) -> bool:
    """True if :meth:`NetworkOrder.parse` reads it."""
    return isinstance(value, list) and _parses(NetworkOrder.parse, value)


class AttemptNetwork:
    """The new namespace that this process has gone into. Its children are born in it.

    The interfaces are begun at once: a program makes them while this process does other things before
    :meth:`connect`.
    """

    def __init__(self, order: NetworkOrder) -> None:
        """Raises ``OSError``."""
        self._uplink, self._gang = order
        self._numbers = [] if self._uplink is None else _some_numbers(self._uplink)
        """Numbers of addresses in the uplink's subnet. The last one is tried."""
        self._host = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        if _libc.unshare(_CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"unshare(2): {os.strerror(ctypes.get_errno())}")
        _turn_ipv6_off()
        self._making = self._begin([] if self._gang is None else [_gang_on_host(self._gang)])

    def connect(self) -> None:
        """Make the links. Raises ``OSError`` with the message of the tool that failed."""
        while self._making is not None and (error := self._making.end()) is not None:
            self._making = self._begin_again(error)
        inside = ["link set lo up"]
        if self._uplink is not None:
            inside += _uplink_inside(self._uplink, _address(self._uplink, self._numbers[-1]))
        programs = []
        if self._gang is not None:
            inside += _gang_inside(self._gang)
            programs.append(_Program("bridge", _gang_forwarding(self._gang)))
        programs.append(_Program("ip", inside))
        failures = [error for program in programs if (error := program.end()) is not None]
        if failures:
            raise failures[0]

    def _begin(self, lines: list[str]) -> _Program | None:
        """Begin to make the interfaces on the host: those of ``lines`` and the uplink."""
        if self._uplink is not None:
            lines += _uplink_on_host(self._uplink, self._numbers[-1])
        return _Program("ip", lines, self._host) if lines else None

    def _begin_again(self, error: OSError) -> _Program | None:
        """With another address, if it was refused because it is taken. The interface of the gang was made before it."""
        if not isinstance(error, FileExistsError) or self._uplink is None:
            raise error
        made = {name for _, name in socket.if_nameindex()}
        if UPLINK in made:  # another platform on this machine has a route to the address
            _Program("ip", [f"link del {UPLINK}"]).end()
        self._numbers.pop()
        if not self._numbers:
            raise OSError(17, f"no free address was found in {self._uplink.subnet} after {_TRIES} tries")
        return self._begin([])


def gang_address(subnet: str, node_rank: int) -> str:
    """The address of a host's ranks within their gang."""
    return str(ipaddress.IPv4Network(subnet)[node_rank + 1])


def _some_numbers(uplink: Uplink) -> list[int]:
    """Return numbers of addresses in the subnet, chosen by chance."""
    addresses = ipaddress.IPv4Network(uplink.subnet).num_addresses
    return random.sample(range(2, min(addresses, 65_536) - 1), _TRIES)


def _address(uplink: Uplink, number: int) -> str:
    return str(ipaddress.IPv4Network(uplink.subnet)[number])


def _uplink_on_host(uplink: Uplink, number: int) -> list[str]:
    """The kernel refuses a number that is taken."""
    name = f"{uplink.prefix}{number}"
    return [
        f"link add {name} address {_GATEWAY_MAC} mtu {uplink.mtu} "
        f"type veth peer name {UPLINK} mtu {uplink.mtu} netns {os.getpid()}",
        *_without_ipv6(name),
        f"link set {name} up",
        f"route add {_address(uplink, number)}/32 dev {name}",
    ]


def _uplink_inside(uplink: Uplink, address: str) -> list[str]:
    return [
        *_without_ipv6(UPLINK),
        f"link set {UPLINK} up",
        f"addr add {address}/32 dev {UPLINK}",
        f"route add {_GATEWAY} dev {UPLINK} scope link",
        f"neigh replace {_GATEWAY} lladdr {_GATEWAY_MAC} dev {UPLINK} nud permanent",
        f"route add default via {_GATEWAY} dev {UPLINK}",
    ]


def _turn_ipv6_off() -> None:
    """For all links that the namespace of this process will get. ``lo`` has its ``::1`` already."""
    with contextlib.suppress(OSError), open(f"{_IPV6}/default/disable_ipv6", "w") as file:
        file.write("1")


def _without_ipv6(name: str) -> list[str]:
    """The link gets no address by itself, not even a link-local one."""
    return [f"link set {name} addrgenmode none"] if os.path.exists(_IPV6) else []


def _gang_on_host(gang: GangLink) -> str:
    """The VXLAN is made on the host and moved: its UDP socket stays on the host."""
    own = gang.hosts[gang.node_rank]
    return (
        f"link add {GANG} netns {os.getpid()} address {_gang_mac(gang.node_rank)} mtu {gang.mtu} "
        f"type vxlan id {gang.vni} local {own} dstport {gang.port} nolearning"
    )


def _gang_inside(gang: GangLink) -> list[str]:
    length = ipaddress.IPv4Network(gang.subnet).prefixlen
    return [
        *_without_ipv6(GANG),
        f"link set {GANG} up",
        f"addr add {gang_address(gang.subnet, gang.node_rank)}/{length} dev {GANG}",
        *(
            f"neigh replace {gang_address(gang.subnet, rank)} lladdr {_gang_mac(rank)} dev {GANG} nud permanent"
            for rank in _others(gang)
        ),
    ]


def _gang_forwarding(gang: GangLink) -> list[str]:
    return [f"fdb append {_gang_mac(rank)} dev {GANG} dst {gang.hosts[rank]} self" for rank in _others(gang)]


def _others(gang: GangLink) -> list[int]:
    return [rank for rank in range(len(gang.hosts)) if rank != gang.node_rank]


def _gang_mac(node_rank: int) -> str:
    return f"02:67:61:6e:{node_rank >> 8:02x}:{node_rank & 255:02x}"


class _Program:
    """A tool of iproute2 that works on ``lines``, in another network namespace if one is given.

    It works at the same time as this process, until :meth:`end`.
    """

    def __init__(self, tool: str, lines: Sequence[str], namespace: int | None = None) -> None:
        program = shutil.which(tool, path=TOOLS_PATH)
        if program is None:
            raise FileNotFoundError(2, f"{tool} is not installed (apt-get install iproute2)")
        self._tool = tool
        self._said = os.memfd_create("said")
        orders = os.memfd_create("orders")
        os.write(orders, "\n".join([*lines, ""]).encode())
        os.lseek(orders, 0, os.SEEK_SET)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                if namespace is not None and _libc.setns(namespace, _CLONE_NEWNET) != 0:
                    os._exit(125)
                for target, source in ((0, orders), (1, self._said), (2, self._said)):
                    os.dup2(source, target)
                os.execve(program, [tool, "-batch", "-"], {"PATH": TOOLS_PATH})
            finally:
                os._exit(126)
        os.close(orders)

    def end(self) -> OSError | None:
        """Wait for its end. Returns its failure, with its message."""
        _, status = os.waitpid(self._pid, 0)
        with open(self._said, "rb") as file:
            file.seek(0)
            text = file.read().decode(errors="replace").strip()
        if status == 0:
            return None
        return OSError(17 if "File exists" in text else 5, f"{self._tool}: {text[-300:] or 'failed'}")


def _checked(values: object, checks: Sequence[Any]) -> list[Any]:
    if not isinstance(values, list) or len(values) != len(checks):
        raise ValueError(f"a link has {len(checks)} values")
    for value, check in zip(values, checks, strict=True):
        if not check(value):
            raise ValueError(f"{str(value)[:80]!r} is refused in a link")
    return values


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 24


def _is_mtu(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 576 <= value <= 65_535


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= 10 and value.replace("-", "").isalnum()


def _is_subnet(value: object) -> bool:
    return isinstance(value, str) and _parses(ipaddress.IPv4Network, value)


def _is_hosts(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(host, str) and _parses(ipaddress.IPv4Address, host) for host in value
    )


def _parses(kind: Callable[[Any], object], value: object) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True
