"""The table of steps during which processes died."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Text
from sqlmodel import Field

from gpu_platform.store.models.columns import Record, time_column


class PoisonRecord(Record, table=True):
    """A step of a workflow that was under way when its worker died. It is forgotten once the step succeeds."""

    workflow_id: str = Field(primary_key=True, sa_type=Text)
    step: str = Field(primary_key=True, sa_type=Text)
    """The type of the activity; empty: the code of the workflow itself."""
    deaths: int
    """How many workers died meanwhile."""
    last_at: datetime = time_column()
