"""What ranks with a network of their own may reach: the entries of ``node.network.allow``, read and checked."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

INTERNET = "internet"
"""The entry that allows every public address."""

_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*\.?")
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
