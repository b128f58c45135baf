"""Machines with certificates: join tokens, which are worth one certificate each, and revoked machines."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, and_, delete, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import Forbidden, NotFound
from gpu_platform.store.database import Store, change, reading, upsert, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import join_token, machine_identity

_KEEP_TOKENS = timedelta(days=7)
"""Join tokens are deleted this long after they have expired."""


@writing
def add_join_token(
    session: Session, secret: str, path: str, *, address: str | None, actor: str, expires_at: datetime, now: datetime
) -> None:
    """Write down a join token for one certificate of ``path``. Only the hash of ``secret`` is kept.

    A machine that was revoked may join again with it. ``address``: where the machine will be reached, if that is not
    the address that it connects from.
    """
    row = {
        "hash": _hash(secret),
        "path": path,
        "address": address,
        "created_by": actor,
        "expires_at": expires_at,
        "used_at": None,
    }
    upsert(session, join_token, row)
    session.execute(delete(join_token).where(join_token.c.expires_at < now - _KEEP_TOKENS))
    data = {"identity": path, "address": address, "expires_at": expires_at.isoformat()}
    append_event(session, "identity.join_token", actor, now, host=_host(path), data=data)


@reading
def check_join_token(session: Session, secret: str, path: str, now: datetime) -> None:
    """Raise :class:`Forbidden` if the token is worth no certificate of ``path``: it is unknown, spent, expired, or for
    another name. All four are one answer, so that nobody learns which tokens exist. Nothing is spent."""
    if session.scalar(select(join_token.c.path).where(_is_right(secret, path, now))) is None:
        raise _not_valid(path)


@writing
def use_join_token(session: Session, secret: str, path: str, now: datetime) -> None:
    """Spend the token for a certificate of ``path``. Raises :class:`Forbidden` as :func:`check_join_token`."""
    right = _is_right(secret, path, now)
    address = session.scalar(select(join_token.c.address).where(right))
    if change(session, update(join_token).where(right).values(used_at=now)) != 1:
        raise _not_valid(path)
    _enroll(session, path, address, path, now)


@writing
def enroll_without_certificate(session: Session, path: str, *, address: str | None, actor: str, now: datetime) -> None:
    """Write down a machine that will prove who it is by a node token."""
    _enroll(session, path, address, actor, now)


@writing
def note_certificate(session: Session, path: str, expires_at: datetime) -> None:
    """Write down when the newest certificate of ``path`` ends."""
    values = update(machine_identity).where(machine_identity.c.path == path).values(expires_at=expires_at)
    session.execute(values)


@writing
def revoke(session: Session, path: str, actor: str, now: datetime) -> None:
    """Believe no certificate of ``path`` any more, and give it no new one. Raises :class:`NotFound`."""
    known = update(machine_identity).where(machine_identity.c.path == path).values(revoked_at=now)
    if change(session, known) != 1:
        raise NotFound(f"no machine was enrolled as {path}")
    session.execute(delete(join_token).where(join_token.c.path == path))
    append_event(session, "identity.revoked", actor, now, host=_host(path), data={"identity": path})


@dataclass(frozen=True, slots=True)
class Revocation:
    """A machine that was revoked, and may have been enrolled again since."""

    revoked_at_s: float
    """Unix seconds. Certificates that were signed before are not believed."""
    came_back: bool
    """It was enrolled again."""


@reading
def revocations(session: Session) -> dict[str, Revocation]:
    """Name -> its revocation, of all machines that were ever revoked."""
    columns = select(machine_identity.c.path, machine_identity.c.revoked_at, machine_identity.c.enrolled_at)
    rows = session.execute(columns.where(machine_identity.c.revoked_at.is_not(None)))
    return {row.path: Revocation(row.revoked_at.timestamp(), row.enrolled_at > row.revoked_at) for row in rows}


def check_not_revoked(store: Store, path: str) -> None:
    """Raise :class:`Forbidden` if the machine was revoked and not enrolled again."""
    found = revocations(store).get(path)
    if found is not None and not found.came_back:
        raise Forbidden(was_revoked(path))


def was_revoked(path: str) -> str:
    """The message to a machine that was revoked."""
    host = _host(path) or path
    return f"{path} was revoked; if the machine is to come back: `gpu-platform hosts enroll {host}`"


@reading
def address_of(session: Session, path: str) -> str | None:
    """The address that the machine was enrolled with. None: the one that it connects from."""
    return session.scalar(select(machine_identity.c.address).where(machine_identity.c.path == path))


def _enroll(session: Session, path: str, address: str | None, actor: str, now: datetime) -> None:
    # The time of a revocation stays: certificates from before it are not believed again.
    before = session.scalar(select(machine_identity.c.revoked_at).where(machine_identity.c.path == path))
    row = {"path": path, "address": address, "enrolled_at": now, "expires_at": None, "revoked_at": before}
    upsert(session, machine_identity, row)
    append_event(
        session, "identity.enrolled", actor, now, host=_host(path), data={"identity": path, "address": address}
    )


def _is_right(secret: str, path: str, now: datetime) -> ColumnElement[bool]:
    # Found by its hash: how long the search takes says nothing of the secrets that there are.
    return and_(
        join_token.c.hash == _hash(secret),
        join_token.c.path == path,
        join_token.c.used_at.is_(None),
        join_token.c.expires_at > now,
    )


def _not_valid(path: str) -> Forbidden:
    return Forbidden(
        f"this join token is not valid for {path}: it was used, has expired, or is for another name. "
        "Make a new one with `gpu-platform hosts enroll`"
    )


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _host(path: str) -> str | None:
    return path.removeprefix("node/") if path.startswith("node/") else None
