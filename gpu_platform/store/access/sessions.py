"""Who started which command beside a rank."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.store.database import insert_new, reading, writing
from gpu_platform.store.models import exec_session


@writing
def add_session(session: Session, session_id: str, job_id: str, principal: str, now: datetime) -> None:
    """Record that ``principal`` (its id) started this command."""
    row = {"id": session_id, "job_id": job_id, "principal": principal, "started_at": now}
    insert_new(session, exec_session, row)


@reading
def starter_of(session: Session, session_id: str, job_id: str) -> str | None:
    """The id of the principal that started this command beside a rank of the job. None: nobody did."""
    query = select(exec_session.c.principal)
    return session.scalar(query.where(exec_session.c.id == session_id, exec_session.c.job_id == job_id))


@reading
def sessions_of(session: Session, job_id: str, principal: str) -> set[str]:
    """The ids of all commands that this principal started beside ranks of the job."""
    query = select(exec_session.c.id)
    return set(session.scalars(query.where(exec_session.c.job_id == job_id, exec_session.c.principal == principal)))
