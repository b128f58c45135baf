"""How a node worker proves which host it is: by its certificate, or, without TLS, by its node token."""

from __future__ import annotations

from typing import Any

import httpx

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import names
from gpu_platform.identity.certificates import TlsContexts
from gpu_platform.identity.node_tokens import NODE_HEADER, NodeTokens
from gpu_platform.lanes import LastKnown
from gpu_platform.settings import Settings
from workers.identity import ProcessIdentity

_TOKEN_S = 0.5
"""A request waits so long for the disk with the node token."""


class NodeIdentity:
    """What this node worker shows to the service and to other hosts."""

    def __init__(self, settings: Settings, process: ProcessIdentity | None = None) -> None:
        """``process``: its certificate. None: there is no TLS."""
        self._settings = settings
        self._process = process
        self._token = LastKnown[str | None](None, "node token", patience_s=_TOKEN_S)
        self._known_token: str | None = None

    @classmethod
    async def begin(cls, settings: Settings) -> NodeIdentity:
        """With a valid certificate, if TLS is on. Waits for a service that does not answer. Raises
        :class:`CannotStart`, and :class:`InvalidRequest` for a host name that cannot be in a certificate."""
        if not settings.tls.enabled:
            return cls(settings)
        made = cls(settings, await ProcessIdentity.begin(settings, names.node(settings.node.name)))
        for url in (settings.api_url, *settings.api_urls):
            if not url.lower().startswith("https://"):
                raise CannotStart(
                    f"tls.enabled is true, but {url} is no https address: anybody may answer there, and this host "
                    "would believe them; set api_url and api_urls to the https addresses of the services"
                )
        return made

    @property
    def contexts(self) -> TlsContexts | None:
        """TLS contexts with the certificate. None: there is no TLS."""
        return None if self._process is None else self._process.contexts

    async def keep(self) -> None:
        """Keep the certificate young, until cancelled."""
        if self._process is not None:
            await self._process.keep()

    def client(self, timeout_s: float) -> httpx.AsyncClient:
        """A client for the service and for other hosts. It shows the newest certificate."""
        if self.contexts is None:
            return httpx.AsyncClient(timeout=timeout_s, trust_env=False)
        return httpx.AsyncClient(timeout=timeout_s, trust_env=False, transport=RenewedTransport(self.contexts))

    def blocking_client(self, timeout_s: float) -> httpx.Client:
        """As :meth:`client`, for threads, and for one request: it shows the certificate of now."""
        verify = True if self.contexts is None else self.contexts.client()
        return httpx.Client(timeout=timeout_s, trust_env=False, verify=verify)

    def headers(self) -> dict[str, str]:
        """The headers of a request to the service."""
        if self.contexts is not None:
            return {}
        if self._known_token is None:  # it does not change while this process lives
            self._known_token = self._token.read(self._read_token)
        token = self._known_token
        return {} if token is None else {NODE_HEADER: f"{self._settings.node.name}:{token}"}

    def peer_extensions(self, host: str) -> dict[str, Any]:
        """Options of a request to another host's node worker: the name that its certificate must have."""
        if self.contexts is None:
            return {}
        return {"sni_hostname": names.dns_name(f"{names.NODE}/{host}", self._settings.tls.trust_domain)}

    def _read_token(self) -> str | None:
        node = self._settings.node
        if node.token_file is not None:
            try:
                return node.token_file.read_text().strip()
            except OSError as error:
                raise CannotStart(f"the node token cannot be read: {error}") from error
        if node.token is not None:
            return node.token
        # The service's own machine. Its file may come later than this process.
        tokens = NodeTokens.read(self._settings.tls.directory(self._settings.state_dir))
        return None if tokens is None else tokens.of(node.name)


class RenewedTransport(httpx.AsyncBaseTransport):
    """Sends requests over connections that show the newest certificate. Requests that run meanwhile are not cut."""

    def __init__(self, contexts: TlsContexts) -> None:
        self._contexts = contexts
        self._context = contexts.client()
        self._current = httpx.AsyncHTTPTransport(verify=self._context)
        self._before: httpx.AsyncHTTPTransport | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request."""
        context = self._contexts.client()
        if context is not self._context:
            outdated, self._before = self._before, self._current
            self._context, self._current = context, httpx.AsyncHTTPTransport(verify=context)
            if outdated is not None:
                await outdated.aclose()
        return await self._current.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._current.aclose()
        if self._before is not None:
            await self._before.aclose()
