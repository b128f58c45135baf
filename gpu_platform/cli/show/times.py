"""Times for people: in the zone of their machine (``TZ``), or UTC with ``gpu-platform --utc``."""

from __future__ import annotations

import os
import time
from datetime import datetime


def local(at: datetime) -> str:
    """``2026-12-01 09:00:00 CET``: for a single time. A column says its zone in its head."""
    there = at.astimezone()
    return f"{there:%Y-%m-%d %H:%M:%S} {there:%Z}"


def headed(title: str) -> str:
    """The head of a column of local times: ``WHEN (CET)``."""
    return f"{title} ({datetime.now().astimezone():%Z})"


def without_zone(at: datetime) -> str:
    """``2026-12-01 09:00:00``: in a column with such a head."""
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}"


def show_utc() -> None:
    """From now on, all times of this process are shown as UTC."""
    os.environ["TZ"] = "UTC"
    time.tzset()
