"""The table of events, which is also the change feed."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, CheckConstraint, Index, text
from sqlmodel import Field

from gpu_platform.store.models.columns import BIG_SERIAL, Record, optional_text_column, text_column, time_column


class EventRecord(Record, table=True):
    """Audit log and change feed. Triggers forbid UPDATE, and DELETE of what ``event_cut`` does not name."""

    __table_args__ = (
        Index(
            "ix_event_job_id_seq",
            "job_id",
            "seq",
            sqlite_where=text("job_id IS NOT NULL"),
            postgresql_where=text("job_id IS NOT NULL"),
        ),
        Index(
            "ix_event_gpu_uuid_seq",
            "gpu_uuid",
            "seq",
            sqlite_where=text("gpu_uuid IS NOT NULL"),
            postgresql_where=text("gpu_uuid IS NOT NULL"),
        ),
        {"sqlite_autoincrement": True},
    )

    seq: int | None = Field(default=None, primary_key=True, sa_type=BIG_SERIAL)  # type: ignore[arg-type]
    at: datetime = time_column()
    kind: str = text_column()
    actor: str = text_column()
    job_id: str | None = optional_text_column()
    attempt: int | None = None
    host: str | None = optional_text_column()
    gpu_uuid: str | None = optional_text_column()
    data: str = text_column()


class NoticeFeedRecord(Record, table=True):
    """One row: how far people were told of what happened to jobs, and what users may name in ``notify``."""

    __table_args__ = (CheckConstraint("id = 1", name="one_row"),)

    id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    seq: int = Field(sa_type=BigInteger)
    """Up to this event all notices were handed to Temporal."""
    targets: str = text_column()
    """JSON of the :class:`OpenTargets`."""
