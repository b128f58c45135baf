"""Certificates of machines: the service signs them, for who has a join token or a certificate that is still valid."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from gpu_platform.domain.access.enrollment import Enrollment, EnrollmentOrder
from gpu_platform.domain.errors import Forbidden, InvalidRequest, NotFound, NotSignedIn
from gpu_platform.identity import names
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import Certificate, Peer
from gpu_platform.identity.enrolment import Issued, JoinToken
from gpu_platform.identity.node_tokens import NodeTokens
from gpu_platform.identity.revocation import first_second_after, is_revoked
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from gpu_platform.store.hosts import identities

_LOOK_S = 2.0


class Revocations:
    """Machines whose certificates are not believed any more. Read from the database every two seconds at most."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: Mapping[str, identities.Revocation] = {}
        self._read_at = -_LOOK_S

    def listed(self) -> dict[str, float]:
        """Name -> when it was revoked, Unix seconds."""
        return {path: found.revoked_at_s for path, found in self._now().items()}

    def check(self, path: str, peer: Peer | None = None) -> None:
        """Raise :class:`Forbidden` if the certificate ``peer`` was signed before ``path`` was revoked; without a
        certificate, if ``path`` was revoked and not enrolled again."""
        _check(self._now().get(path), path, peer)

    def _now(self) -> Mapping[str, identities.Revocation]:
        with self._lock:
            if time.monotonic() - self._read_at >= _LOOK_S:
                self._known = identities.revocations(self._store)
                self._read_at = time.monotonic()
            return self._known


def _check(found: identities.Revocation | None, path: str, peer: Peer | None) -> None:
    if found is None:
        return
    refused = not found.came_back if peer is None else is_revoked(peer, {path: found.revoked_at_s})
    if refused:
        raise Forbidden(identities.was_revoked(path))


class Issuer:
    """Enrols machines and renews their certificates."""

    def __init__(self, settings: Settings, store: Store, *, tls: bool) -> None:
        self._tls = settings.tls
        self._state_dir = settings.state_dir
        self._store = store
        self._uses_tls = tls

    def order(self, name: str, order: EnrollmentOrder, actor: str, now: datetime) -> Enrollment:
        """What a new host needs: a join token, or, without TLS, its node token."""
        path = names.node(name)
        if not self._uses_tls:
            identities.enroll_without_certificate(self._store, path, address=order.address, actor=actor, now=now)
            tokens = NodeTokens.open(self._tls.directory(self._state_dir))
            return Enrollment(name=name, node_token=tokens.of(name))
        token = JoinToken.make(self._ca().fingerprint)
        expires_at = now + timedelta(seconds=order.valid_s)
        identities.add_join_token(
            self._store, token.secret, path, address=order.address, actor=actor, expires_at=expires_at, now=now
        )
        return Enrollment(name=name, join_token=str(token), expires_at=expires_at)

    def authorities(self) -> str:
        """The authorities of this cluster (PEM). Raises :class:`NotFound` without TLS."""
        if not self._uses_tls:
            raise NotFound("this service uses plain HTTP, so there are no certificates here (tls.enabled)")
        if self._tls.ca is not None and not CertificateAuthority.is_in(self._tls.ca_directory(self._state_dir)):
            return self._tls.ca.read_text()
        return self._ca().bundle().decode()

    def first(self, path: str, secret: str, request_pem: str, now: datetime) -> Issued:
        """The certificate that a join token is worth. Raises :class:`Forbidden` and :class:`InvalidRequest`."""
        names.check_path(path)
        ca = self._ca()
        # Strangers ask here: whose token is wrong waits for nothing, and lets nothing be signed.
        identities.check_join_token(self._store, secret, path, now)
        now = self._after_revocation(path, now)
        # Signed before the token is spent: a request that cannot be signed must not spend it.
        issued = self._sign(ca, path, request_pem, now)
        identities.use_join_token(self._store, secret, path, now)
        self._note(path, issued)
        return issued

    def _after_revocation(self, path: str, now: datetime) -> datetime:
        """The time from which the new certificate is told from those before a revocation: a second later at most."""
        found = identities.revocations(self._store).get(path)
        wait_s = 0.0 if found is None else first_second_after(found.revoked_at_s) - now.timestamp()
        if not 0.0 < wait_s <= 1.0:
            return now
        time.sleep(wait_s)
        return now + timedelta(seconds=wait_s)

    def next(self, peer: Peer | None, request_pem: str, now: datetime) -> Issued:
        """A new certificate for who shows a valid one, with the same names. Raises :class:`NotSignedIn` and
        :class:`InvalidRequest`, and :class:`Forbidden` if it was revoked."""
        if peer is None:
            raise NotSignedIn("only who shows a valid certificate gets a new one; an expired one needs a join token")
        # Read now, after ``now`` was taken: a certificate that is signed here is older than a revocation that follows.
        _check(identities.revocations(self._store).get(peer.path), peer.path, peer)
        issued = self._sign(self._ca(), peer.path, request_pem, now, peer.addresses)
        self._note(peer.path, issued)
        return issued

    def revoke(self, name: str, actor: str, now: datetime) -> None:
        """Believe the host's certificates no more. Raises :class:`NotFound`."""
        try:
            path = names.node(name)
        except InvalidRequest:  # no host with a certificate can have this name
            raise NotFound(f"host {name} has no certificate") from None
        identities.revoke(self._store, path, actor, now)

    def _sign(
        self, ca: CertificateAuthority, path: str, request_pem: str, now: datetime, addresses: Sequence[str] = ()
    ) -> Issued:
        signed = ca.sign(request_pem.encode(), path, addresses=addresses, life=self._tls.life, now=now)
        return Issued(certificate=signed.decode(), authorities=ca.bundle().decode())

    def _note(self, path: str, issued: Issued) -> None:
        expires_at = Certificate.parse(issued.certificate.encode()).not_after
        identities.note_certificate(self._store, path, expires_at)

    def _ca(self) -> CertificateAuthority:
        if not self._uses_tls:
            raise InvalidRequest("this service uses plain HTTP, so there are no certificates here (tls.enabled)")
        return CertificateAuthority.load(self._tls.ca_directory(self._state_dir))
