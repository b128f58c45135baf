"""API tokens: made, found, revoked. The database has only their hashes.

A token is ``gpt_`` and 256 random bits. Nobody can guess one, so SHA-256 is enough: slow hashes like argon2 protect
secrets that people choose. A token is looked up by its hash, so how long that takes says nothing about others.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import datetime, timedelta

from sqlalchemy import bindparam, select, union_all, update
from sqlalchemy.orm import Session

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.access.tokens import PREFIX, TokenInfo, TokenRequest
from gpu_platform.domain.errors import NotFound
from gpu_platform.store.database import change, read_record, read_records, reading, writing, writing_unsynced
from gpu_platform.store.events import append_event
from gpu_platform.store.models import ApiTokenRecord, api_token, job, job_token, reservation

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_WITH_HASH = select(api_token).where(api_token.c.hash == bindparam("hash"))
USED_EVERY = timedelta(minutes=1)
"""How exactly the last use is recorded."""


def new_token() -> str:
    """A new random token."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    """What the database keeps of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


@writing
def add_token(
    session: Session, token: str, request: TokenRequest, *, roles: dict[str, Role], actor: str, now: datetime
) -> TokenInfo:
    """Record a token with these roles. ``actor``: who made it; it is theirs, unless the request names somebody else."""
    row = ApiTokenRecord(
        id="t-" + "".join(secrets.choice(_ALPHABET) for _ in range(10)),
        hash=hash_of(token),
        user=request.user or actor,
        roles=json.dumps(roles),
        scopes=None if request.scopes is None else json.dumps(request.scopes),
        max_priority=request.max_priority,
        note=request.note,
        created_at=now,
        created_by=actor,
        expires_at=request.expires_at,
    )
    session.execute(api_token.insert(), row.model_dump())
    made = _info(row)
    data = {"token": row.id, "user": row.user, "roles": roles, "scopes": request.scopes, "expires_at": row.expires_at}
    append_event(session, "token.created", actor, now, data=json.loads(json.dumps(data, default=str)))
    return made


@reading
def find_token(session: Session, token: str) -> TokenInfo | None:
    """The token's record, whether it is still valid or not. None: there never was such a token."""
    row = read_record(session, ApiTokenRecord, _WITH_HASH, {"hash": hash_of(token)})
    return None if row is None else _info(row)


@reading
def valid_hashes(session: Session, now: datetime) -> frozenset[str]:
    """The hashes of all tokens that may be valid now, also those of jobs, as :func:`hash_of` makes them."""
    lasts = api_token.c.expires_at.is_(None) | (api_token.c.expires_at > now)
    of_people = select(api_token.c.hash).where(api_token.c.revoked_at.is_(None), lasts)
    of_attempt = (reservation.c.job_id == job_token.c.job_id) & (reservation.c.attempt == job_token.c.attempt)
    of_jobs = select(job_token.c.hash).join(reservation, of_attempt).where(reservation.c.released_at.is_(None))
    return frozenset(session.scalars(union_all(of_people, of_jobs)))


@reading
def list_tokens(session: Session) -> list[TokenInfo]:
    """All tokens, oldest first, revoked and expired ones too."""
    query = select(api_token).order_by(api_token.c.created_at, api_token.c.id)
    return [_info(row) for row in read_records(session, ApiTokenRecord, query)]


@writing
def revoke_token(session: Session, token_id: str, *, actor: str, now: datetime) -> TokenInfo:
    """End a token at once. Ending it again does nothing. Raises :class:`NotFound`."""
    row = read_record(session, ApiTokenRecord, select(api_token).where(api_token.c.id == token_id))
    if row is None:
        raise NotFound(f"there is no token {token_id!r}", token=token_id)
    if row.revoked_at is None:
        session.execute(update(api_token).where(api_token.c.id == token_id).values(revoked_at=now))
        append_event(session, "token.revoked", actor, now, data={"token": token_id, "user": row.user})
        row.revoked_at = now
    return _info(row)


@writing_unsynced
def note_use(session: Session, token_id: str, now: datetime) -> None:
    """Record that the token was used now. A power cut may lose it."""
    change(session, update(api_token).where(api_token.c.id == token_id).values(last_used_at=now))


@reading
def holders_of(session: Session, role: Role, namespace: str, now: datetime, limit: int = 3) -> list[str]:
    """Users whose tokens have at least this role in the namespace (``*``: in the cluster), by name."""
    found: set[str] = set()
    for row in read_records(session, ApiTokenRecord, select(api_token).where(api_token.c.revoked_at.is_(None))):
        info = _info(row)
        if info.is_valid(now) and info.principal().has(role, namespace):
            found.add(info.user)
    return sorted(found)[:limit]


@reading
def namespaces_of(session: Session, user: str) -> set[str]:
    """The namespaces in which the user is known: by a token, also one that has ended (``*``: the cluster), or a job."""
    rows = read_records(session, ApiTokenRecord, select(api_token).where(api_token.c.user == user))
    of_jobs = session.scalars(select(job.c.namespace).where(job.c.user == user).distinct())
    return {namespace for row in rows for namespace in _info(row).roles} | set(of_jobs)


def cluster_admin() -> dict[str, Role]:
    """The roles of somebody who may do everything."""
    return {CLUSTER: Role.ADMIN}


def _info(row: ApiTokenRecord) -> TokenInfo:
    columns = row.model_dump(exclude={"hash"})
    columns["roles"] = json.loads(row.roles)
    columns["scopes"] = None if row.scopes is None else json.loads(row.scopes)
    return TokenInfo.model_validate(columns)
