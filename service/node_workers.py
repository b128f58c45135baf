"""The service's requests to node workers. Nothing that a host answers is trusted.

With TLS the node worker must show the certificate of the host that is meant, whatever address it reported. An answer
is never followed elsewhere, never decompressed, and never read beyond a limit.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError
from starlette.concurrency import run_in_threadpool

from gpu_platform.domain.errors import Forbidden, HostUnavailable, InvalidRequest
from gpu_platform.identity import names
from gpu_platform.identity.certificates import TlsContexts
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts
from service.operations.identities import Revocations
from service.operations.reports import checked_url

T = TypeVar("T")

MAX_ANSWER_BYTES = 8 << 20
"""The most that is read of an answer that is no stream."""
MAX_LINE_BYTES = 1 << 20
_TIMEOUT = httpx.Timeout(10.0, connect=2.0)
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: it trusts nobody, and loads no authorities."""


class NodeWorkers:
    """Sends requests to the node worker of a host, by the host's name."""

    def __init__(self, store: Store, contexts: TlsContexts | None, trust_domain: str) -> None:
        """``contexts``: None if node workers use plain HTTP on the loopback."""
        self._store = store
        self._contexts = contexts
        self._trust_domain = trust_domain
        self._revoked = Revocations(store)
        self._pool = _Pool(_NO_CERTIFICATES)
        self._closing: set[asyncio.Task[None]] = set()

    async def ask(self, host: str, method: str, path: str, **options: Any) -> httpx.Response:
        """The whole answer. Raises :class:`HostUnavailable`, :class:`NotFound` and ``httpx.TransportError``."""
        async with self.stream(host, method, path, **options) as answer:
            return await whole(answer, host)

    @asynccontextmanager
    async def stream(self, host: str, method: str, path: str, **options: Any) -> AsyncGenerator[httpx.Response, None]:
        """The answer, whose body was not read yet. Read it with :func:`whole`, :func:`pieces` or :func:`lines`."""
        url = await run_in_threadpool(self._url_of, host)
        try:
            checked_url(url, tls=self._contexts is not None)
        except InvalidRequest as error:
            raise HostUnavailable(
                f"host {host} has not reported since the service changed between HTTP and TLS", host=host
            ) from error
        pool = self._pool_for(host, url)
        if self._contexts is not None:
            name = names.dns_name(f"{names.NODE}/{host}", self._trust_domain)
            options["extensions"] = {"sni_hostname": name}
        with pool.in_use():
            async with pool.http.stream(method, url.rstrip("/") + path, **options) as answer:
                if answer.status_code in (401, 403):
                    # Of the connection: a node worker decides nothing about users. It started with another token, or
                    # another process has its port now.
                    raise HostUnavailable(
                        f"host {host} does not know this service yet: its node worker has just been started", host=host
                    )
                if "content-encoding" in answer.headers:
                    raise HostUnavailable(f"host {host} sent a compressed answer, which nobody asked for", host=host)
                yield answer

    def _url_of(self, host: str) -> str:
        if self._contexts is not None:
            try:
                self._revoked.check(f"{names.NODE}/{host}")
            except Forbidden as error:
                raise HostUnavailable(error.message, host=host) from error
        return hosts.addresses(self._store, host).url

    async def aclose(self) -> None:
        """Close all connections."""
        await asyncio.gather(self._pool.http.aclose(), *self._closing, return_exceptions=True)

    def _pool_for(self, host: str, url: str) -> _Pool:
        """The open connections. They end when a certificate has changed, and when another host is at an address: a
        connection is kept for the host that showed its certificate on it."""
        context = _NO_CERTIFICATES if self._contexts is None else self._contexts.client()
        origin = httpx.URL(url).netloc.decode()
        owner = self._pool.owners.setdefault(origin, host)
        if context is not self._pool.context or owner != host:
            self._retire(self._pool)
            self._pool = _Pool(context)
            self._pool.owners[origin] = host
        return self._pool

    def _retire(self, pool: _Pool) -> None:
        task = asyncio.ensure_future(pool.close_when_unused())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


@dataclass(eq=False)
class _Pool:
    context: ssl.SSLContext
    owners: dict[str, str] = field(default_factory=dict)
    """Address -> the host whose node worker is there."""

    def __post_init__(self) -> None:
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()
        self.http = httpx.AsyncClient(
            timeout=_TIMEOUT,
            # Streams last for hours. Each host limits its own; a limit here would let one user's stop all others.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=20),
            trust_env=False,
            verify=self.context,
            follow_redirects=False,
            headers={"Accept-Encoding": "identity"},
        )

    def in_use(self) -> _Use:
        return _Use(self)

    def change_users(self, by: int) -> None:
        self._users += by
        if self._users:
            self._unused.clear()
        else:
            self._unused.set()

    async def close_when_unused(self) -> None:
        await self._unused.wait()
        await self.http.aclose()


class _Use:
    def __init__(self, pool: _Pool) -> None:
        self._pool = pool

    def __enter__(self) -> None:
        self._pool.change_users(1)

    def __exit__(self, *_: object) -> None:
        self._pool.change_users(-1)


async def whole(answer: httpx.Response, host: str, limit: int = MAX_ANSWER_BYTES) -> httpx.Response:
    """The answer with its body. Raises :class:`HostUnavailable` if that is larger than ``limit`` bytes."""
    body = bytearray()
    async for piece in answer.aiter_raw():
        body += piece
        if len(body) > limit:
            raise HostUnavailable(f"host {host} answered more than {limit >> 20} MiB, which is no answer", host=host)
    kept = {name: answer.headers[name] for name in ("content-type", "retry-after") if name in answer.headers}
    return httpx.Response(answer.status_code, headers=kept, content=bytes(body))


def parsed(kind: TypeAdapter[T], answer: httpx.Response, host: str) -> T:
    """What the answer says. Raises :class:`HostUnavailable` if it is nothing of this kind."""
    try:
        return kind.validate_json(answer.content)
    except ValidationError as error:
        raise HostUnavailable(f"host {host} answered with something that nobody asked for", host=host) from error


async def pieces(answer: httpx.Response, limit: int, size: int) -> AsyncIterator[bytes]:
    """The body in pieces of ``size`` bytes, and no more than ``limit`` bytes of it."""
    left = limit
    async for piece in answer.aiter_raw(size):
        if left <= 0:
            return
        yield piece[:left]
        left -= len(piece)


async def lines(answer: httpx.Response, host: str) -> AsyncIterator[bytes]:
    """The lines of the body, without their ends. Raises :class:`HostUnavailable` if one has no end."""
    rest = b""
    async for piece in answer.aiter_raw():
        *whole_lines, rest = (rest + piece).split(b"\n")
        for line in whole_lines:
            yield line
        if len(rest) > MAX_LINE_BYTES:
            raise HostUnavailable(f"host {host} sent a line without an end", host=host)
    if rest:
        yield rest
