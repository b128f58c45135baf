"""Whose jobs these are: namespace and user. They never change."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from gpu_platform.store.database import reading
from gpu_platform.store.models import job

_AT_ONCE = 500
_OWNERS = select(job.c.id, job.c.namespace, job.c.user).where(job.c.id.in_(bindparam("job_ids", expanding=True)))


class Owner(NamedTuple):
    """The namespace and the user of a job."""

    namespace: str
    user: str


@reading
def owners_of(session: Session, job_ids: Collection[str]) -> dict[str, Owner]:
    """Job -> whose it is. Jobs that do not exist are left out."""
    wanted = list(job_ids)
    found: dict[str, Owner] = {}
    for start in range(0, len(wanted), _AT_ONCE):
        part = wanted[start : start + _AT_ONCE]
        for row in session.execute(_OWNERS, {"job_ids": part}):
            found[row.id] = Owner(row.namespace, row.user)
    return found
