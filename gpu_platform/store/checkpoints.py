"""When attempts last saved their work, as their hosts told with their leases."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.attempt import AttemptKey
from gpu_platform.domain.lease import Checkpoint
from gpu_platform.store.models import host

_CHECKPOINTS = TypeAdapter(list[Checkpoint])


def parse_checkpoints(text: str) -> list[Checkpoint]:
    return _CHECKPOINTS.validate_json(text)


def saved_at(session: Session, hosts: Collection[str] | None = None) -> dict[AttemptKey, float]:
    """Attempt -> Unix time of the newest checkpoint that ``hosts`` (None: all) see; a lost host's last word counts."""
    query = select(host.c.checkpoints).where(host.c.checkpoints != "[]")
    if hosts is not None:
        query = query.where(host.c.name.in_(hosts))
    saved: dict[AttemptKey, float] = {}
    for text in session.scalars(query):
        for one in parse_checkpoints(text):
            saved[one.key] = max(one.written_at, saved.get(one.key, one.written_at))
    return saved
