"""Idempotency keys: a submission that is sent twice makes one job, one array or one pipeline."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import IdempotencyConflict, Unavailable
from gpu_platform.store.database import insert_new
from gpu_platform.store.models import idempotency

_WITH_KEY = select(idempotency.c.job_id, idempotency.c.said).where(idempotency.c.key == bindparam("key"))


class IdempotencyKey(NamedTuple):
    """A key and the id of the principal that uses it: the same key of two principals is two keys."""

    key: str
    principal: str
    said: str | None = None
    """A digest of the specification without the cluster's defaults, which may change between two submissions."""

    @property
    def stored(self) -> str:
        """What the database keeps. A key has no space, so no two are alike."""
        return f"{self.principal} {self.key}"


class Taken(NamedTuple):
    """An id, or a key, that an earlier submission has."""

    id: str | None
    """The job, array or pipeline that it made. None: it is just being withdrawn."""
    what: str
    """The key or id in words."""
    says_the_same: bool = False
    """The digests of both submissions are equal."""

    def conflict(self, kind: str, first: str) -> IdempotencyConflict:
        """The error for another specification. ``kind``: job, array or pipeline, ``first``: what the key made."""
        return IdempotencyConflict(
            f"{self.what} was used before for another specification ({kind} {first}); use a new one", job_id=first
        )

    def withdrawn(self) -> Unavailable:
        """The error if what the key made is not there any more."""
        return Unavailable(f"the first submission with {self.what} is just being withdrawn; submit it again")


def take_key(session: Session, given: IdempotencyKey | str, made: str, now: datetime) -> Taken | None:
    """Take the key for the job, array or pipeline ``made``. None: it was free; else who has it."""
    key, stored, said = (given, given, None) if isinstance(given, str) else (given.key, given.stored, given.said)
    what = f"idempotency key {key!r}"
    if insert_new(session, idempotency, {"key": stored, "said": said, "job_id": made, "created_at": now}):
        return None
    taken = session.execute(_WITH_KEY, {"key": stored}).one_or_none()
    if taken is None:
        return Taken(None, what)
    return Taken(taken.job_id, what, said is not None and said == taken.said)
