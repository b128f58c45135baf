"""Certificates of a process: their files, what they say, and TLS contexts that read them again when they change.

A process that serves for months gets a new certificate every few hours. :class:`TlsContexts` looks at the files at each
handshake, so neither a new certificate nor a new list of trusted authorities needs a restart.
"""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity import names
from gpu_platform.identity.dates import issued_at_s
from gpu_platform.lanes import LastKnown
from gpu_platform.observability import get_logger
from gpu_platform.private_files import PUBLIC, make_private_directory, write_file
from gpu_platform.settings import TlsSettings

RENEW_AFTER = 2 / 3
"""The part of its life after which a certificate is renewed."""

log = get_logger(__name__)


@dataclass(frozen=True)
class Certificate:
    """What a certificate says of its owner."""

    uri: str
    """Its SPIFFE id."""
    serial: str
    not_before: datetime
    not_after: datetime

    @classmethod
    def parse(cls, pem: bytes) -> Certificate:
        """Read the first certificate in ``pem``. Raises ValueError."""
        found = x509.load_pem_x509_certificate(pem)
        return cls(
            uri=_spiffe_uri(found),
            serial=f"{found.serial_number:x}",
            not_before=found.not_valid_before_utc,
            not_after=found.not_valid_after_utc,
        )

    @property
    def renew_at(self) -> datetime:
        """When it should be renewed."""
        return self.not_before + RENEW_AFTER * (self.not_after - self.not_before)

    def is_valid(self, now: datetime | None = None) -> bool:
        """True between its two dates."""
        return self.not_before <= (now or datetime.now(UTC)) < self.not_after


@dataclass(frozen=True)
class CertificateFiles:
    """The files of one process: its certificate with its chain, its key (maybe in the same file), whom it trusts."""

    certificate: Path
    key: Path
    trusted: Path

    @classmethod
    def of(cls, tls: TlsSettings, state_dir: Path, path: str) -> CertificateFiles:
        """The files of the process with the name ``path`` (``node/dgx-a``, ``service``, …)."""
        directory = tls.directory(state_dir)
        own = tls.certificate or directory / f"{path.replace('/', '-')}.pem"
        return cls(certificate=own, key=tls.key or own, trusted=tls.ca or directory / "ca.pem")

    def read(self) -> Certificate | None:
        """The certificate as it is now. None: there is none that can be read."""
        try:
            return Certificate.parse(self.certificate.read_bytes())
        except (OSError, ValueError):
            return None

    def write(self, key_pem: bytes, certificate_pem: bytes, bundle_pem: bytes) -> None:
        """Replace certificate and key in one step, so that they always fit; then the list of trusted authorities."""
        make_private_directory(self.certificate.parent)
        # First whom to trust: the new certificate may come from an authority that is new.
        write_file(self.trusted, bundle_pem, PUBLIC)
        write_file(self.certificate, certificate_pem + key_pem)


def make_key_and_request() -> tuple[bytes, bytes]:
    """A new key, and a certificate request for it (both PEM). The authority gives the name, so the request has none."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return key_pem, request.public_bytes(serialization.Encoding.PEM)


_DISK_S = 0.5
"""A connection waits so long for the disk with the certificate, if it is the first to notice that it hangs."""
_FRESH_S = 0.1


class TlsContexts:
    """TLS contexts of one process, always with the newest certificate and the newest trusted authorities.

    Only TLS 1.3, and no session is resumed: each connection shows its certificate anew.
    """

    def __init__(self, files: CertificateFiles) -> None:
        self.files = files
        self._lock = threading.Lock()
        self._loaded: dict[bool, tuple[tuple[Any, ...], ssl.SSLContext]] = {}
        self._newest = {
            server: LastKnown[ssl.SSLContext | None](None, "certificate", patience_s=_DISK_S, fresh_s=_FRESH_S)
            for server in (False, True)
        }

    def server(self) -> ssl.SSLContext:
        """For a server. Clients may show a certificate; one that is not trusted ends the handshake. Raises
        :class:`CannotStart` if the files cannot be read."""

        def take_newest(connection: ssl.SSLObject, _name: str | None, _first: ssl.SSLContext) -> None:
            connection.context = self._current(server=True)

        # A context of its own, whose callback hands each handshake to the newest one.
        context = self._load(server=True)
        context.sni_callback = take_newest  # type: ignore[assignment]
        return context

    def client(self) -> ssl.SSLContext:
        """For a client. It is another object after the files have changed. Raises :class:`CannotStart`."""
        return self._current(server=False)

    def _current(self, *, server: bool) -> ssl.SSLContext:
        """The loaded context, or a new one if the files have changed. If they cannot be read now, or their disk hangs,
        the old one goes on: event loops ask for it, with each connection."""
        found = self._newest[server].read(lambda: self._look(server=server))
        return found or self._look(server=server)  # without any context nothing can go on

    def _look(self, *, server: bool) -> ssl.SSLContext:
        version = tuple(_version(path) for path in (self.files.certificate, self.files.key, self.files.trusted))
        with self._lock:
            known = self._loaded.get(server)
            if known is not None and known[0] == version:
                return known[1]
            try:
                context = self._load(server=server)
            except CannotStart as error:
                if known is None:
                    raise
                log.error("tls.files_not_read", error=error.message)
                self._loaded[server] = (version, known[1])
                return known[1]
            self._loaded[server] = (version, context)
            return context

    def _load(self, *, server: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_verify_locations(self.files.trusted)
            context.load_cert_chain(self.files.certificate, self.files.key)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise CannotStart(
                f"the certificate {self.files.certificate} or the trusted authorities {self.files.trusted} cannot be "
                f"read: {error}. See docs/how-to/certificates.md"
            ) from error
        if server:
            context.verify_mode = ssl.CERT_OPTIONAL
            context.num_tickets = 0
        return context


@dataclass(frozen=True)
class Peer:
    """The other side of a TLS connection, as its certificate says."""

    path: str
    """Its name, e.g. ``node/dgx-a``."""
    not_after_s: float
    """End of its certificate, Unix seconds. The connection may live longer."""
    addresses: tuple[str, ...] = ()
    """More DNS names and IP addresses in its certificate, at which clients reach it."""
    issued_at_s: float = 0.0
    """When our CA signed its certificate, Unix seconds, cut to whole seconds."""

    @classmethod
    def of(cls, shown: dict[str, Any] | None, trust_domain: str) -> Peer | None:
        """From ``ssl.SSLObject.getpeercert()``. None: no certificate, or none of this trust domain."""
        if not shown:
            return None
        uris = [value for kind, value in shown.get("subjectAltName", ()) if kind == "URI"]
        # SPIFFE X.509-SVID, section 2: exactly one URI.
        path = names.path_of(uris[0], trust_domain) if len(uris) == 1 else None
        if path is None:
            return None
        own = names.dns_name(path, trust_domain)
        others = [value for kind, value in shown["subjectAltName"] if kind in ("DNS", "IP Address") and value != own]
        begin, end = (ssl.cert_time_to_seconds(shown[name]) for name in ("notBefore", "notAfter"))
        return cls(path, end, tuple(others), issued_at_s(begin, end))


def peer_in(pem: bytes, trust_domain: str) -> Peer | None:
    """The owner of a certificate that TLS has verified. None: it is none of this trust domain. gRPC's own reading of
    the name ends at a NUL."""
    found = x509.load_pem_x509_certificate(pem)
    try:
        of_owner = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return None
    uris = of_owner.get_values_for_type(x509.UniformResourceIdentifier)
    path = names.path_of(uris[0], trust_domain) if len(uris) == 1 else None
    if path is None:
        return None
    begin, end = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    return Peer(path, end, issued_at_s=issued_at_s(begin, end))


def _spiffe_uri(certificate: x509.Certificate) -> str:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ""
    return next(iter(found.get_values_for_type(x509.UniformResourceIdentifier)), "")


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_ino, seen.st_size
