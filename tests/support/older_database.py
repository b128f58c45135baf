"""A database that is lost, or restored to an older point, while everything runs."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from gpu_platform.store import Store


def replace_database(store: Store, backup: Path) -> None:
    """What is in ``backup`` replaces the database, under everybody's feet."""
    live = sqlite3.connect(store.url.database or "")
    old = sqlite3.connect(backup)
    old.backup(live)
    for connection in (old, live):
        connection.close()
