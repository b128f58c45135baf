"""Secrets of namespaces. The database has only sealed values; the key is in the key ring, which is a file.

A value is sealed with the newest key of the ring and with the name of its place: moved to another row, it does not
open. The service seals it again after a rotation (:func:`reseal`); until then its old key must stay in the ring
(:func:`keys_in_use`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

from sqlalchemy import Select, delete, select, update
from sqlalchemy.orm import Session

from gpu_platform.domain.access.secrets import SecretInfo
from gpu_platform.domain.errors import CannotOpen, Forbidden, NotFound, Unavailable
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.store.database import change, insert_new, read_record, read_records, reading, writing
from gpu_platform.store.events import append_event
from gpu_platform.store.models import SecretRecord, secret

SCOPE = "secrets"
"""The purpose of the keys in the key ring."""
_AT_ONCE = 100

MayReplace = Callable[[SecretInfo], bool]


@writing
def set_secret(
    session: Session,
    ring: KeyRing,
    namespace: str,
    name: str,
    value: bytes,
    *,
    actor: str,
    may_replace: MayReplace,
    now: datetime,
) -> SecretInfo:
    """Keep a value. ``ring``: of the scope ``SCOPE``. Raises :class:`Forbidden` if there is one that ``may_replace``
    refuses."""
    sealed = ring.seal(value, associated=_place(namespace, name))
    row = SecretRecord(
        namespace=namespace,
        name=name,
        sealed=sealed,
        key_id=KeyRing.key_id(sealed),
        is_text=_is_text(value),
        created_at=now,
        created_by=actor,
        updated_at=now,
        updated_by=actor,
    )
    is_new = insert_new(session, secret, row.model_dump())
    if not is_new:
        old = read_record(session, SecretRecord, _one(namespace, name).with_for_update())
        if old is None:
            raise Unavailable(f"the secret {name!r} was deleted at the same moment: try again")
        _check(old, may_replace, "replace")
        row.created_at, row.created_by = old.created_at, old.created_by
        same = (secret.c.namespace == namespace, secret.c.name == name)
        session.execute(update(secret).where(*same).values(row.model_dump()))
    append_event(session, "secret.set", actor, now, data={"namespace": namespace, "name": name, "new": is_new})
    return _info(row)


@writing
def delete_secret(
    session: Session, namespace: str, name: str, *, actor: str, may_replace: MayReplace, now: datetime
) -> None:
    """Remove a secret. Raises :class:`NotFound`, and :class:`Forbidden` if ``may_replace`` refuses it."""
    old = read_record(session, SecretRecord, _one(namespace, name).with_for_update())
    if old is None:
        raise NotFound(f"there is no secret {name!r} in namespace {namespace}", namespace=namespace)
    _check(old, may_replace, "delete")
    session.execute(delete(secret).where(secret.c.namespace == namespace, secret.c.name == name))
    append_event(session, "secret.deleted", actor, now, data={"namespace": namespace, "name": name})


@reading
def list_secrets(session: Session, namespaces: Collection[str] | None) -> list[SecretInfo]:
    """Names of secrets by namespace and name. ``namespaces``: only these; None: all."""
    query = select(secret).order_by(secret.c.namespace, secret.c.name)
    if namespaces is not None:
        query = query.where(secret.c.namespace.in_(sorted(namespaces)))
    return [_info(row) for row in read_records(session, SecretRecord, query)]


@reading
def open_secrets(session: Session, ring: KeyRing, namespace: str, names: Collection[str]) -> dict[str, bytes]:
    """The values. Raises :class:`NotFound` if one is not there, and :class:`CannotOpen`."""
    rows = read_records(
        session, SecretRecord, select(secret).where(secret.c.namespace == namespace, secret.c.name.in_(names))
    )
    missing = sorted(set(names) - {row.name for row in rows})
    if missing:
        raise NotFound(
            f"namespace {namespace} has no secret {missing[0]!r} any more: set it again with `gpu-platform secrets set "
            f"{missing[0]} --namespace {namespace}`",
            namespace=namespace,
        )
    return {row.name: ring.open(row.sealed, associated=_place(namespace, row.name)) for row in rows}


@reading
def keys_in_use(session: Session) -> set[str]:
    """The ids of the keys that seal secrets. Without them the secrets are lost."""
    return set(session.scalars(select(secret.c.key_id).distinct()))


@writing
def reseal(session: Session, ring: KeyRing, limit: int = _AT_ONCE) -> int:
    """Seal secrets of older keys with the newest one. Returns how many. What cannot be opened stays as it is."""
    newest = KeyRing.key_id(ring.seal(b""))
    rows = read_records(session, SecretRecord, select(secret).where(secret.c.key_id != newest).limit(limit))
    done = 0
    for row in rows:
        place = _place(row.namespace, row.name)
        try:
            sealed = ring.seal(ring.open(row.sealed, associated=place), associated=place)
        except CannotOpen:
            continue
        # Somebody may set it at the same moment.
        same = (secret.c.namespace == row.namespace, secret.c.name == row.name, secret.c.sealed == row.sealed)
        values = {"sealed": sealed, "key_id": KeyRing.key_id(sealed)}
        done += change(session, update(secret).where(*same).values(values))
    return done


def _check(old: SecretRecord, may_replace: MayReplace, verb: str) -> None:
    if not may_replace(_info(old)):
        raise Forbidden(
            f"the secret {old.name} of namespace {old.namespace} is {old.created_by}'s: only {old.created_by} and an "
            f"admin of the namespace may {verb} it; choose another name, or ask one of them",
            needs="admin",
        )


def _one(namespace: str, name: str) -> Select[Any]:
    return select(secret).where(secret.c.namespace == namespace, secret.c.name == name)


def _place(namespace: str, name: str) -> bytes:
    return f"secret\0{namespace}\0{name}".encode()


def _is_text(value: bytes) -> bool:
    """True if it can be the value of a variable."""
    try:
        return "\0" not in value.decode()
    except UnicodeDecodeError:
        return False


def _info(row: SecretRecord) -> SecretInfo:
    return SecretInfo.model_validate(row.model_dump(exclude={"sealed"}))
