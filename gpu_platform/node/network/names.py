"""Addresses that the packet filter needs: of names in the settings, of the platform's processes, of name servers."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from gpu_platform.domain.hosts.network import Target
from gpu_platform.settings import Settings

log = structlog.get_logger(__name__)

RESOLV_CONF = Path("/etc/resolv.conf")
HOSTS = Path("/etc/hosts")
_BEHIND_A_STUB = Path("/run/systemd/resolve/resolv.conf")
"""Where systemd-resolved writes the servers that it asks. Its own address, 127.0.0.53, is the host's alone."""


@dataclass(frozen=True)
class NameServers:
    """What a rank's ``resolv.conf`` says."""

    servers: list[str]
    others: list[str]
    """The other lines: search domains and options."""

    def text(self) -> str:
        """The file."""
        return "".join(f"{line}\n" for line in [*self.others, *(f"nameserver {server}" for server in self.servers)])


def name_servers(configured: list[str] | None, files: Iterable[Path] = (RESOLV_CONF, _BEHIND_A_STUB)) -> NameServers:
    """The name servers that ranks can use: those of the setting, or else of the first file that names one that is not
    on the loopback. IPv4 only."""
    others: list[str] = []
    for file in files:
        words = [line.split() for line in _lines(file)]
        others = others or [" ".join(line) for line in words if line[0] in ("search", "domain", "options")]
        found = [line[1] for line in words if line[0] == "nameserver" and len(line) > 1]
        usable = [server for server in found if _is_usable(server)]
        if configured is None and usable:
            return NameServers(usable, others)
    return NameServers(configured or [], others)


def own_hosts_file(own: dict[str, str], file: Path = HOSTS) -> str:
    """The host's ``/etc/hosts`` with other addresses for the names in ``own`` (name -> address)."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for line in _lines(file):
        address, *names = line.split()
        left = [name for name in names if name not in own and name != "localhost"]
        if left:
            lines.append(" ".join([address, *left]))
    return "".join(f"{line}\n" for line in [*lines, *(f"{address} {name}" for name, address in own.items())])


def resolve(targets: Iterable[Target]) -> list[Target]:
    """The targets, with the IPv4 addresses that their names have just now. A name that has none is left out."""
    found: list[Target] = []
    for target in targets:
        if target.name is None:
            found.append(target)
            continue
        addresses = lookup(target.name)
        if not addresses:
            _warn_of(target.name)
        found += [replace(target, network=ipaddress.IPv4Network(address), name=None) for address in addresses]
    return found


def control_plane(settings: Settings) -> tuple[list[str], list[int]]:
    """Addresses (IPv4 and IPv6) and ports of the service, of Temporal and of the database, as far as this host's
    settings say."""
    urls = [settings.api_url, *settings.api_urls, f"tcp://{settings.temporal.address}", settings.store_url]
    addresses: set[str] = set()
    ports: set[int] = set()
    for url in urls:
        with contextlib.suppress(ValueError):
            parts = urlsplit(url)
            if parts.hostname is not None:
                addresses.update(lookup_all(parts.hostname))
                ports.update([parts.port] if parts.port else [])
    return sorted(addresses), sorted(ports)


def lookup(name: str, family: socket.AddressFamily = socket.AF_INET) -> list[str]:
    """The addresses of a name (IPv4, if no other family is given), sorted. Empty: it has none, or no name server
    answers."""
    try:
        found = socket.getaddrinfo(name, None, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return sorted({str(entry[4][0]).partition("%")[0] for entry in found})


def lookup_all(name: str) -> list[str]:
    """The IPv4 addresses of a name, then the IPv6 addresses. Empty as for :func:`lookup`."""
    return [*lookup(name), *lookup(name, socket.AF_INET6)]


@cache
def _warn_of(name: str) -> None:
    """Say once that ranks do not reach a name."""
    hint = "it has only IPv6 addresses" if lookup(name, socket.AF_INET6) else "no name server knows it"
    log.warning("network.name_without_ipv4", name=name, setting="node.network.allow", hint=hint)


def file_behind(path: Path) -> str:
    """The file that a path leads to in the end: it may be a link."""
    return os.path.realpath(path)


def _is_usable(server: str) -> bool:
    try:
        return not ipaddress.IPv4Address(server).is_loopback
    except ValueError:
        return False


def _lines(file: Path) -> list[str]:
    """The lines without comments and empty ones."""
    try:
        text = file.read_text(errors="replace")
    except OSError:
        return []
    return [line for raw in text.splitlines() if (line := raw.partition("#")[0].strip())]
