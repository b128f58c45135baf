"""Handshakes with our certificates: who is believed, and that new files are used without a restart."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpu_platform.identity import certificates
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import CertificateFiles, Peer, TlsContexts, make_key_and_request
from tests.support.waiting import eventually

DOMAIN = "gpu-platform.internal"


class Machine:
    """A process with a certificate, in memory."""

    def __init__(self, ca: CertificateAuthority, directory: Path, path: str, **signing: object) -> None:
        directory.mkdir(exist_ok=True)
        self.path = path
        own = directory / f"{path.replace('/', '-')}.pem"
        self.files = CertificateFiles(own, own, directory / "ca.pem")
        self.renew(ca, **signing)
        self.contexts = TlsContexts(self.files)

    def renew(self, ca: CertificateAuthority, **signing: object) -> None:
        key, request = make_key_and_request()
        self.files.write(key, ca.sign(request, self.path, **signing), ca.bundle())  # type: ignore[arg-type]


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, server_name: str) -> tuple[Peer | None, str]:
    """The client as the server sees it, and the serial number of the server's certificate. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=server_name)
    done: set[str] = set()
    for _ in range(10):
        for side, end in (("client", theirs), ("server", ours)):
            try:
                end.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
        if len(done) == 2:
            shown = theirs.getpeercert()
            assert shown
            return Peer.of(ours.getpeercert(), DOMAIN), str(shown["serialNumber"])
    raise AssertionError("no end of the handshake")


@pytest.fixture
def looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are looked at with each handshake, however soon it follows the last one."""
    monkeypatch.setattr(certificates, "_FRESH_S", 0.0)


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.init(tmp_path / "ca")


def test_both_sides_know_each_other(ca: CertificateAuthority, tmp_path: Path) -> None:
    service, node = Machine(ca, tmp_path / "s", "service"), Machine(ca, tmp_path / "n", "node/a")
    peer, _ = shake_hands(service.contexts.server(), node.contexts.client(), f"service.{DOMAIN}")
    assert peer is not None
    assert peer.path == "node/a"
    assert 86_000 < peer.not_after_s - datetime.now(UTC).timestamp() <= 86_400
    peer, _ = shake_hands(node.contexts.server(), service.contexts.client(), f"a.node.{DOMAIN}")
    assert peer is not None
    assert peer.path == "service"


def test_a_node_cannot_pass_for_another_nor_for_the_service(ca: CertificateAuthority, tmp_path: Path) -> None:
    node, service = Machine(ca, tmp_path / "n", "node/a"), Machine(ca, tmp_path / "s", "service")
    for wanted in (f"b.node.{DOMAIN}", f"service.{DOMAIN}", "127.0.0.1"):
        with pytest.raises(ssl.SSLCertVerificationError, match=r"mismatch|not valid for"):
            shake_hands(node.contexts.server(), service.contexts.client(), wanted)


def test_a_certificate_of_another_authority_is_refused(ca: CertificateAuthority, tmp_path: Path) -> None:
    foreign = CertificateAuthority.init(tmp_path / "foreign")
    service, stranger = Machine(ca, tmp_path / "s", "service"), Machine(foreign, tmp_path / "n", "node/a")
    # The stranger trusts our service, but shows a certificate that its own authority made.
    stranger.files.trusted.write_bytes(ca.bundle())
    with pytest.raises(ssl.SSLError, match=r"verify failed|unknown ca"):
        shake_hands(service.contexts.server(), stranger.contexts.client(), f"service.{DOMAIN}")


def test_an_expired_certificate_is_refused(ca: CertificateAuthority, tmp_path: Path) -> None:
    then = datetime.now(UTC) - timedelta(hours=2)
    service = Machine(ca, tmp_path / "s", "service")
    old = Machine(ca, tmp_path / "n", "node/a", life=timedelta(hours=1), now=then)
    with pytest.raises(ssl.SSLError, match="expired"):
        shake_hands(service.contexts.server(), old.contexts.client(), f"service.{DOMAIN}")


def test_without_a_certificate_a_client_is_nobody(ca: CertificateAuthority, tmp_path: Path) -> None:
    service = Machine(ca, tmp_path / "s", "service")
    client = ssl.create_default_context(cafile=str(service.files.trusted))
    peer, _ = shake_hands(service.contexts.server(), client, f"service.{DOMAIN}")
    assert peer is None


async def test_a_renewed_certificate_is_soon_used(ca: CertificateAuthority, tmp_path: Path) -> None:
    service, node = Machine(ca, tmp_path / "s", "service"), Machine(ca, tmp_path / "n", "node/a")
    server = service.contexts.server()
    _, before = shake_hands(server, node.contexts.client(), f"service.{DOMAIN}")
    service.renew(ca)

    def shown() -> object:
        return shake_hands(server, node.contexts.client(), f"service.{DOMAIN}")[1]

    await eventually(lambda: shown() != before, "the service to show its new certificate", within_s=5)
    client = node.contexts.client()
    assert node.contexts.client() is client
    node.renew(ca)
    await eventually(lambda: node.contexts.client() is not client, "the node to use its new certificate", within_s=5)


@pytest.mark.usefixtures("looked_at_each_time")
def test_files_that_break_change_nothing(ca: CertificateAuthority, tmp_path: Path) -> None:
    service, node = Machine(ca, tmp_path / "s", "service"), Machine(ca, tmp_path / "n", "node/a")
    server = service.contexts.server()
    _, before = shake_hands(server, node.contexts.client(), f"service.{DOMAIN}")
    service.files.certificate.write_text("half of a certi")
    _, after = shake_hands(server, node.contexts.client(), f"service.{DOMAIN}")
    assert after == before


@pytest.mark.usefixtures("looked_at_each_time")
def test_a_rotation_never_breaks_a_handshake_and_ends_trust_in_the_old_authority(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    service, node = Machine(ca, tmp_path / "s", "service"), Machine(ca, tmp_path / "n", "node/a")
    server = service.contexts.server()

    def both_ways() -> None:
        shake_hands(server, node.contexts.client(), f"service.{DOMAIN}")
        shake_hands(node.contexts.server(), service.contexts.client(), f"a.node.{DOMAIN}")

    stolen = Machine(ca, tmp_path / "stolen", "node/b")
    for step in ("trust", "sign", "retire"):
        ca.rotate(step)
        service.renew(ca)
        both_ways()
        node.renew(ca)
        both_ways()
    stolen.files.trusted.write_bytes(ca.bundle())
    with pytest.raises(ssl.SSLError, match=r"verify failed|unknown ca"):
        shake_hands(server, stolen.contexts.client(), f"service.{DOMAIN}")
