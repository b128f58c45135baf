"""Connections to the database: how SQLite and PostgreSQL are set up."""

from __future__ import annotations

import random
import re
import sqlite3
import time
from pathlib import Path

from sqlalchemy import Engine, PoolProxiedConnection, QueuePool, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from gpu_platform.domain.errors import InvalidRequest

_SECRET = re.compile("pass|secret|key")
BUSY_TIMEOUT_S = 30
"""How long a transaction waits for the lock of SQLite, or for a connection of the pool."""
IDLE_IN_TRANSACTION_S = 5.0
"""PostgreSQL ends a transaction that says nothing for so long. A process that stands still, or whose machine is cut
off, would keep from all others what it has locked: reports of hosts waited for it until their leases ended."""

DEAD_LINK = {"keepalives_idle": 5, "keepalives_interval": 2, "keepalives_count": 3, "tcp_user_timeout": 10_000}
"""A machine of the database that is gone says nothing, and a statement would wait for its answer for hours. The kernel
gives such a connection up after 11 s. Times are in seconds, ``tcp_user_timeout`` is in milliseconds."""


def normalised(url: str) -> URL:
    """The address with the driver that is used.

    Raises :class:`InvalidRequest` for a database that is not supported, or one in memory.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # their messages show the password
        raise InvalidRequest(
            "database_url is no address of a database: write sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE"
        ) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise InvalidRequest("the database must be a file: several processes share it")
        return parsed
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    raise InvalidRequest(f"{backend!r} databases are not supported: use sqlite:///FILE or postgresql://…")


def shown(url: URL) -> str:
    """The address without its passwords. PostgreSQL takes them in the query, too (libpq, "parameter key words")."""
    hidden = {name: "hidden" for name in url.query if name != "passfile" and _SECRET.search(name)}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def sqlite_engine(url: URL, *, writes: bool) -> Engine:
    """Connections to a file. ``writes``: a single one, whose transactions take the write lock at once."""
    assert url.database is not None
    Path(url.database).parent.mkdir(parents=True, exist_ok=True)
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=1 if writes else 8,
        max_overflow=-1,
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions of its own
        # NORMAL: a commit is not synced under the write lock; see group_commit.
        for pragma in ("foreign_keys=ON", "synchronous=NORMAL", "temp_store=MEMORY", "cache_size=-16384"):
            connection.execute(f"PRAGMA {pragma}")
        if writes:
            connection.execute("PRAGMA busy_timeout=0")  # from here on _begin_immediate does the waiting

    def begin(dbapi_connection: PoolProxiedConnection) -> None:
        raw = dbapi_connection.dbapi_connection
        assert isinstance(raw, sqlite3.Connection)
        if writes:
            _begin_immediate(raw)
        else:
            raw.execute("BEGIN")

    # With a listener for "begin", SQLAlchemy asks for listeners at each step of each statement: a quarter of the time
    # of a short read.
    engine.dialect.do_begin = begin
    return engine


def _begin_immediate(connection: sqlite3.Connection) -> None:
    """Take the write lock, asking about every millisecond.

    SQLite's own busy handler sleeps longer each time, up to 100 ms, while others pass: with three busy processes one
    write in a hundred then took 165 ms.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.0002, 0.001))
        else:
            return


def postgresql_engine(url: URL) -> Engine:
    """A pool of connections to a server."""
    options = f"-c timezone=UTC -c idle_in_transaction_session_timeout={IDLE_IN_TRANSACTION_S * 1000:.0f}"
    return create_engine(
        url,
        pool_size=10,
        max_overflow=30,  # the service's threads for requests, reports and planning together
        pool_timeout=BUSY_TIMEOUT_S,
        isolation_level="READ COMMITTED",
        connect_args={**DEAD_LINK, "connect_timeout": 5, "options": options, "application_name": "gpu-platform"},
    )
