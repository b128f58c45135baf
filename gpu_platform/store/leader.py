"""The scheduler's fencing token: every new leader gets a higher epoch, and ``reserve_gang`` refuses older ones."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from gpu_platform.store.database import insert_new, reading, writing
from gpu_platform.store.models import leader

EPOCH = select(leader.c.epoch)


@writing
def begin_epoch(session: Session, holder: str, now: datetime) -> int:
    """Make ``holder`` the leader. From the commit on, no reservation of an earlier epoch succeeds."""
    insert_new(session, leader, {"id": 1, "epoch": 0, "holder": holder, "since": now})
    took = update(leader).values(epoch=leader.c.epoch + 1, holder=holder, since=now).returning(leader.c.epoch)
    return session.execute(took).scalar_one()


@reading
def current_epoch(session: Session) -> int:
    """The epoch that may decide; 0 before the first leader."""
    return session.scalar(EPOCH) or 0
