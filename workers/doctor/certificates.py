"""Checks of the certificates on this machine: chain, key, name and expiry."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from gpu_platform.domain.errors import CannotStart
from gpu_platform.domain.texts import moment
from gpu_platform.identity import names
from gpu_platform.identity.certificates import Certificate, CertificateFiles, TlsContexts
from gpu_platform.settings import Settings
from workers.doctor.results import Part, Result
from workers.doctor.roles import CLIENT, CONTROL_PLANE, HOST, Roles

CA_WARNING = timedelta(days=30)
LATE = 0.5
"""The part of the life after the time of renewal, after which a certificate that was not renewed is a warning."""


def checks(settings: Settings, roles: Roles) -> Iterator[Result]:
    """The checks of this part."""
    part = Part("certificates")
    if roles.names == {CLIENT}:
        yield part.skipped("all", "a client has none")
        return
    paths = _paths(settings, roles)
    if not paths:
        yield part.skipped("all", "TLS is off (tls.enabled: false)")
    for path in paths:
        yield _certificate(part, settings, path)
    if paths:
        yield from _authorities(part, CertificateFiles.of(settings.tls, settings.state_dir, paths[0]))


def _paths(settings: Settings, roles: Roles) -> list[str]:
    """The processes of this machine that have a certificate. The node gateway has one even where TLS is off."""
    paths = []
    if settings.tls.enabled and CONTROL_PLANE in roles.names:
        paths.append(names.SERVICE)
    if settings.tls.enabled and HOST in roles.names:
        paths.append(names.node(settings.node.name))
    gateway = CertificateFiles.of(settings.tls, settings.state_dir, names.GATEWAY).certificate
    if CONTROL_PLANE in roles.names and settings.tls.certificate is None and gateway.exists():
        paths.append(names.GATEWAY)
    return paths


def _certificate(part: Part, settings: Settings, path: str) -> Result:
    files = CertificateFiles.of(settings.tls, settings.state_dir, path)
    again = _how_to_renew(path)
    try:
        pem = files.certificate.read_bytes()
        chain = x509.load_pem_x509_certificates(pem)
        roots = x509.load_pem_x509_certificates(files.trusted.read_bytes())
    except (OSError, ValueError) as error:
        return part.failed(path, f"{files.certificate} or {files.trusted} cannot be read: {error}", again)
    try:
        TlsContexts(files).client()
    except CannotStart as error:
        return part.failed(path, error.message, again)
    found, now = Certificate.parse(pem), datetime.now(UTC)
    until = f"valid until {moment(found.not_after)}"
    if not found.is_valid(now):
        state = "has expired" if found.not_after <= now else "is not valid yet: look at this machine's clock"
        dates = f"{moment(found.not_before)} to {moment(found.not_after)}"
        return part.failed(path, f"{files.certificate} {state} ({dates})", again)
    if not _leads_to(chain, roots, now):
        advice = f"{again}; after `ca rotate` each machine needs the new authorities in {files.trusted}"
        return part.failed(
            path, f"{files.certificate} was signed by none of the authorities in {files.trusted}", advice
        )
    if names.path_of(found.uri, settings.tls.trust_domain) != path:
        expected = names.spiffe_id(path, settings.tls.trust_domain)
        return part.failed(path, f"{files.certificate} is of {found.uri or 'nobody'}, not of {expected}", again)
    if now > found.renew_at + LATE * (found.not_after - found.renew_at):
        advice = "it should have been renewed: does its process run? Its log says why not (certificate.not_renewed)"
        return part.warning(path, until, advice)
    return part.ok(path, until)


def _how_to_renew(path: str) -> str:
    if (host := names.host_of(path)) is not None:
        return f"`gpu-platform hosts enroll {host}`, the join token into node.join_token_file, restart the node worker"
    return (
        f"restart its process, or `gpu-platform ca issue {path}` on the machine of the CA (docs/how-to/certificates.md)"
    )


def _leads_to(chain: list[x509.Certificate], roots: list[x509.Certificate], now: datetime) -> bool:
    """True if each certificate is signed by the next one, and the last by a root that is valid now."""
    for one, issuer in itertools.pairwise(chain):
        if not _signed(one, issuer):
            return chain[0] in roots
    return any(_signed(chain[-1], root) and root.not_valid_after_utc > now for root in roots)


def _signed(one: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        one.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _authorities(part: Part, files: CertificateFiles) -> Iterator[Result]:
    try:
        roots = x509.load_pem_x509_certificates(files.trusted.read_bytes())
    except (OSError, ValueError):
        return  # said above, with the certificate
    newest = max(root.not_valid_after_utc for root in roots)
    found = f"{len(roots)} in {files.trusted}, the last valid until {moment(newest)}"
    if newest - datetime.now(UTC) < CA_WARNING:
        yield part.warning("authorities", found, "`gpu-platform ca rotate`: docs/how-to/certificates.md")
    else:
        yield part.ok("authorities", found)
