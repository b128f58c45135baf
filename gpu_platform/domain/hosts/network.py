"""What ranks with a network of their own may reach: the entries of ``node.network.allow``, read and checked."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass

INTERNET = "internet"
"""The entry that allows every public address."""

NOT_INTERNET = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.0.0.0/24", "192.0.2.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"),
    *("224.0.0.0/3",),
)
"""What is no public address (IANA's special-purpose registry, RFC 6890; multicast and class E)."""
_NATS = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("::ffff:0:0/96"))
"""IPv6 addresses that end with an IPv4 address: RFC 6052 (NAT64), RFC 4291 (mapped)."""
_6TO4, _GLOBAL = ipaddress.IPv6Network("2002::/16"), ipaddress.IPv6Network("2000::/3")
"""RFC 3056: the IPv4 address is behind the first 16 bits; and what IANA has given out."""
_UNIQUE_LOCAL = ipaddress.IPv6Network("fc00::/7")
"""RFC 4193: the private networks of IPv6."""
_NO_HOST = tuple(ipaddress.IPv4Network(one) for one in ("0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/3"))
_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*\.?")
_NOT_INTERNET = tuple(ipaddress.IPv4Network(network) for network in NOT_INTERNET)
_PORTS = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_FORM = "'internet', or an address, a network or a name, with ':PORT' or ':FIRST-LAST' if not all ports are meant"


@dataclass(frozen=True)
class Target:
    """One thing that ranks may reach."""

    network: ipaddress.IPv4Network | None = None
    """None: ``name`` says where it is."""
    name: str | None = None
    ports: tuple[int, int] | None = None
    """First and last port, of TCP and UDP. None: all ports, and every protocol."""

    @property
    def is_exact(self) -> bool:
        """True if it names one host and its ports. Only such an entry opens an address of the platform or of this
        host."""
        return self.ports is not None and (self.network is None or self.network.prefixlen == 32)


def is_public(address: str) -> bool:
    """True for an address of the Internet: none of this host, of a private network, of a link, of a metadata service,
    and no other spelling of one. False for what is no address."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        if found.scope_id is not None:  # it is on a link of this host
            return False
        bits = int(found)
        if any(found in network for network in _NATS):
            found = ipaddress.IPv4Address(bits & 0xFFFF_FFFF)
        elif found in _6TO4:
            found = ipaddress.IPv4Address(bits >> 80 & 0xFFFF_FFFF)
        else:
            return found in _GLOBAL and found.is_global
    return not any(found in network for network in _NOT_INTERNET)


def is_of_a_host(address: str) -> bool:
    """True for an address, in its usual spelling, at which another machine can be: public, or of a private network."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    if str(found) != address:
        return False
    if isinstance(found, ipaddress.IPv4Address):
        return not any(found in network for network in _NO_HOST)
    if found.scope_id is not None or found.sixtofour or found.teredo:
        return False
    return found in _GLOBAL or found in _UNIQUE_LOCAL


def is_allowed(address: str, port: int, targets: Iterable[Target | None]) -> bool:
    """True if something of ours may connect there for a user: it is public and the Internet is allowed, or a network
    of the entries has it. The one rule for every connection whose address a user, or a stranger's answer, chooses."""
    for target in targets:
        if target is None:
            if is_public(address):
                return True
        elif target.network is not None and (target.ports is None or target.ports[0] <= port <= target.ports[1]):
            found = ipaddress.ip_address(address)
            if found in target.network and not (found.is_loopback or found.is_link_local or found.is_unspecified):
                return True
    return False


def parse_target(entry: str) -> Target | None:
    """Read one entry. None: it is ``internet``. Raises ``ValueError`` that says what is wrong with it."""
    if entry == INTERNET:
        return None
    if _is_ipv6(entry):
        raise ValueError(
            f"{entry!r} is an IPv6 address: ranks with a network of their own have IPv4 only. Give the IPv4 address, "
            "or a name that has one"
        )
    where, colon, ports = entry.rpartition(":")
    if not colon:
        where, ports = entry, ""
    span = _ports(entry, ports) if colon else None
    try:
        return Target(network=ipaddress.IPv4Network(where), ports=span)
    except ValueError as error:
        if ":" in where or re.fullmatch(r"[\d./]+", where):
            raise ValueError(f"{entry!r} is no target of the network: {error}; give {_FORM}") from None
    if not _NAME.fullmatch(where):
        raise ValueError(f"{entry!r} is no target of the network: give {_FORM}")
    return Target(name=where.rstrip("."), ports=span)


def _is_ipv6(entry: str) -> bool:
    """True for an IPv6 address or network, also in brackets, as it is written before a port."""
    bare = re.fullmatch(r"\[(.*)\](?::[\d-]*)?", entry)
    try:
        ipaddress.IPv6Network(entry if bare is None else bare[1], strict=False)
    except ValueError:
        return False
    return True


def _ports(entry: str, text: str) -> tuple[int, int]:
    found = _PORTS.fullmatch(text)
    first, last = (0, 0) if found is None else (int(found[1]), int(found[2] or found[1]))
    if not 0 < first <= last <= 65_535:
        raise ValueError(f"{entry!r} has no ports from 1 to 65535 after its colon: give {_FORM}")
    return first, last
