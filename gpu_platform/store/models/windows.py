"""The table of windows: advance reservations and maintenance windows."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Text
from sqlmodel import Field

from gpu_platform.store.models.columns import (
    Record,
    optional_text_column,
    optional_time_column,
    text_column,
    time_column,
)


class TimeWindowRecord(Record, table=True):
    """A window with one occurrence: the one that is open, or the next one. The row goes when the last one has ended."""

    name: str = Field(primary_key=True, sa_type=Text)
    maintenance: bool
    is_open: bool
    start_at: datetime = time_column()
    end_at: datetime = time_column()
    repeat: str | None = optional_text_column()
    until_at: datetime | None = optional_time_column()
    places: str = text_column()
    """JSON list of :class:`WindowPlace`."""
    namespaces: str = text_column()
    """JSON list."""
    users: str = text_column()
    """JSON list."""
    reason: str = text_column()
    actor: str = text_column()
    created_at: datetime = time_column()
