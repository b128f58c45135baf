"""Does a process of this machine answer? For the health checks of images (``deploy/Dockerfile``).

``python -m workers.healthcheck service|gateway|node`` ends with 0 if it does. It reads the settings of the process that
it asks. It says nothing about what the process needs: see ``/readyz``.
"""

from __future__ import annotations

import socket
import ssl
import sys

import httpx

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import names
from gpu_platform.identity.certificates import CertificateFiles
from gpu_platform.settings import Settings
from gpu_platform.settings.reading import read_settings

TIMEOUT_S = 5.0
_ANY = ("0.0.0.0", "::", "")


def main(arguments: list[str]) -> int:
    """0: it answers; 1: it does not, and stderr says why; 2: wrong usage."""
    if len(arguments) != 1 or arguments[0] not in ("service", "gateway", "node"):
        print("usage: python -m workers.healthcheck service|gateway|node", file=sys.stderr)
        return 2
    try:
        ask(arguments[0], read_settings())
    except (OSError, httpx.HTTPError, CannotStart) as error:
        print(f"{arguments[0]} does not answer: {error}", file=sys.stderr)
        return 1
    return 0


def ask(process: str, settings: Settings) -> None:
    """Raises ``OSError`` or ``httpx.HTTPError`` if the process does not answer within ``TIMEOUT_S``."""
    if process == "service":
        _ask_service(settings)
    elif process == "gateway":
        _connect(settings.gateway.host, settings.gateway.port)
    else:
        if settings.node.port == 0:
            raise OSError("node.port is 0, so nobody knows its port: set it")
        _connect(settings.node.address, settings.node.port)


def _ask_service(settings: Settings) -> None:
    host = _reachable(settings.service.host)
    address = f"[{host}]" if ":" in host else host
    scheme, verify, extensions = "http", ssl.create_default_context(), {}
    if settings.tls.enabled:
        scheme = "https"
        trusted = CertificateFiles.of(settings.tls, settings.state_dir, names.SERVICE).trusted
        verify = ssl.create_default_context(cafile=trusted)
        extensions = {"sni_hostname": names.dns_name(names.SERVICE, settings.tls.trust_domain)}
    with httpx.Client(verify=verify, timeout=TIMEOUT_S, trust_env=False) as client:
        url = f"{scheme}://{address}:{settings.service.port}/healthz"
        client.get(url, extensions=extensions).raise_for_status()


def _connect(host: str, port: int) -> None:
    socket.create_connection((_reachable(host), port), TIMEOUT_S).close()


def _reachable(host: str) -> str:
    """A process that listens on all addresses is asked on the loopback."""
    return "127.0.0.1" if host in _ANY else host


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
