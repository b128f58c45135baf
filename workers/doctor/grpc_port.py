"""The check of gRPC: whether the service answers at ``service.grpc_port``, where that is set."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from gpu_platform.identity.certificates import CertificateFiles
from gpu_platform.settings import Settings
from workers.doctor.results import Part, Result
from workers.doctor.roles import Roles

_TIMEOUT_S = 5.0


def checks(settings: Settings, roles: Roles) -> Iterator[Result]:
    """One result if this machine's settings name a port, else none."""
    port = settings.service.grpc_port
    if not port:
        return
    place = urlsplit(settings.api_url)
    host = place.hostname or ""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    yield _asked(Part("service"), settings, address, secure=place.scheme == "https")


def _asked(part: Part, settings: Settings, address: str, *, secure: bool) -> Result:
    import grpc  # most deployments do not serve it
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    options = [("grpc.enable_http_proxy", 0)]
    if secure:
        trusted = CertificateFiles.of(settings.tls, settings.state_dir, "service").trusted
        authorities = trusted.read_bytes() if trusted.exists() else None
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(authorities), options)
    else:
        channel = grpc.insecure_channel(address, options)
    started = time.monotonic()
    try:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=_TIMEOUT_S)
    except grpc.RpcError as raised:
        error: Any = raised
        return part.failed(
            "gRPC",
            f"{address}: {error.code().name} {error.details()}",
            "restart the service, so that it reads service.grpc_port; open the port in the firewall; compare api_url "
            "(http or https) with tls.enabled",
        )
    finally:
        channel.close()
    took_ms = (time.monotonic() - started) * 1000
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return part.ok("gRPC", f"{address}, in {took_ms:.0f} ms")
    return part.warning("gRPC", f"{address} answers that it is not ready", "mend what `service: ready` says")
