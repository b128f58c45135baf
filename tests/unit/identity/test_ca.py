"""The CA: what it signs, what it refuses, and how its key is replaced."""

from __future__ import annotations

import asyncio
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme
from cryptography import x509

from gpu_platform.domain.errors import CannotStart, InvalidRequest
from gpu_platform.identity import names
from gpu_platform.identity.ca import CertificateAuthority, fingerprint
from gpu_platform.identity.certificates import Certificate, CertificateFiles, make_key_and_request
from gpu_platform.identity.renewal import from_ca, keep_renewed, renew_now
from tests.support.waiting import eventually


@pytest.fixture
def ca(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.init(tmp_path / "ca")


def test_only_its_owner_reads_the_key(ca: CertificateAuthority) -> None:
    assert stat.S_IMODE((ca.directory / "ca.pem").stat().st_mode) == 0o600
    assert stat.S_IMODE(ca.directory.stat().st_mode) == 0o700


def test_a_second_init_changes_nothing(ca: CertificateAuthority) -> None:
    before = ca.fingerprint
    with pytest.raises(InvalidRequest, match="has a CA already"):
        CertificateAuthority.init(ca.directory)
    assert CertificateAuthority.load(ca.directory).fingerprint == before


def test_a_directory_without_a_ca_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="gpu-platform ca init"):
        CertificateAuthority.load(tmp_path)


def test_a_certificate_names_its_owner_and_nobody_else(ca: CertificateAuthority) -> None:
    _, request = make_key_and_request()
    signed = x509.load_pem_x509_certificate(ca.sign(request, "node/dgx-a"))
    alternative = signed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert alternative.get_values_for_type(x509.UniformResourceIdentifier) == [
        "spiffe://gpu-platform.internal/node/dgx-a"
    ]
    assert alternative.get_values_for_type(x509.DNSName) == ["dgx-a.node.gpu-platform.internal"]
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_a_name_in_the_request_is_ignored(ca: CertificateAuthority, tmp_path: Path) -> None:
    """A host that asks for a certificate of the service gets one of its own name."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    wish = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("spiffe://gpu-platform.internal/service")])
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "service")]))
        .add_extension(wish, critical=False)
        .sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    )
    signed = ca.sign(request.public_bytes(serialization.Encoding.PEM), "node/a")
    assert Certificate.parse(signed).uri == "spiffe://gpu-platform.internal/node/a"
    assert b"service" not in x509.load_pem_x509_certificate(signed).subject.public_bytes()


def test_it_lives_as_long_as_asked_but_never_longer_than_its_ca(ca: CertificateAuthority) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    _, request = make_key_and_request()
    short = Certificate.parse(ca.sign(request, "service", life=timedelta(hours=3), now=now))
    assert short.not_after == now + timedelta(hours=3)
    assert short.is_valid(now)
    assert not short.is_valid(short.not_after)
    assert now + timedelta(hours=1.9) < short.renew_at < now + timedelta(hours=2)
    end = ca.trusted()[0].not_valid_after_utc
    late = Certificate.parse(ca.sign(request, "service", now=end - timedelta(hours=1)))
    assert late.not_after == end


@pytest.mark.parametrize(
    "path", ["node/", "node/A b", "node/../service", "root", "", "node/a/b", "service/x", "node/Ä"]
)
def test_a_name_that_is_none_is_refused(ca: CertificateAuthority, path: str) -> None:
    with pytest.raises(InvalidRequest):
        ca.sign(make_key_and_request()[1], path)


@pytest.mark.parametrize("request_pem", [b"", b"not PEM", trustme.CA().cert_pem.bytes()])
def test_what_is_no_request_is_refused(ca: CertificateAuthority, request_pem: bytes) -> None:
    with pytest.raises(InvalidRequest, match="certificate request"):
        ca.sign(request_pem, "service")


def test_a_rotation_trusts_then_signs_then_retires(ca: CertificateAuthority) -> None:
    first = ca.fingerprint
    with pytest.raises(InvalidRequest, match="first step"):
        ca.rotate("sign")
    ca.rotate("trust")
    assert ca.fingerprint == first
    both = {fingerprint(authority) for authority in ca.trusted()}
    assert len(both) == 2
    ca.rotate("sign")
    second = ca.fingerprint
    assert second != first
    assert {fingerprint(authority) for authority in ca.trusted()} == both
    ca.rotate("retire")
    assert [fingerprint(authority) for authority in ca.trusted()] == [second]
    assert ca.bundle().count(b"BEGIN CERTIFICATE") == 1
    assert b"PRIVATE" not in ca.bundle()


def test_names_survive_the_way_there_and_back() -> None:
    for path in ("node/dgx-a", "node/rack7.box-1", "service", "gateway"):
        assert names.path_of(names.spiffe_id(path, "x.internal"), "x.internal") == path
    assert names.path_of("spiffe://other/service", "x.internal") is None
    assert names.path_of("spiffe://x.internal/node/a/b", "x.internal") is None
    assert names.dns_name("node/rack7.box-1", "x.internal") == "rack7.box-1.node.x.internal"


async def test_after_a_rotation_the_new_key_signs_the_services_certificate_at_once(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    """Join tokens hold the fingerprint of the new key: with the old certificate nobody could be enrolled for hours."""
    own = tmp_path / "service.pem"
    files = CertificateFiles(certificate=own, key=own, trusted=tmp_path / "ca.pem")
    obtain = from_ca(ca.directory, "service", [], timedelta(seconds=60))
    await renew_now(files, obtain)
    keeping = asyncio.create_task(keep_renewed(files, obtain, "service", ca.directory))
    ca.rotate("trust")
    ca.rotate("sign")
    assert not ca.signed(own.read_bytes())
    await eventually(lambda: ca.signed(own.read_bytes()), "the new key signs", 20)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
