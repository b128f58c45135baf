"""The section ``tls`` of the settings: TLS and certificates, the same for every process."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from gpu_platform.identity.names import DEFAULT_DOMAIN
from gpu_platform.settings.section import Section


class TlsSettings(Section):
    """TLS between processes. Both sides show a certificate; see docs/how-to/certificates.md."""

    enabled: bool = False
    """true: the service and node workers speak TLS. It is needed as soon as they listen on an address outside the
    loopback."""
    dir: Path | None = None
    """Directory with the certificates of this machine's processes; None: ``<state_dir>/identity``."""
    ca_dir: Path | None = None
    """Directory of the CA, on the machines of the service; None: ``ca`` inside ``tls.dir``. Made by ``gpu-platform ca
    init``."""
    certificate: Path | None = None
    """This process's certificate with its chain (PEM), if it comes from another PKI and not from our own CA. It is read
    again when it changes."""
    key: Path | None = None
    """The key of ``tls.certificate``; None: it is in the same file."""
    ca: Path | None = None
    """The authorities that are trusted (PEM); None: ``ca.pem`` inside ``tls.dir``, which is renewed by itself."""
    trust_domain: str = DEFAULT_DOMAIN
    """The SPIFFE trust domain: the beginning of the name in every certificate of this cluster."""
    names: list[str] = []
    """DNS names and IP addresses at which clients reach this process, for its certificate."""
    certificate_hours: Annotated[float, Field(gt=0, le=2160)] = 24.0
    """Life of the certificates that the CA signs. They are renewed after two thirds of it."""
    metrics: Literal["certificate", "open"] = "certificate"
    """Who may read ``/metrics`` of a node worker with TLS: a client with a certificate of the service or of ``scraper``
    (``gpu-platform ca issue scraper``), or everybody (``open``)."""

    @property
    def life(self) -> timedelta:
        """The life of a certificate that the CA signs."""
        return timedelta(hours=self.certificate_hours)

    def directory(self, state_dir: Path) -> Path:
        """Where this machine's certificates are."""
        return self.dir or state_dir / "identity"

    def ca_directory(self, state_dir: Path) -> Path:
        """Where the CA is, on the machines of the service."""
        return self.ca_dir or self.directory(state_dir) / "ca"
