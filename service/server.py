"""The main loop of the service: uvicorn, with an end that does not wait for streams."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity.certificates import TlsContexts
from gpu_platform.identity.names import DEFAULT_DOMAIN
from service.http.connections import connections_of


class Server(uvicorn.Server):
    """Ends every stream when it must stop, so that clients continue with another server.

    uvicorn alone would wait for the streams, which never end by themselves, until its grace is over.
    """

    def __init__(
        self,
        app: FastAPI,
        host: str,
        port: int,
        tls: TlsContexts | None = None,
        trust_domain: str = DEFAULT_DOMAIN,
    ) -> None:
        self._application = app
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http=connections_of(trust_domain),
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # service/app.py trusts the proxies of the settings only
                timeout_graceful_shutdown=3,
                **tls_options(tls),
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all streams, then stop as uvicorn does."""
        if (context := getattr(self._application.state, "context", None)) is not None:
            context.feed.close()
        await super().shutdown(sockets)


def tls_options(tls: TlsContexts | None) -> dict[str, Any]:
    """Arguments of ``uvicorn.Config`` for a server with this certificate. None: plain HTTP."""
    return {} if tls is None else {"ssl_context_factory": lambda config, default: tls.server()}


def check_address(host: str, setting: str, *, tls: bool, insecure: bool) -> None:
    """Outside the loopback everybody on the network reads and changes plain HTTP. Raises :class:`CannotStart`.

    ``setting``: the section of the settings that the address is in.
    """
    if tls or insecure or _is_loopback(host):
        return
    raise CannotStart(
        f"{setting} would listen on {host} without TLS: tokens, logs and commands would cross the network in clear, "
        "and anybody there could pass for it. Set tls.enabled: true (docs/how-to/certificates.md), or listen on "
        f"127.0.0.1. If the network itself is private and encrypted: {setting}.insecure_http: true"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
