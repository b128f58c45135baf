"""Bring a database to the newest schema, from any number of processes at once."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, text

from gpu_platform.domain.errors import CannotStart
from gpu_platform.observability import get_logger

log = get_logger(__name__)

MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK = 0x6770755F6D696772  # "gpu_migr"


def upgrade(engine: Engine, *, accept_newer: bool = False) -> None:
    """Run all missing migrations in one transaction. A process that comes second finds nothing left to do.

    A schema of a newer release stays as it is. ``accept_newer``: it may be used, as migrations only add; else raises
    :class:`CannotStart`.
    """
    with _alone(engine), engine.begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
        config.attributes["connection"] = connection
        revision = MigrationContext.configure(connection).get_current_revision()
        if not is_newer(revision):
            command.upgrade(config, "head")
        elif accept_newer:
            log.warning("store.schema_is_newer", revision=revision, newest_known=newest_revision())
        else:
            raise CannotStart(
                f"the database has schema {revision}, which a newer release made: this one, gpu-platform "
                f"{version('gpu-platform')}, knows schemas up to {newest_revision()}. Install that release here, too. "
                "While an upgrade rolls, newer_schema: accept lets processes of this release start"
            )


def newest_revision() -> str:
    """The newest schema that this release knows."""
    found = _scripts().get_current_head()
    assert found is not None
    return found


def is_newer(revision: str | None) -> bool:
    """True for a schema that this release does not know. ``revision`` None: there is no schema yet."""
    return revision is not None and revision not in {script.revision for script in _scripts().walk_revisions()}


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(MIGRATIONS))


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
