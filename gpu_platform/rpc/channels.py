"""Where gRPC of a service is, and how one connects. Clients with and without asyncio use it."""

from __future__ import annotations

import os
import ssl
from typing import Any
from urllib.parse import urlsplit

import grpc

from gpu_platform.client.connection import CONNECT_TIMEOUT_S
from gpu_platform.client.credentials import LOOPBACK
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.rpc.limits import MAX_ANSWER_BYTES

DEFAULT_PORT = 8701
PORT_VARIABLE = "GPU_PLATFORM_GRPC_PORT"
_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_ANSWER_BYTES),
    ("grpc.max_metadata_size", 64 * 1024),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # How long one try to connect takes, and how soon the next one comes. By itself gRPC waits up to two minutes, longer
    # than clients try again.
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_TIMEOUT_S * 1000)),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
]


def grpc_port() -> int:
    """``GPU_PLATFORM_GRPC_PORT``, else 8701. Raises :class:`InvalidRequest`."""
    given = os.environ.get(PORT_VARIABLE) or str(DEFAULT_PORT)
    if not given.isdecimal() or not 0 < int(given) < 65536:
        raise InvalidRequest(f"{PORT_VARIABLE} is {given!r}: write a port, e.g. {DEFAULT_PORT}")
    return int(given)


def address_of(url: str, port: int) -> str:
    """The address of gRPC of the service whose REST is at ``url``."""
    host = urlsplit(url).hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def options_for(url: str) -> list[tuple[str, Any]]:
    """The options of a channel to the service whose REST is at ``url``."""
    # A proxy for the internet cannot reach the loopback of this machine.
    return [*_OPTIONS, ("grpc.enable_http_proxy", 0 if urlsplit(url).hostname in LOOPBACK else 1)]


def credentials_of(trusted: ssl.SSLContext) -> grpc.ChannelCredentials:
    """TLS that trusts whom REST trusts. gRPC would trust a list of its own."""
    found = trusted.get_ca_certs(binary_form=True)
    authorities = "".join(ssl.DER_cert_to_PEM_cert(one) for one in found).encode()
    return grpc.ssl_channel_credentials(authorities or None)
