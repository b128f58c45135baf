"""How the client without asyncio sends requests: with ``http.client``. ``http_async.py`` has the same methods.

The command line is a new process each time, and importing httpx takes longer than most requests (ADR 93).
"""

from __future__ import annotations

import base64
import os
import select
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import SplitResult, unquote, urlsplit

from gpu_platform.client.answer import Answer, NoAnswer, ServerSentEvent
from gpu_platform.client.calls import Call
from gpu_platform.client.connection import CONNECT_TIMEOUT_S, STREAM_TIMEOUT_S, Connection
from gpu_platform.domain.errors import InvalidRequest

_KEPT_S = 4.0
"""How long an idle connection is used again. The service closes it after 5 s (uvicorn's default)."""
_BROKEN = (OSError, HTTPException)


class Http:
    """Sends requests, and keeps connections open for the next ones. Threads may share it.

    ``verify``: whom to trust, instead of those of the connection.
    """

    def __init__(self, connection: Connection, *, verify: ssl.SSLContext | None = None) -> None:
        self._connection = connection
        self._trusted = verify
        self._idle: list[tuple[str, HTTPConnection, float]] = []
        self._lock = threading.Lock()

    def send(self, url: str, call: Call, token: str | None, tries: int = 0) -> Answer:
        """Send a request to the service at ``url``, after so many ``tries`` at others. Raises :class:`NoAnswer`."""
        headers = self._connection.signed(self._connection.headers(call), token)
        opened, response = self._exchange(url, call, headers, self._connection.read_timeout_s(call, tries))
        try:
            answer = _whole(response)
        except _BROKEN as error:
            opened.close()
            raise NoAnswer(error, was_sent=True) from error
        self._keep(url, opened, response)
        return answer

    def open(self, url: str, call: Call, token: str | None, last_id: str) -> Stream | Answer:
        """Ask for a stream of events, those after the event with the id ``last_id``. An answer that is an error comes
        complete. Raises :class:`NoAnswer`."""
        headers = self._connection.signed(self._connection.stream_headers(last_id), token)
        opened, response = self._exchange(url, call, headers, STREAM_TIMEOUT_S)
        stream = Stream(opened, response)
        if 200 <= stream.status < 300:
            return stream
        with closing(stream):
            try:
                return _whole(response)
            except _BROKEN as error:
                raise NoAnswer(error, was_sent=True) from error

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, opened, _ in idle:
            opened.close()

    def _exchange(
        self, url: str, call: Call, headers: dict[str, str], timeout_s: float
    ) -> tuple[HTTPConnection, HTTPResponse]:
        place = urlsplit(url)
        proxy = self._proxy(place)
        target = f"{place.path}{call.target}"
        if proxy is not None and place.scheme == "http":
            target = f"http://{place.netloc}{target}"
            headers = headers | _proxy_headers(proxy)
        opened = self._idle_connection(url) or self._connect(place, proxy)
        opened.sock.settimeout(timeout_s)
        try:
            opened.request(call.method, target, call.body, headers)
            return opened, opened.getresponse()
        except _BROKEN as error:
            opened.close()
            raise NoAnswer(error, was_sent=True) from error
        except ValueError as error:
            opened.close()
            raise InvalidRequest(f"this cannot be sent in a header of HTTP: {error}") from None

    def _connect(self, place: SplitResult, proxy: SplitResult | None) -> HTTPConnection:
        host, port, secure = place.hostname or "", place.port, place.scheme == "https"
        where = (host, port) if proxy is None else (proxy.hostname or "", proxy.port or 80)
        if secure:
            context = self._trusted or self._connection.trusted()
            opened: HTTPConnection = HTTPSConnection(*where, timeout=CONNECT_TIMEOUT_S, context=context)
            if proxy is not None:
                opened.set_tunnel(host, port or 443, _proxy_headers(proxy))
        else:
            opened = HTTPConnection(*where, timeout=CONNECT_TIMEOUT_S)
        try:
            opened.connect()
        except _BROKEN as error:
            opened.close()
            raise NoAnswer(error, was_sent=False) from error
        return opened

    def _proxy(self, place: SplitResult) -> SplitResult | None:
        """The proxy that the environment names for this address. None: there is none."""
        named = any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in os.environ)
        if not named or not self._connection.may_use_proxy:
            return None
        from urllib.request import getproxies, proxy_bypass  # most clients never need it

        found = getproxies()
        proxy = found.get(place.scheme) or found.get("all")
        return None if not proxy or proxy_bypass(place.netloc) else urlsplit(proxy)

    def _idle_connection(self, url: str) -> HTTPConnection | None:
        with self._lock:
            found = next((one for one in reversed(self._idle) if one[0] == url), None)
            if found is None:
                return None
            self._idle.remove(found)
        _, opened, since = found
        if time.monotonic() - since < _KEPT_S and not _is_closed(opened):
            return opened
        opened.close()
        return self._idle_connection(url)

    def _keep(self, url: str, opened: HTTPConnection, response: HTTPResponse) -> None:
        if response.will_close:
            opened.close()
            return
        with self._lock:
            self._idle.append((url, opened, time.monotonic()))


class Stream:
    """The events of an answer, as they come."""

    def __init__(self, opened: HTTPConnection, response: HTTPResponse) -> None:
        self._opened = opened
        self._response = response
        self.status = response.status

    def events(self) -> Iterator[ServerSentEvent]:
        """The events (HTML standard, section 9.2.6). Raises :class:`NoAnswer` when the connection breaks."""
        try:
            yield from self._events()
        except _BROKEN as error:
            raise NoAnswer(error, was_sent=True) from error

    def close(self) -> None:
        """Read no more of it."""
        self._response.close()
        self._opened.close()

    def _events(self) -> Iterator[ServerSentEvent]:
        event, data, last_id = "", [], ""
        while line := self._response.readline():
            name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
            value = value.removeprefix(" ")
            match name:
                case "event":
                    event = value
                case "data":
                    data.append(value)
                case "id":
                    last_id = value
                case "" if line.strip() == b"":
                    if event or data:
                        yield ServerSentEvent(event or "message", "\n".join(data), last_id)
                    event, data = "", []


def _whole(response: HTTPResponse) -> Answer:
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())


def _is_closed(opened: HTTPConnection) -> bool:
    """True if the other side has closed the connection, or has sent what nobody asked for."""
    waiting = select.poll()
    waiting.register(opened.sock, select.POLLIN)
    return bool(waiting.poll(0))


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
