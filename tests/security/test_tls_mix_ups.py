"""Every certificate at every door: what is not exactly right proves nothing."""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import names
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.grpc_credentials import server_credentials
from gpu_platform.identity.names import DEFAULT_DOMAIN
from gpu_platform.store import Store
from tests.security.tls_cluster import PEER_URL, TlsCluster, report
from tests.support.api_server import LogFiles
from workers.gateway.rules import SERVICE, RefusedCall
from workers.gateway.server import Gateway, make_server

NODE_A = f"spiffe://{DEFAULT_DOMAIN}/node/a"
HOUR = timedelta(hours=1)


@dataclass
class Odd:
    """A certificate that our CA would never sign as it is."""

    uris: tuple[str, ...] = (NODE_A,)
    dns: tuple[str, ...] = (f"a.node.{DEFAULT_DOMAIN}",)
    common_name: str = "node/a"
    begins_in: timedelta = -HOUR
    lasts: timedelta = 2 * HOUR
    is_ca: bool = False
    usages: tuple[Any, ...] = field(default=(ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH))
    by: str = "ours"
    """Who signs: ours, another CA, a leaf that our CA signed, or itself."""


PROVES_NOTHING: dict[str, Odd] = {
    "of another authority": Odd(by="another"),
    "signed by itself": Odd(by="itself"),
    "signed by a leaf of ours": Odd(by="a leaf"),
    "signed by a leaf of ours that says CA": Odd(by="a leaf that says CA"),
    "expired": Odd(begins_in=-2 * HOUR, lasts=HOUR),
    "not yet valid": Odd(begins_in=HOUR),
    "for servers only": Odd(usages=(ExtendedKeyUsageOID.SERVER_AUTH,)),
    "a common name only": Odd(uris=(), dns=()),
    "a DNS name only": Odd(uris=()),
    "two hosts": Odd(uris=(NODE_A, f"spiffe://{DEFAULT_DOMAIN}/node/b")),
    "a host and the service": Odd(uris=(f"spiffe://{DEFAULT_DOMAIN}/service", NODE_A)),
    "of another cluster": Odd(uris=("spiffe://other.internal/node/a",)),
    "a cluster whose name begins as ours": Odd(uris=(f"spiffe://{DEFAULT_DOMAIN}.evil/node/a",)),
    "a wildcard": Odd(uris=(f"spiffe://{DEFAULT_DOMAIN}/node/*",), dns=(f"*.node.{DEFAULT_DOMAIN}",)),
    "a NUL": Odd(uris=(f"{NODE_A}\0.evil",)),
    "a query": Odd(uris=(f"{NODE_A}?x=1",)),
    "a path of two": Odd(uris=(f"{NODE_A}/../../service",)),
    "capital letters": Odd(uris=(f"spiffe://{DEFAULT_DOMAIN}/NODE/a",)),
    "a space": Odd(uris=(f"{NODE_A} ",)),
}
ROLES = {
    "node/a": Odd(),
    "node/b": Odd(uris=(f"spiffe://{DEFAULT_DOMAIN}/node/b",)),
    **{role: Odd(uris=(f"spiffe://{DEFAULT_DOMAIN}/{role}",)) for role in names.PROCESSES},
}
MAY = {
    # The report of host a, the logs and the votes at host a, and Temporal through the gateway.
    "node/a": (200, 403, 200, True),
    "node/b": (403, 403, 200, True),
    "service": (403, 200, 200, False),
    "control": (403, 403, 403, False),
    "scheduler": (403, 403, 403, False),
    "gateway": (403, 403, 403, False),
    "scraper": (403, 403, 403, False),
}


def made(odd: Odd, ours: Path, directory: Path) -> tuple[bytes, bytes]:
    """The certificate with its chain, and its key, both PEM."""
    authority = x509.load_pem_x509_certificate(ours.read_bytes())
    signer: Any = serialization.load_pem_private_key(ours.read_bytes(), None)
    chain = b""
    if odd.by == "another":
        other = CertificateAuthority.init(directory / "another").directory / "ca.pem"
        authority = x509.load_pem_x509_certificate(other.read_bytes())
        signer = serialization.load_pem_private_key(other.read_bytes(), None)
    elif odd.by.startswith("a leaf"):
        signer = ec.generate_private_key(ec.SECP256R1())
        key: Any = serialization.load_pem_private_key(ours.read_bytes(), None)
        leaf = _signed(Odd(is_ca=odd.by.endswith("CA")), signer, authority.subject, key)
        authority, chain = leaf, leaf.public_bytes(serialization.Encoding.PEM)
    own = ec.generate_private_key(ec.SECP256R1())
    found = _signed(odd, own, authority.subject, own if odd.by == "itself" else signer)
    key_pem = own.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return found.public_bytes(serialization.Encoding.PEM) + chain, key_pem


def _signed(odd: Odd, own: Any, issuer: x509.Name, signer: Any) -> x509.Certificate:
    begin = datetime.now(UTC) + odd.begins_in
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, odd.common_name)]))
        .issuer_name(issuer)
        .public_key(own.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + odd.lasts)
        .add_extension(x509.BasicConstraints(ca=odd.is_ca, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([*odd.usages]), critical=False)
    )
    others: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in odd.uris]
    others += [x509.DNSName(name) for name in odd.dns]
    if others:
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(x509.SubjectAlternativeName([*others, loopback]), critical=False)
    return builder.sign(signer, hashes.SHA256())


@pytest.fixture
def cluster(sqlite_store: Store, tmp_path: Path) -> TlsCluster:
    return TlsCluster(sqlite_store, tmp_path)


class Door:
    """A certificate in the hands of a client."""

    def __init__(self, cluster: TlsCluster, odd: Odd, directory: Path) -> None:
        directory.mkdir()
        self.certificate, self.key = made(odd, cluster.ca.directory / "ca.pem", directory)
        self.bundle = cluster.ca.bundle()
        own = directory / "own.pem"
        own.write_bytes(self.certificate + self.key)
        self.context = ssl.create_default_context(cadata=self.bundle.decode())
        self.context.load_cert_chain(own)

    async def status(self, method: str, url: str, **options: Any) -> int:
        """0: the handshake failed."""
        async with httpx.AsyncClient(verify=self.context, trust_env=False) as http:
            try:
                return (await http.request(method, url, **options)).status_code
            except httpx.TransportError:
                return 0

    async def code(self, address: str) -> grpc.StatusCode | None:
        """Of the gateway. None: it passed the call on."""
        secured = grpc.ssl_channel_credentials(self.bundle, self.key, self.certificate)
        name = names.dns_name(names.GATEWAY, DEFAULT_DOMAIN)
        options = [("grpc.ssl_target_name_override", name), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(address, secured, options) as channel:
            try:
                asked = DescribeNamespaceRequest().SerializeToString()
                await channel.unary_unary(SERVICE + "DescribeNamespace")(asked, timeout=5)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return None


@asynccontextmanager
async def gateway_of(cluster: TlsCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    contexts = cluster.contexts("gateway")
    secured = server_credentials(contexts.files, clients_need_certificates=True)

    async def nothing(self: Gateway, method: str, context: grpc.aio.ServicerContext) -> bytes:
        try:
            self._host(context)
        except RefusedCall as refused:
            await context.abort(refused.status, str(refused))
        return b""

    monkeypatch.setattr(Gateway, "_answer", nothing)
    unused: Any = None
    server, port = make_server(Gateway(unused, unused, DEFAULT_DOMAIN), "127.0.0.1:0", secured)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(0)


OF_A = {"extensions": {"sni_hostname": f"a.node.{DEFAULT_DOMAIN}"}}


@pytest.mark.parametrize("what", PROVES_NOTHING)
async def test_what_is_not_exactly_right_proves_nothing(
    cluster: TlsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    odd = PROVES_NOTHING[what]
    async with (
        cluster.serving(),
        cluster.worker("a", LogFiles()) as worker,
        gateway_of(cluster, monkeypatch) as gateway,
    ):
        door = Door(cluster, odd, tmp_path / "odd")
        reported = await door.status("POST", f"{cluster.url}/v1/hosts/a/report", json=report("a", PEER_URL))
        assert reported in (0, 401)
        renewed = await door.status("POST", f"{cluster.url}/v1/identity/renew", json={"request": "x"})
        assert renewed in (0, 401)
        for path in ("/logs/j-1/1/0", "/lease/votes", "/metrics"):
            assert await door.status("GET", worker + path, **OF_A) in (0, 403)
        code = await door.code(gateway)
        assert code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE)


@pytest.mark.parametrize("role", ROLES)
async def test_a_certificate_opens_the_doors_of_its_role_only(
    cluster: TlsCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    logs = LogFiles()
    logs.write("j-1", 1, 0, b"secret")
    may_report, may_read, may_ask, is_host = MAY[role]
    async with cluster.serving(), cluster.worker("a", logs) as worker, gateway_of(cluster, monkeypatch) as gateway:
        door = Door(cluster, ROLES[role], tmp_path / "role")
        reported = await door.status("POST", f"{cluster.url}/v1/hosts/a/report", json=report("a", PEER_URL))
        assert reported == may_report
        assert await door.status("GET", f"{worker}/logs/j-1/1/0", **OF_A) == may_read
        assert await door.status("GET", f"{worker}/lease/votes", **OF_A) == may_ask
        assert await door.status("GET", f"{cluster.url}/v1/jobs") == 401, "no certificate is a person"
        assert await door.code(gateway) is (None if is_host else grpc.StatusCode.UNAUTHENTICATED)


def versions() -> dict[str, Callable[[ssl.SSLContext], None]]:
    def at_most(version: ssl.TLSVersion) -> Callable[[ssl.SSLContext], None]:
        def set_version(context: ssl.SSLContext) -> None:
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = version

        return set_version

    return {name: at_most(ssl.TLSVersion[name]) for name in ("TLSv1", "TLSv1_1", "TLSv1_2")}


@pytest.mark.parametrize("version", versions())
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
async def test_older_versions_of_tls_are_not_spoken(cluster: TlsCluster, version: str) -> None:
    context = ssl.create_default_context(cadata=cluster.ca.bundle().decode())
    versions()[version](context)
    async with cluster.serving(), cluster.worker("a", LogFiles()) as worker:
        for url, name in ((cluster.url, "127.0.0.1"), (worker, f"a.node.{DEFAULT_DOMAIN}")):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection("127.0.0.1", httpx.URL(url).port, ssl=context, server_hostname=name)


async def test_plain_http_to_a_port_of_tls_is_not_answered(cluster: TlsCluster) -> None:
    async with cluster.serving(), cluster.worker("a", LogFiles()) as worker:
        for url in (cluster.url, worker):
            reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(10):
                assert b"HTTP/1.1" not in await reader.read()
            writer.close()


async def test_a_connection_is_not_resumed_so_each_one_shows_its_certificate(
    cluster: TlsCluster, tmp_path: Path
) -> None:
    async with cluster.serving():
        door = Door(cluster, ROLES["node/a"], tmp_path / "role")
        reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port, ssl=door.context)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await reader.read()
        session = writer.get_extra_info("ssl_object").session
        writer.close()
        assert session is None or not session.has_ticket


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_the_key_of_the_ca_is_for_its_owner_only(tmp_path: Path, mode: int) -> None:
    authority = CertificateAuthority.init(tmp_path / "ca")
    authority.rotate("trust")
    for name in ("ca.pem", "next.pem"):
        path = authority.directory / name
        path.chmod(mode)
        with pytest.raises(CannotStart, match=f"chmod 600 {path}"):
            CertificateAuthority.load(authority.directory)
        path.chmod(0o600)
    assert CertificateAuthority.load(authority.directory)
