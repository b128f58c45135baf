"""The activities' clock. Workflows use ``workflow.now()``; the pure core is given its time."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time now, with the time zone UTC."""
    return datetime.now(UTC)
