"""What the service checks of a host's report before it believes it: where its node worker is.

Who sends it was checked before, by ``service/access``: only the node worker of that host may."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.hosts.lease import HostReport
from gpu_platform.domain.hosts.network import is_of_a_host
from gpu_platform.identity import names
from gpu_platform.outgoing import is_address
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts, identities

_USER = "service"


def check_url_of_host(store: Store, report: HostReport, source: str | None, *, tls: bool) -> None:
    """The service asks the URL in the report later, so it must be on the host that sends the report.

    ``source``: the address that the report came from. An address or name that the host was enrolled with is right, too.
    Raises :class:`InvalidRequest`.
    """
    host = checked_url(report.url, tls=tls)
    if source is not None and _same_machine(host, source):
        return
    enrolled = identities.address_of(store, f"{names.NODE}/{report.name}")
    if enrolled is not None and host.lower() == enrolled.lower():
        return
    known = "" if enrolled is None else f", and it was enrolled with {enrolled}"
    raise InvalidRequest(
        f"url names {host}, but the report came from {source or 'an unknown address'}{known}: set node.address "
        f"to the address from which the host reaches the service, or enrol it with `gpu-platform hosts enroll "
        f"{report.name} --address {host}`"
    )


def check_address(store: Store, report: HostReport, source: str | None) -> None:
    """Ranks of a gang connect to the address in the report, and their hosts let it in: so it is not another host's.

    The address of ``url`` was checked before. Any other one (a second network) is believed unless another host
    has it, or no host can have it. Raises :class:`InvalidRequest`.
    """
    if report.address == urlsplit(report.url).hostname:
        return
    on_one_machine = source is not None and _same_machine("127.0.0.1", source)
    is_here = on_one_machine and _same_machine(report.address, "127.0.0.1")
    if is_address(report.address) and not (is_of_a_host(report.address) or is_here):
        raise InvalidRequest(
            f"host {report.name} reports the address {report.address!r}, at which no other host reaches it: set "
            "node.address to a name, or to an address of the host in its usual spelling"
        )
    owner = hosts.host_at(store, report.address, other_than=report.name)
    if owner is not None:
        raise InvalidRequest(
            f"host {report.name} reports the address {report.address}, which is that of host {owner}: set node.address "
            f"to an address of {report.name}, or remove {owner} if it is gone (`gpu-platform hosts remove {owner}`)"
        )


def checked_url(url: str, *, tls: bool) -> str:
    """The host in a ``url`` that has a scheme, a host and a port, and nothing else. Raises
    :class:`InvalidRequest`."""
    wanted = "https://ADDRESS:PORT" if tls else f"http://{_USER}:TOKEN@ADDRESS:PORT"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    plain = not (parts.query or parts.fragment or parts.path.strip("/")) and "\\" not in url
    right_user = parts.username is None if tls else parts.username in (None, _USER)
    if not host or not port or not plain or not right_user or parts.scheme != ("https" if tls else "http"):
        raise InvalidRequest(f"url must look like {wanted}, without a path")
    return host


def _same_machine(host: str, source: str) -> bool:
    try:
        ours, theirs = ipaddress.ip_address(host), ipaddress.ip_address(source)
    except ValueError:
        return False
    theirs = getattr(theirs, "ipv4_mapped", None) or theirs
    return ours == theirs or (ours.is_loopback and theirs.is_loopback)
