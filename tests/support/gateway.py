"""A node gateway in this process, with a CA of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from temporalio.client import Client
from temporalio.service import TLSConfig

from gpu_platform.identity import key_ring, names
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import CertificateFiles, make_key_and_request
from gpu_platform.identity.grpc_credentials import server_credentials
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.settings import TemporalSettings
from gpu_platform.store import Store
from workers.gateway.__main__ import TOKENS, RevokedHosts, StoreRights
from workers.gateway.rules import AllowedCalls
from workers.gateway.server import Gateway, make_server
from workers.gateway.upstream import Upstream


class Certificates:
    """Certificates of one test."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._authority = CertificateAuthority.init(directory / "ca")

    def files(self, path: str) -> CertificateFiles:
        key, request = make_key_and_request()
        files = CertificateFiles(*(self._directory / path / name for name in ("own.pem", "own.pem", "ca.pem")))
        files.write(key, self._authority.sign(request, path), self._authority.bundle())
        return files


class RunningGateway:
    def __init__(self, address: str, certificates: Certificates, revoked: RevokedHosts, rules: AllowedCalls) -> None:
        self.address, self.certificates, self.revoked, self.rules = address, certificates, revoked, rules

    async def client(self, path: str, namespace: str, **options: Any) -> Client:
        """A Temporal client with the certificate of ``path``, which believes that the gateway is Temporal."""
        files = self.certificates.files(path)
        tls = TLSConfig(
            server_root_ca_cert=files.trusted.read_bytes(),
            domain=names.dns_name(names.GATEWAY, names.DEFAULT_DOMAIN),
            client_cert=files.certificate.read_bytes(),
            client_private_key=files.key.read_bytes(),
        )
        return await Client.connect(self.address, namespace=namespace, tls=tls, **options)

    def channel(self, path: str) -> grpc.aio.Channel:
        """A bare gRPC connection with the certificate of ``path``."""
        files = self.certificates.files(path)
        secured = grpc.ssl_channel_credentials(
            files.trusted.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
        )
        name = names.dns_name(names.GATEWAY, names.DEFAULT_DOMAIN)
        options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
        return grpc.aio.secure_channel(self.address, secured, options)


@asynccontextmanager
async def running_gateway(
    temporal: Client, store: Store, directory: Path, *, wrap: Callable[[Gateway], Gateway] = lambda it: it
) -> AsyncIterator[RunningGateway]:
    """A gateway in front of the server of ``temporal``."""
    directory.mkdir(exist_ok=True)
    ring = directory / "ring.json"
    key_ring.create(ring)
    certificates = Certificates(directory)
    upstream = Upstream(TemporalSettings(address=temporal.service_client.config.target_host))
    rules = AllowedCalls(temporal.namespace, KeyRing.load(ring).scoped(TOKENS), StoreRights(store))
    revoked = RevokedHosts(store)
    gateway = wrap(Gateway(rules, upstream, names.DEFAULT_DOMAIN, revoked))
    secured = server_credentials(certificates.files(names.GATEWAY), clients_need_certificates=True)
    server, port = make_server(gateway, "127.0.0.1:0", secured)
    await server.start()
    try:
        yield RunningGateway(f"127.0.0.1:{port}", certificates, revoked, rules)
    finally:
        await server.stop(0)
        await upstream.aclose()
