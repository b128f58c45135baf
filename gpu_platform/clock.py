"""The clock of activities. Workflows use ``workflow.now()``, and the pure core gets the time from its caller."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> datetime:
    """The time now, with the time zone UTC."""
    return datetime.now(UTC)
