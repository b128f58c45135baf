"""Keeps the certificate of a process young: a new key and certificate after two thirds of the life of the old one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prometheus_client import Counter, Gauge

from gpu_platform.domain.errors import PlatformError
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import CertificateFiles, make_key_and_request
from gpu_platform.identity.enrolment import Issued
from gpu_platform.observability import get_logger
from gpu_platform.private_files import PUBLIC, write_file

EXPIRES = Gauge("gpu_platform_certificate_expires_in_seconds", "Until a certificate of this process ends", ["name"])
NOT_RENEWED = Counter(
    "gpu_platform_certificate_renewals_failed_total", "Failed tries to renew a certificate of this process", ["name"]
)
_LONGEST_LOOK_S = 60.0
_LOOKS_PER_LIFE = 60

Obtain = Callable[[bytes], Awaitable[Issued]]
"""Gives a certificate for a request (PEM). Raises :class:`PlatformError`."""

log = get_logger(__name__)


def from_ca(directory: Path, path: str, addresses: Iterable[str], life: timedelta) -> Obtain:
    """Certificates from a CA whose key this process can read. ``addresses``: where clients reach it."""
    names = list(addresses)

    async def obtain(request_pem: bytes) -> Issued:
        def sign() -> Issued:
            ca = CertificateAuthority.load(directory)
            signed = ca.sign(request_pem, path, addresses=names, life=life)
            return Issued(certificate=signed.decode(), authorities=ca.bundle().decode())

        return await asyncio.to_thread(sign)

    return obtain


async def renew_now(files: CertificateFiles, obtain: Obtain) -> Issued:
    """Get a new certificate and write it. Raises what ``obtain`` raises."""
    key, request = make_key_and_request()
    issued = await obtain(request)
    await asyncio.to_thread(files.write, key, issued.certificate.encode(), issued.authorities.encode())
    return issued


def is_due(files: CertificateFiles, now: datetime | None = None) -> bool:
    """True if there is no certificate, or one that should be renewed."""
    found = files.read()
    return found is None or found.renew_at <= (now or datetime.now(UTC))


async def keep_renewed(files: CertificateFiles, obtain: Obtain, path: str, ca: Path | None = None) -> None:
    """Renew the certificate in time, until cancelled. While that fails, try again and again.

    ``ca``: a CA on this machine. After a rotation its authorities are copied, and its new key signs the certificate, at
    once: a new join token holds the fingerprint of that key.
    """
    watch_expiry(files, path)
    while True:
        try:
            if is_due(files) or (ca is not None and not await asyncio.to_thread(_is_from, ca, files)):
                await renew_now(files, obtain)
                log.info("certificate.renewed", name=path)
            if ca is not None:
                await asyncio.to_thread(_copy_authorities, ca, files.trusted)
        except (PlatformError, OSError) as error:
            message = error.message if isinstance(error, PlatformError) else str(error)
            found = files.read()
            NOT_RENEWED.labels(path).inc()
            log.warning(
                "certificate.not_renewed", name=path, error=message, valid_until=found and found.not_after.isoformat()
            )
        await asyncio.sleep(_pause_s(files))


def watch_expiry(files: CertificateFiles, path: str) -> None:
    """Show in the metrics how long the certificate is still valid. Negative: it has expired."""

    def left_s() -> float:
        found = files.read()
        return 0.0 if found is None else found.not_after.timestamp() - time.time()

    EXPIRES.labels(path).set_function(left_s)


def _pause_s(files: CertificateFiles) -> float:
    found = files.read()
    life_s = 0.0 if found is None else (found.not_after - found.not_before).total_seconds()
    return min(_LONGEST_LOOK_S, max(0.2, life_s / _LOOKS_PER_LIFE))


def _is_from(ca: Path, files: CertificateFiles) -> bool:
    return CertificateAuthority.load(ca).signed(files.certificate.read_bytes())


def _copy_authorities(ca: Path, trusted: Path) -> None:
    bundle = CertificateAuthority.load(ca).bundle()
    if not trusted.exists() or trusted.read_bytes() != bundle:
        write_file(trusted, bundle, PUBLIC)
