"""Tables of what attempts hold, and of what they used."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, Text, text
from sqlmodel import Field

from gpu_platform.store.models.columns import (
    Record,
    optional_text_column,
    optional_time_column,
    text_column,
    time_column,
)


class ReservationRecord(Record, table=True):
    """What one attempt holds, as a whole.

    The row stays when it is released: a late ``reserve`` of the attempt must lose.
    """

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int = Field(primary_key=True)
    epoch: int = 0
    reserved_at: datetime | None = optional_time_column()
    """None: released before it was ever reserved."""
    released_at: datetime | None = optional_time_column()
    parked: bool = False
    """Kept while nothing runs on it, so that a faulty GPU of it can be reset."""


class AllocationRecord(Record, table=True):
    """A GPU, or a share of it, held by an attempt. With ``released_at`` it says who held it when.

    A host slice without GPUs is one row without ``gpu_uuid``: the host's CPUs and memory are all that it holds.
    """

    __table_args__ = (
        CheckConstraint(
            "gpu_uuid IS NOT NULL OR (NOT exclusive AND sm_percent = 0 AND memory_mib = 0 AND mig_mask = 0)",
            name="of_a_gpu",
        ),
        Index("uq_allocation_job_id_attempt_gpu_uuid", "job_id", "attempt", "gpu_uuid", unique=True),
        ForeignKeyConstraint(["job_id", "attempt"], ["reservation.job_id", "reservation.attempt"]),
        ForeignKeyConstraint(["gpu_uuid"], ["gpu.uuid"]),
        Index(
            "uq_allocation_exclusive_gpu",
            "gpu_uuid",
            unique=True,
            sqlite_where=text("released_at IS NULL AND exclusive"),
            postgresql_where=text("released_at IS NULL AND exclusive"),
        ),
        Index(
            "uq_allocation_mig_start",
            "gpu_uuid",
            "mig_mask",
            unique=True,
            sqlite_where=text("released_at IS NULL AND mig_mask > 0"),
            postgresql_where=text("released_at IS NULL AND mig_mask > 0"),
        ),
        Index("ix_allocation_released_at", "released_at"),
        Index(
            "ix_allocation_held_host",
            "host",
            sqlite_where=text("released_at IS NULL"),
            postgresql_where=text("released_at IS NULL"),
        ),
    )

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int = Field(primary_key=True)
    number: int = Field(default=0, primary_key=True)
    """Counts what the attempt holds."""
    gpu_uuid: str | None = optional_text_column()
    host: str = text_column()
    exclusive: bool
    sm_percent: int
    memory_mib: int
    mig_mask: int = 0
    share_mode: str | None = optional_text_column()
    mig_profile: str | None = optional_text_column()
    cpus: int = 0
    """CPUs of the host that go with this GPU, or that are all of it; so also ``ram_mib``."""
    ram_mib: int = 0
    reserved_at: datetime = time_column()
    running_at: datetime | None = optional_time_column()
    lost_at: datetime | None = optional_time_column()
    """The host was declared LOST while it was held: its ranks there must die before the host is READY again."""
    released_at: datetime | None = optional_time_column()


class UsageRecord(Record, table=True):
    """What an attempt used; see :class:`~gpu_platform.domain.jobs.usage.AttemptUsage`.

    It stays when its job is forgotten.
    """

    __table_args__ = (Index("ix_usage_ended_at", "ended_at"),)

    job_id: str = Field(primary_key=True, sa_type=Text)
    attempt: int = Field(primary_key=True)
    namespace: str = text_column()
    user: str = text_column()
    ended_at: datetime = time_column()
    gpus: int
    gpu_seconds: float
    mean_utilization_percent: float | None = None
    peak_gpu_memory_mib: int | None = None
    energy_j: float
    cpu_s: float
    peak_memory_mib: int
    ecc_errors: int
    throttled_s: float
    unmeasured_hosts: str = text_column()
    ranks: str = text_column()
