"""The signs that each loop of the leader gives while it comes round; see ``gpu_platform.domain.leader_silence``."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.leader_silence import LeaderLoop, LeaderSigns
from gpu_platform.store.database import reading, upsert, writing_unsynced
from gpu_platform.store.models import leader, leader_sign

_LEADER = select(leader.c.epoch, leader.c.holder, leader.c.round)
_SIGNS = select(leader_sign.c.loop, leader_sign.c.epoch, leader_sign.c.at_ms)


@writing_unsynced
def note_sign(session: Session, loop: LeaderLoop, epoch: int, now: datetime) -> None:
    """The loop of the leader of ``epoch`` came round."""
    upsert(session, leader_sign, {"loop": loop.value, "epoch": epoch, "at_ms": int(now.timestamp() * 1000)})


@reading
def read_signs(session: Session) -> LeaderSigns:
    """The newest signs. Those of earlier leaders do not count."""
    row = session.execute(_LEADER).one_or_none()
    if row is None:
        return LeaderSigns(0, "", {})
    newest = {sign.loop: sign.at_ms for sign in session.execute(_SIGNS) if sign.epoch == row.epoch}
    at = {loop: newest[loop.value] / 1000 for loop in LeaderLoop if loop.value in newest}
    # A round is a look at the leases, and at least the Unix time.
    return LeaderSigns(row.epoch, row.holder, {**at, LeaderLoop.LEASES: float(row.round)})
