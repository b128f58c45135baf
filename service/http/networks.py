"""Whose requests and connections are counted together."""

from __future__ import annotations

import ipaddress


def network_of(peer: str | None) -> str:
    """Whose requests are counted together: one IPv4 address, or one IPv6 network of 64 bits, which is what one machine
    gets."""
    try:
        address = ipaddress.ip_address((peer or "").split("%")[0])
    except ValueError:
        return peer or ""
    address = getattr(address, "ipv4_mapped", None) or address
    return str(address) if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False))
