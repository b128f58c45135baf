"""Connects to an address that a user, a host or the answer of a stranger chose. Nothing else of the platform does so.

What an operator sets is trusted. Any other name is looked up here, every address that it has is checked by
:func:`gpu_platform.domain.hosts.network.is_allowed`, and what was checked is what is connected to. So neither a
redirect, nor an answer that names another server, nor a name that changes its address leads inside. What is refused
and what does not answer is one error with one text, so that nobody finds out what listens inside.
"""

from __future__ import annotations

import base64
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Network
from urllib.parse import SplitResult, unquote, urlsplit

from gpu_platform.domain.hosts.network import Target, is_allowed

HTTPS = 443
_PORTS = {"https": HTTPS, "http": 80}
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOOK_UPS_AT_ONCE = 32
_LONGEST_HEAD = 16 * 1024
_ANYWHERE = Target(network=IPv4Network("0.0.0.0/0"))
_look_ups = threading.BoundedSemaphore(_LOOK_UPS_AT_ONCE)
"""A name server that hangs keeps so many threads, and nothing else."""


class Unreachable(OSError):
    """Nothing of ours connects there, or nothing answers. Whoever chose the address does not learn which."""

    def __init__(self) -> None:
        super().__init__("nothing answers there, or nothing may connect there")


@dataclass(frozen=True)
class OutgoingReach:
    """Where something may connect."""

    trusted: frozenset[tuple[str, int]] = frozenset()
    """Names (in lower case) or addresses, and ports, that an operator set: wherever they are."""
    listed: frozenset[tuple[str, int]] = frozenset()
    """Those that an operator set, but whose addresses are checked as all others. Others have the port 443 alone."""
    targets: tuple[Target | None, ...] = (None,)
    """What addresses may be, as in ``node.network.allow``. None: those of the Internet."""


def connect(host: str, port: int, reach: OutgoingReach | None, *, within_s: float) -> socket.socket:
    """A connection to the name or the address, with a time limit of ``within_s`` for each read and write.

    ``reach`` None: a person asks on their own machine, and reaches what it reaches. Behind a proxy of the site
    (``HTTPS_PROXY``, ``NO_PROXY``) the proxy looks names up, and decides about their addresses. Raises
    :class:`Unreachable`; without ``reach`` the ``OSError`` itself.
    """
    host, deadline = host.lower().rstrip("."), time.monotonic() + within_s
    try:
        return _connect(host, port, reach, deadline)
    except (OSError, UnicodeError) as error:
        if reach is None and isinstance(error, OSError):
            raise
        raise Unreachable from error


@contextmanager
def closed_at(deadline: float, connection: socket.socket) -> Iterator[Callable[[], bool]]:
    """Until the end of the block: cut the connection at ``deadline`` (of ``time.monotonic``), whatever waits for a byte
    more. Also once TLS was begun on it. Gives what says whether it was cut."""
    late, cut = threading.Event(), connection.dup()

    def close() -> None:
        late.set()
        with suppress(OSError):
            cut.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), close)
    timer.daemon = True
    timer.start()
    try:
        yield late.is_set
    finally:
        timer.cancel()
        timer.join()
        cut.close()


def place_of(url: str) -> tuple[str, int]:
    """The name, in lower case, and the port of an http or https address. Raises ``ValueError``."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname or parts.port == 0:
        raise ValueError(f"{url[:200]!r} is no http or https address")
    return parts.hostname.rstrip("."), parts.port or _PORTS[parts.scheme]


def is_address(host: str) -> bool:
    """True if it is no name, but an address in some spelling: its last part is a number (URL standard, 3.5)."""
    return re.fullmatch(r"(.*\.)?(0x[0-9a-f]*|[0-9]+)|.*[:%].*", host, re.IGNORECASE) is not None


def read_head(connection: socket.socket) -> tuple[bytes, bytes]:
    """The head of a message of HTTP, up to the empty line, and what came after it. Raises :class:`Unreachable`."""
    found = b""
    while b"\r\n\r\n" not in found:
        piece = connection.recv(4096)
        found += piece
        if not piece or len(found) > _LONGEST_HEAD:
            raise Unreachable
    head, _, rest = found.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n", rest


def _connect(host: str, port: int, reach: OutgoingReach | None, deadline: float) -> socket.socket:
    is_trusted = reach is None or (host, port) in reach.trusted
    if not (is_trusted or port == HTTPS or (reach is not None and (host, port) in reach.listed)):
        raise Unreachable
    proxy = None if is_trusted and (is_address(host) or host in LOOPBACK) else _proxy_for(host)
    if proxy is not None:
        if not is_trusted and not re.fullmatch(r"[a-z0-9._-]+\.[a-z][a-z0-9-]*", host):
            raise Unreachable
        return _through(proxy, host, port, deadline)
    found = _look_up(host, port, deadline)
    if not found or not (is_trusted or (reach is not None and all(_may(one, host, port, reach) for one in found))):
        raise Unreachable
    return _first_of(found, port, deadline)


def _first_of(addresses: list[str], port: int, deadline: float) -> socket.socket:
    error: OSError = Unreachable()
    for address in addresses:
        try:
            return socket.create_connection((address, port), _left_s(deadline))
        except OSError as failed:
            error = failed
    raise error


def _may(address: str, host: str, port: int, reach: OutgoingReach) -> bool:
    by_name = any(one is not None and one.name == host and _has_port(one, port) for one in reach.targets)
    inside = by_name and not _is_special(address)
    return (inside or is_allowed(address, port, reach.targets)) and not _is_of_this_host(address, port)


def _has_port(target: Target, port: int) -> bool:
    return target.ports is None or target.ports[0] <= port <= target.ports[1]


def _is_special(address: str) -> bool:
    """True for addresses that no name leads to, whatever an entry says: of this host, of a link, of metadata."""
    return ":" in address or not is_allowed(address, 0, [_ANYWHERE])


def _is_of_this_host(address: str, port: int) -> bool:
    """True if this host itself has the address: what it would send there comes from there."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, port))
        except OSError:
            return False
        return probe.getsockname()[0] == address


def _look_up(host: str, port: int, deadline: float) -> list[str]:
    """The addresses of a name, those of IPv4 first. Nobody waits longer for a name server than until ``deadline``."""
    turns = _look_ups
    if not turns.acquire(timeout=_left_s(deadline)):
        raise TimeoutError("no name server answers")
    answer: Future[list[str]] = Future()
    answer.add_done_callback(lambda _: turns.release())
    threading.Thread(target=_look, args=(host, port, answer), name="look-up", daemon=True).start()
    try:
        return answer.result(_left_s(deadline))
    except FutureTimeout:
        raise TimeoutError("no name server answers") from None


def _look(host: str, port: int, answer: Future[list[str]]) -> None:
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
        answer.set_result(sorted(found, key=lambda one: (":" in one, one)))
    except Exception as error:
        answer.set_exception(error)


def _left_s(deadline: float) -> float:
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("it took too long")
    return left_s


def _proxy_for(host: str) -> SplitResult | None:
    """The proxy that the environment names for this name. None: there is none."""
    from urllib.request import getproxies, proxy_bypass  # most processes never need it

    found = getproxies()
    proxy = found.get("https") or found.get("all")
    return None if not proxy or proxy_bypass(host) else urlsplit(proxy)


def _through(proxy: SplitResult, host: str, port: int, deadline: float) -> socket.socket:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    login = ""
    if proxy.username is not None:
        words = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        login = f"Proxy-Authorization: Basic {base64.b64encode(words.encode()).decode()}\r\n"
    there = _first_of(_look_up(proxy.hostname or "", proxy.port or 80, deadline), proxy.port or 80, deadline)
    with closed_at(deadline, there) as is_late:
        try:
            there.sendall(f"CONNECT {where} HTTP/1.1\r\nHost: {where}\r\n{login}\r\n".encode())
            head, rest = read_head(there)
            if rest or is_late() or not re.match(rb"HTTP/1\.[01] 200", head):
                raise Unreachable
        except BaseException:
            there.close()
            raise
    return there
