"""Tables of access: API tokens, and who started which command beside a rank."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Text
from sqlmodel import Field

from gpu_platform.store.models.columns import (
    Record,
    UtcDateTime,
    optional_text_column,
    optional_time_column,
    text_column,
    time_column,
)


class ApiTokenRecord(Record, table=True):
    """An API token. Only its SHA-256 is kept: it has 256 random bits, so a slow hash would add nothing."""

    id: str = Field(primary_key=True, sa_type=Text)
    hash: str = Field(unique=True, sa_type=Text)
    user: str = text_column()
    roles: str = text_column()
    """JSON: namespace -> role."""
    scopes: str | None = optional_text_column()
    """JSON list of permissions; NULL: all that the roles allow."""
    max_priority: int | None = None
    note: str = text_column()
    created_at: datetime = time_column()
    created_by: str = text_column()
    expires_at: datetime | None = optional_time_column()
    last_used_at: datetime | None = optional_time_column()
    revoked_at: datetime | None = optional_time_column()


class ExecSessionRecord(Record, table=True):
    """A command beside a rank, and the principal that started it: nobody else gets its output or gives it input."""

    id: str = Field(primary_key=True, sa_type=Text)
    job_id: str = text_column()
    principal: str = text_column()
    """``Principal.id``."""
    started_at: datetime = Field(index=True, sa_type=UtcDateTime)
