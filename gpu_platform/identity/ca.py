"""The certificate authority of one cluster: a key, a certificate, and a bundle of the authorities that are trusted.

::

    ca/ca.pem        certificate and key of the CA that signs (0600)
    ca/next.pem      the CA that will sign after a rotation (0600); trusted already
    ca/old-*.crt     CAs that signed before; trusted until they are retired

A rotation has three steps, with at least the life of a certificate between two of them, so that no process ever meets a
certificate that it does not trust: ``trust`` (a new CA is in the bundle), ``sign`` (it signs), ``retire`` (the old one
leaves the bundle).
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import stat
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpu_platform.domain.errors import CannotStart, InvalidRequest
from gpu_platform.identity import names
from gpu_platform.identity.dates import BACKDATED, BACKDATED_PART
from gpu_platform.private_files import (
    PUBLIC,
    make_private_directory,
    move_file,
    remove_file,
    write_file,
    write_new_file,
)

DEFAULT_LIFE = timedelta(hours=24)
LONGEST_LIFE = timedelta(days=90)
_CA_LIFE = timedelta(days=3650)
_DOMAIN_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-")


class CertificateAuthority:
    """Signs the certificates of one cluster. :meth:`init` makes it, :meth:`load` reads it."""

    def __init__(self, directory: Path, trust_domain: str) -> None:
        self.directory = directory
        self.trust_domain = trust_domain

    @classmethod
    def init(cls, directory: Path, trust_domain: str = names.DEFAULT_DOMAIN) -> CertificateAuthority:
        """Make the key and the certificate. Raises :class:`InvalidRequest` if there is a CA in this directory."""
        if not trust_domain or len(trust_domain) > 63 or not set(trust_domain) <= _DOMAIN_CHARACTERS:
            raise InvalidRequest(
                f"{trust_domain[:80]!r} cannot be a trust domain: use up to 63 lower-case letters, digits, dots and "
                f"hyphens, e.g. {names.DEFAULT_DOMAIN}"
            )
        make_private_directory(directory)
        if not write_new_file(directory / "ca.pem", _new_authority(trust_domain)):
            raise InvalidRequest(
                f"{directory} has a CA already; `gpu-platform ca rotate` replaces its key step by step"
            )
        return cls(directory, trust_domain)

    @classmethod
    def load(cls, directory: Path) -> CertificateAuthority:
        """The CA in this directory. Raises :class:`CannotStart` if there is none that this process may read, or if
        others may read its key."""
        try:
            _check_private(directory / "ca.pem")
            if (directory / "next.pem").exists():
                _check_private(directory / "next.pem")
            certificate, _ = _authority(directory / "ca.pem")
            names_of_ca = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            (uri,) = names_of_ca.get_values_for_type(x509.UniformResourceIdentifier)
        except (OSError, ValueError, x509.ExtensionNotFound) as error:
            raise CannotStart(
                f"there is no CA in {directory} ({error}); make one with `gpu-platform ca init --dir {directory}`"
            ) from error
        return cls(directory, uri.removeprefix("spiffe://"))

    @classmethod
    def is_in(cls, directory: Path) -> bool:
        """True if this process can read the key of a CA in this directory."""
        return os.access(directory / "ca.pem", os.R_OK)

    def sign(
        self,
        request_pem: bytes,
        path: str,
        *,
        addresses: Iterable[str] = (),
        life: timedelta = DEFAULT_LIFE,
        now: datetime | None = None,
    ) -> bytes:
        """A certificate (PEM) for the key of a certificate request.

        Only the key is taken from the request. The name is ``path``, as the caller has checked it. ``addresses``: DNS
        names and IP addresses at which a server is also reached. Raises :class:`InvalidRequest`.
        """
        names.check_path(path)
        public_key = _requested_key(request_pem)
        now = now or datetime.now(UTC)
        certificate, key = _authority(self.directory / "ca.pem")
        until = min(now + min(life, LONGEST_LIFE), certificate.not_valid_after_utc)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, path[:64])]))
            .issuer_name(certificate.subject)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - min(BACKDATED, life / BACKDATED_PART))
            .not_valid_after(until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
            .add_extension(x509.SubjectAlternativeName(self._alternative_names(path, addresses)), critical=False)
        )
        return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def bundle(self) -> bytes:
        """The certificates (PEM) of all authorities that are trusted now. It holds no secret."""
        return b"".join(certificate.public_bytes(serialization.Encoding.PEM) for certificate in self.trusted())

    def trusted(self) -> list[x509.Certificate]:
        """The authorities that are trusted now; the first one signs."""
        found = [_authority(self.directory / "ca.pem")[0]]
        if (self.directory / "next.pem").exists():
            found.append(_authority(self.directory / "next.pem")[0])
        old = sorted(self.directory.glob("old-*.crt"))
        return found + [x509.load_pem_x509_certificate(path.read_bytes()) for path in old]

    def signed(self, certificate_pem: bytes) -> bool:
        """True if the CA that signs now signed this certificate. No two CAs have the same name."""
        own = _authority(self.directory / "ca.pem")[0]
        return x509.load_pem_x509_certificate(certificate_pem).issuer == own.subject

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the signing CA's certificate, in hex. Join tokens carry it."""
        return fingerprint(_authority(self.directory / "ca.pem")[0])

    def rotate(self, step: str) -> None:
        """Do the next step of a rotation: ``trust``, ``sign`` or ``retire``. Raises :class:`InvalidRequest` for a step
        that is not the next one."""
        coming = self.directory / "next.pem"
        if step == "trust":
            if not write_new_file(coming, _new_authority(self.trust_domain)):
                raise InvalidRequest("a new CA is trusted already; the next step is `gpu-platform ca rotate sign`")
        elif step == "sign":
            if not coming.exists():
                raise InvalidRequest("there is no new CA; the first step is `gpu-platform ca rotate trust`")
            before = _authority(self.directory / "ca.pem")[0]
            pem = before.public_bytes(serialization.Encoding.PEM)
            write_file(self.directory / f"old-{fingerprint(before)[:16]}.crt", pem, PUBLIC)
            move_file(coming, self.directory / "ca.pem")
        elif step == "retire":
            old = list(self.directory.glob("old-*.crt"))
            if not old:
                raise InvalidRequest("no old CA is trusted; there is nothing to retire")
            for path in old:
                remove_file(path)
        else:
            raise InvalidRequest(f"{step[:40]!r} is no step of a rotation: use trust, sign or retire")

    def _alternative_names(self, path: str, addresses: Iterable[str]) -> list[x509.GeneralName]:
        dns = x509.DNSName(names.dns_name(path, self.trust_domain))
        uri = x509.UniformResourceIdentifier(names.spiffe_id(path, self.trust_domain))
        return [uri, dns, *dict.fromkeys(_general_name(address) for address in addresses)]


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the certificate, in hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def _new_authority(trust_domain: str) -> bytes:
    """Certificate and key (PEM) of a new CA. Each has a name of its own, so that chains are never ambiguous."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpu-platform CA {secrets.token_hex(4)}")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + _CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{trust_domain}")]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _check_private(path: Path) -> None:
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise CannotStart(f"others may read the key of the CA in {path}: chmod 600 {path}")


def _authority(path: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    pem = path.read_bytes()
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"the key in {path} is no elliptic curve key")
    return x509.load_pem_x509_certificate(pem), key


def _requested_key(request_pem: bytes) -> ec.EllipticCurvePublicKey:
    try:
        request = x509.load_pem_x509_csr(request_pem)
        key = request.public_key()
        is_signed = request.is_signature_valid
    except ValueError as error:
        raise InvalidRequest("the certificate request cannot be read; send PKCS #10 in PEM") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise InvalidRequest("the key of the certificate request is not ECDSA P-256")
    if not is_signed:
        raise InvalidRequest("the certificate request is not signed by its own key")
    return key


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        pass
    try:
        return x509.DNSName(address)
    except ValueError as error:
        raise InvalidRequest(f"{address[:80]!r} is neither an IP address nor a DNS name") from error


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
