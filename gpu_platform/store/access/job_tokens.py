"""Tokens of jobs. Each belongs to one attempt, and is valid exactly as long as the attempt holds its reservation."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.roles import Permission, Role
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.store.access.tokens import hash_of
from gpu_platform.store.database import insert_new, reading, writing
from gpu_platform.store.models import allocation, job, job_token, reservation

PREFIX = "gpj_"
"""Every job token begins so."""
MAY = frozenset({Permission.JOBS_READ, Permission.JOBS_SUBMIT, Permission.JOBS_STOP, Permission.SELF_READ})


@dataclass(frozen=True, slots=True)
class AttemptAndOwner:
    """An attempt that holds something on a host, and whose it is."""

    namespace: str
    user: str
    spec: str
    """JSON."""


@reading
def held_attempt(session: Session, key: AttemptKey, host: str) -> AttemptAndOwner | None:
    """The attempt, if it is its job's newest and holds something on ``host``. None: it does not, or no longer.

    A host that was declared LOST meanwhile gets nothing for it, nor does a reservation that is kept for a repair.
    """
    on_host = (allocation.c.job_id == key.job_id) & (allocation.c.attempt == key.attempt) & (allocation.c.host == host)
    query = (
        select(job.c.namespace, job.c.user, job.c.spec)
        .join(reservation, (reservation.c.job_id == job.c.id) & (reservation.c.attempt == job.c.attempt))
        .join(allocation, on_host & allocation.c.released_at.is_(None) & allocation.c.lost_at.is_(None))
        .where(job.c.id == key.job_id, job.c.attempt == key.attempt)
        .where(reservation.c.released_at.is_(None), ~reservation.c.parked)
        .limit(1)
    )
    row = session.execute(query).one_or_none()
    return None if row is None else AttemptAndOwner(row.namespace, row.user, row.spec)


@writing
def issue(session: Session, key: AttemptKey, host: str, now: datetime) -> str:
    """Make a token for the attempt. Each host of it gets its own, and another one each time that it asks."""
    token = PREFIX + secrets.token_urlsafe(32)
    row = {"hash": hash_of(token), "job_id": key.job_id, "attempt": key.attempt, "host": host, "created_at": now}
    insert_new(session, job_token, row)
    return token


@reading
def find_principal(session: Session, token: str) -> Principal | None:
    """The job whose token it is. None: nobody's, or its attempt has ended."""
    query = (
        select(job.c.id, job.c.namespace, job.c.user, job.c.priority, job_token.c.attempt, job_token.c.host)
        .join(job, job.c.id == job_token.c.job_id)
        .where(job_token.c.hash == hash_of(token))
    )
    row = session.execute(query).one_or_none()
    if row is None:
        return None
    if held_attempt(session, AttemptKey(job_id=row.id, attempt=row.attempt), row.host) is None:
        return None
    return Principal(
        kind=PrincipalKind.JOB,
        name=row.id,
        roles={row.namespace: Role.USER},
        permissions=MAY,
        max_priority=max(row.priority, 0),  # 0 is everybody's
        signed_in_by=f"the token of attempt {row.attempt}",
        user=row.user,
    )
