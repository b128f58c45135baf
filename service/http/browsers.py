"""What a browser may do here: show /docs, and nothing on behalf of another site.

A page of another site can send requests to this service in two ways. It can let its own name point to the service's
address ("DNS rebinding"): so the header ``Host`` must name this service. And it can send a form or a simple script
request ("cross-site request forgery"): so a request that changes something must come from a page of this service, or
carry something that such a page cannot send without asking first. There are no CORS headers: asking is always refused.

References: Fetch standard, "CORS-safelisted request-header"; W3C "Fetch Metadata"; RFC 9110, 7.4 and 15.5.20.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpu_platform.client.wire import Problem
from gpu_platform.settings import Settings
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


def names_of_this_service(settings: Settings) -> frozenset[str]:
    """The host names under which clients may reach the service: the loopback's, its own, those of the settings.

    Addresses are always allowed: no site can make a browser believe that its pages come from another address.
    """
    machine = socket.gethostname().lower()
    urls = (urlsplit(url).hostname for url in (settings.api_url, *settings.api_urls))
    given = (name.lower().rstrip(".") for name in settings.service.allowed_hosts)
    own = {"localhost", machine, machine.split(".")[0], settings.service.host.lower()}
    return frozenset({*own, *(name for name in urls if name), *given})


class BrowserRules:
    """Refuses what only a page of another site would send, and adds headers that bind browsers to the rules."""

    def __init__(self, app: ASGIApp, names: Iterable[str]) -> None:
        self._app = app
        self._names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection, as ASGI defines it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def bound(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message.setdefault("headers", []))
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        problem = self._refusal(scope["method"], Headers(scope=scope))
        if problem is None:
            await self._app(scope, receive, bound)
            return
        problem.instance = scope["path"]
        await answer(problem)(scope, receive, bound)

    def _refusal(self, method: str, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return Problem.make(
                421,
                "unknown_host",
                f"the request is for host {host[:100]!r}, which is no name of this service; if it is one, add it to "
                "service.allowed_hosts",
            )
        if _is_from_another_site(method, headers):
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
