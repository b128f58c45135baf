"""Windows as the scheduler sees them."""

from __future__ import annotations

import json

from pydantic import TypeAdapter
from sqlalchemy import select
from sqlalchemy.orm import Session

from gpu_platform.domain.placing.window import Repeat, WindowPlace, WindowRow
from gpu_platform.store.database import read_records, reading
from gpu_platform.store.models import TimeWindowRecord, time_window

PLACES = TypeAdapter(tuple[WindowPlace, ...])
ALL = select(time_window).order_by(time_window.c.name)


@reading
def read_rows(session: Session) -> list[WindowRow]:
    """All windows, by name."""
    return [row_of(one) for one in read_records(session, TimeWindowRecord, ALL)]


def row_of(one: TimeWindowRecord) -> WindowRow:
    """Return a row of the table as the scheduler sees it."""
    return WindowRow(
        name=one.name,
        start=one.start_at.timestamp(),
        end=one.end_at.timestamp(),
        places=PLACES.validate_json(one.places),
        maintenance=one.maintenance,
        is_open=one.is_open,
        period_s=None if one.repeat is None else Repeat(one.repeat).period_s,
        until=None if one.until_at is None else one.until_at.timestamp(),
        namespaces=tuple(json.loads(one.namespaces)),
        users=tuple(json.loads(one.users)),
    )
