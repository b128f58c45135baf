"""Bring a database to the newest schema, from any number of processes at once."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK = 0x6770755F6D696772  # "gpu_migr"


def upgrade(engine: Engine) -> None:
    """Run all missing migrations in one transaction; who comes second finds nothing left to do."""
    with _alone(engine), engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """On SQLite, a lock file: to switch to WAL is not under any lock that a busy timeout waits for."""
    if engine.dialect.name != "sqlite":
        yield
        return
    with open(f"{engine.url.database}.migrate-lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connection = sqlite3.connect(str(engine.url.database), timeout=30)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        finally:
            connection.close()
        yield
