"""The names of machines and processes in certificates.

A name is a path: ``node/dgx-a``, ``service``, ``control``, ``scheduler``, ``gateway`` or ``scraper``. A certificate has
it twice: as a SPIFFE id (``spiffe://gpu-platform.internal/node/dgx-a``; SPIFFE-ID standard, section 2), by which a
server knows its client, and as a DNS name (``dgx-a.node.gpu-platform.internal``), by which a client knows the server
that it means, whatever the server's address is.
"""

from __future__ import annotations

import re

from gpu_platform.domain.errors import InvalidRequest

DEFAULT_DOMAIN = "gpu-platform.internal"
"""The trust domain of a cluster that gives none."""
NODE = "node"
SERVICE = "service"
CONTROL = "control"
SCHEDULER = "scheduler"
GATEWAY = "gateway"
SCRAPER = "scraper"
"""Prometheus: it may read ``/metrics`` of node workers, and nothing else."""
PROCESSES = (SERVICE, CONTROL, SCHEDULER, GATEWAY, SCRAPER)

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_HOST_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_LONGEST_HOST_NAME = 180


def node(name: str) -> str:
    """The path of a host's node worker. Raises :class:`InvalidRequest` if the name cannot be a part of a DNS name."""
    if len(name) > _LONGEST_HOST_NAME or not _HOST_NAME.fullmatch(name):
        raise InvalidRequest(
            f"{name[:80]!r} cannot be the name of a host with a certificate: use lower-case letters, digits, hyphens "
            "and dots, as in DNS names (RFC 1123); set node.name on the host"
        )
    return f"{NODE}/{name}"


def host_of(path: str | None) -> str | None:
    """The host that ``path`` names. None: it names no host."""
    return path.removeprefix(f"{NODE}/") if path is not None and path.startswith(f"{NODE}/") else None


def check_path(path: str) -> str:
    """``path``, if it is a name that may be in a certificate. Raises :class:`InvalidRequest`."""
    if path in PROCESSES:
        return path
    if (host := host_of(path)) is not None:
        return node(host)
    raise InvalidRequest(f"{path[:80]!r} is no name for a certificate: use node/HOST, or one of {', '.join(PROCESSES)}")


def spiffe_id(path: str, trust_domain: str) -> str:
    """The URI in the certificate of ``path``."""
    return f"spiffe://{trust_domain}/{path}"


def path_of(uri: str, trust_domain: str) -> str | None:
    """The path in a SPIFFE id. None: it is of another trust domain, or no name of ours."""
    before = f"spiffe://{trust_domain}/"
    if not uri.startswith(before):
        return None
    try:
        return check_path(uri.removeprefix(before))
    except InvalidRequest:
        return None


def dns_name(path: str, trust_domain: str) -> str:
    """The DNS name in the certificate of ``path``, e.g. ``dgx-a.node.gpu-platform.internal``."""
    return ".".join([*reversed(path.split("/", 1)), trust_domain])
