"""The settings of the network of jailed ranks. A part of ``NodeSettings``."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from gpu_platform.domain.hosts.network import parse_target


class NetworkSettings(BaseModel):
    """The network of jailed ranks on one host."""

    model_config = ConfigDict(extra="forbid")

    mode: Literal["auto", "isolated", "host"] = "auto"
    """``isolated``: each attempt has a network namespace of its own, or the node worker does not start. ``host``: ranks
    use the host's network; the host says so in its missing guarantees. ``auto``: isolated where this host can do it; a
    gang with a host that cannot uses the network of its hosts."""
    allow: list[str] = ["internet"]
    """What isolated ranks reach besides their gang: ``internet`` (every public address), and addresses, networks and
    names, with ports or without, e.g. ``10.0.0.0/8:2049`` or ``pypi.example:443``. An address of this host or of the
    platform opens only by an entry with that one address and its ports. Empty: nothing."""
    dns: list[str] | None = None
    """Name servers of isolated ranks (IPv4); None: those of ``/etc/resolv.conf``, or of systemd-resolved behind it."""
    subnet: str = "198.18.0.0/15"
    """Addresses of isolated ranks, the same on all hosts: the first half is for links to the host, the second for
    links within gangs. Nothing else that ranks reach may be in it."""
    gang_port: Annotated[int, Field(ge=1, le=65535)] = 8474
    """UDP port between hosts for the networks of gangs (VXLAN), the same on all hosts. Firewalls between them must let
    it pass. A host takes there only what comes from the hosts of its own gangs."""
    connections: Annotated[int, Field(ge=64, le=1_000_000)] | None = None
    """How many connections an isolated attempt may have on this host at once, besides those in its gang. A tenth of it
    may begin each second. None: a 32nd of ``net.netfilter.nf_conntrack_max``, from 1024 to 4096."""

    @field_validator("allow")
    @classmethod
    def _check_targets(cls, entries: list[str]) -> list[str]:
        for entry in entries:
            parse_target(entry)
        return entries

    @field_validator("subnet")
    @classmethod
    def _check_subnet(cls, subnet: str) -> str:
        if not 8 <= IPv4Network(subnet).prefixlen <= 22:
            raise ValueError(f"{subnet} must have a prefix from /8 to /22")
        return subnet

    @field_validator("dns")
    @classmethod
    def _check_dns(cls, servers: list[str] | None) -> list[str] | None:
        return servers and [str(IPv4Address(server)) for server in servers]
