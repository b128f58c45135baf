"""What a browser may do here: show /docs, and nothing on behalf of another site.

A page of another site can send requests to this service in two ways. It can let its own name point to the service's
address ("DNS rebinding"): so the header ``Host`` must name this service. And it can send a form or a simple script
request ("cross-site request forgery"): so a request that changes something must come from a page of this service, or
carry something that such a page cannot send without asking first. Asking is always refused, and there are no CORS
headers, but for one page and one path: the Temporal UI may send payloads to be opened.

References: Fetch standard, "CORS-safelisted request-header"; W3C "Fetch Metadata"; RFC 9110, 7.4 and 15.5.20.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_platform.client.wire import Problem
from gpu_platform.settings import Settings
from service.http import machines
from service.http.problems import answer

_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_SIMPLE_BODIES = frozenset({"", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain"})
"""Content types that a page may send to another site without asking; "": none was given."""
_OWN_HEADERS = ("authorization", "x-gpu-platform-user", "idempotency-key", "x-requested-with")
"""Headers that a page may send to another site only after asking."""
_AUTHORITY = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")
"""A host and a port (RFC 3986, 3.2), and nothing else: parsers differ about what comes before and after."""
_DEFAULT_PORTS = {"http": 80, "https": 443}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of every answer that does not set its own."""


@dataclass(frozen=True)
class Guest:
    """A page of another site that may send POSTs with JSON to one path, with what its user has signed in with here."""

    path: str
    origin: str
    """As browsers send it: scheme, name and port."""
    headers: tuple[str, ...]
    """What it may send along."""

    def sends(self, path: str, headers: Headers) -> bool:
        """True if the request is this page's, for this path."""
        return path == self.path and headers.get("origin") == self.origin

    def asks(self, method: str, headers: Headers) -> bool:
        """True if its browser asks whether it may send such a request ("preflight")."""
        return method == "OPTIONS" and headers.get("access-control-request-method") == "POST"

    @property
    def consent(self) -> Response:
        """The answer to that."""
        allowed = {"Access-Control-Allow-Methods": "POST", "Access-Control-Allow-Headers": ", ".join(self.headers)}
        return Response(status_code=204, headers={**allowed, "Access-Control-Max-Age": "600"})

    def lets_read(self) -> dict[str, str]:
        """The headers that let the page read an answer."""
        return {"Access-Control-Allow-Origin": self.origin, "Access-Control-Allow-Credentials": "true"}


def temporal_ui(settings: Settings) -> Guest | None:
    """The Temporal UI of the settings, which may ask for payloads in clear. None: no page may."""
    page = urlsplit(settings.temporal.ui_url or "")
    if page.scheme not in _DEFAULT_PORTS or not page.hostname:
        return None
    # The UI sends the ID token of its user as Authorization-Extras. It is not used here.
    sent = ("authorization", "authorization-extras", "content-type", "x-namespace")
    return Guest("/v1/temporal/decode", _origin_of(page.scheme, page.hostname, page.port), sent)


def names_of_this_service(settings: Settings, hosts_file: Path = Path("/etc/hosts")) -> frozenset[str]:
    """The host names under which clients may reach the service: the loopback's, this machine's own, and those of the
    settings (``service.host``, ``api_url``, ``api_urls``, ``tls.names``, ``service.allowed_hosts``).

    The machine's own names are its host name and what ``/etc/hosts`` says beside it. DNS is not asked: whoever answers
    for it on a foreign network could add a name. Addresses are always allowed: no site can make a browser believe that
    its pages come from another address.
    """
    machine = socket.gethostname().lower()
    urls = (urlsplit(url).hostname for url in (settings.api_url, *settings.api_urls))
    given = (*settings.service.allowed_hosts, *settings.tls.names, settings.service.host)
    own = {"localhost", machine, machine.split(".")[0], *_names_beside(machine, hosts_file)}
    return frozenset({*own, *(name for name in urls if name), *(name.lower().rstrip(".") for name in given)} - {""})


def _names_beside(machine: str, hosts_file: Path) -> set[str]:
    """The names of this machine in the file (hosts(5)): ``10.1.2.3  box.lab.example  box``."""
    try:
        lines = hosts_file.read_text("utf-8", "replace").lower().splitlines()
    except OSError:
        return set()
    names = [line.split("#")[0].split()[1:] for line in lines]
    return {name for line in names if machine in line for name in line}


class BrowserRules:
    """Refuses what only a page of another site would send, and adds headers that bind browsers to the rules."""

    def __init__(self, app: ASGIApp, names: Iterable[str], guest: Guest | None = None) -> None:
        self._app = app
        self._names = frozenset(names)
        self._guest = guest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        method, asked = scope["method"], Headers(scope=scope)
        guest = self._guest if self._guest and self._guest.sends(scope["path"], asked) else None

        async def bound(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in (_HEADERS if guest is None else _HEADERS | guest.lets_read()).items():
                    headers.setdefault(name, value)
                if self._guest is not None and scope["path"] == self._guest.path:
                    headers.add_vary_header("Origin")
            await send(message)

        problem = self._refusal(scope, guest)
        if problem is None:
            preflight = guest is not None and guest.asks(method, asked)
            await (guest.consent if guest and preflight else self._app)(scope, receive, bound)
            return
        problem.instance = scope["path"]
        await answer(problem)(scope, receive, bound)

    def _refusal(self, scope: Scope, guest: Guest | None) -> Problem | None:
        method, headers = scope["method"], Headers(scope=scope)
        host = headers.get("host", "")
        # No page can show a certificate or token of a machine, so a machine may call the service as it likes.
        if not self._is_ours(host) and machines.peer_name(scope) is None:
            return Problem.make(
                421,
                "unknown_host",
                f"the request is for host {host[:100]!r}, which is no name of this service. If it is one, name it in "
                "the service's configuration and restart it: service.allowed_hosts "
                "(GPU_PLATFORM_SERVICE__ALLOWED_HOSTS='[\"NAME\"]'), or api_url. Or use an address of the service",
            )
        if _is_from_another_site(method, headers) and not (guest and _may_be_a_guest(method, headers)):
            return Problem.make(
                403,
                "cross_site",
                f"the request comes from a page of another site ({headers.get('origin', 'unknown')[:100]}); pages "
                f"of other sites may send nothing to {host[:100]}",
            )
        if method == "POST" and "origin" not in headers and not _needs_asking(headers):
            return Problem.make(
                415,
                "unsupported_media_type",
                "a POST needs the header Content-Type: application/json, also without a body, because a page of "
                "another site cannot send that; with curl: -H 'Content-Type: application/json'",
            )
        return None

    def _is_ours(self, host: str) -> bool:
        if "*" in self._names:
            return True
        parsed = _AUTHORITY.fullmatch(host)
        if parsed is None:
            return False
        name = parsed["name"].strip("[]").lower().rstrip(".")
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return any(name == one or (one.startswith(".") and name.endswith(one)) for one in self._names)
        return True


def _is_from_another_site(method: str, headers: Headers) -> bool:
    if method in _SAFE_METHODS:
        # A link to a page may be followed; a script or an image may not be loaded from here.
        fetched = headers.get("sec-fetch-site") == "cross-site"
        return fetched and headers.get("sec-fetch-mode", "navigate") != "navigate"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    return origin is not None and not _is_same(origin, headers.get("host", ""))


def _may_be_a_guest(method: str, headers: Headers) -> bool:
    """A request that a browser sends for another site only after this service has consented, or the question."""
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    return method == "OPTIONS" or (method == "POST" and kind == "application/json")


def _origin_of(scheme: str, name: str, port: int | None) -> str:
    """RFC 6454, 6.2: a port is left out if it is the scheme's own."""
    authority = f"[{name}]" if ":" in name else name
    return f"{scheme}://{authority}" + ("" if port in (None, _DEFAULT_PORTS[scheme]) else f":{port}")


def _is_same(origin: str, host: str) -> bool:
    """Whether a page of ``origin`` and a request for ``host`` belong to one site: the same name and port."""
    scheme, _, authority = origin.partition("://")
    page, asked = _AUTHORITY.fullmatch(authority), _AUTHORITY.fullmatch(host)
    default = _DEFAULT_PORTS.get(scheme)
    if page is None or asked is None or default is None:
        return False
    same_port = int(page["port"] or default) == int(asked["port"] or default)
    return same_port and page["name"].lower() == asked["name"].lower()


def _needs_asking(headers: Headers) -> bool:
    """True if a browser would ask this service first ("preflight") before it sent the request for another site."""
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    return kind not in _SIMPLE_BODIES or any(name in headers for name in _OWN_HEADERS)
