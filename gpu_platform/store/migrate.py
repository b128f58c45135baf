"""Bring a database to the newest schema, from any number of processes at once."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from gpu_platform.observability import get_logger

log = get_logger(__name__)

MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK = 0x6770755F6D696772  # "gpu_migr"


def upgrade(engine: Engine) -> None:
    """Run all missing migrations in one transaction. A process that comes second finds nothing left to do.

    A schema of a newer release stays as it is: while an upgrade rolls, processes of this release may start again beside
    newer ones, and migrations only add.
    """
    with _alone(engine), engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        if not _is_newer(connection, config):
            command.upgrade(config, "head")


def _is_newer(connection: Connection, config: Config) -> bool:
    """Does the database have a revision that this release does not know?"""
    current = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if current is None or current in known:
        return False
    log.warning("store.schema_is_newer", revision=current, message="this process is of an older release: upgrade it")
    return True


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
