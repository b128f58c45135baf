"""The database connection: transactions, their retries, and errors of the platform instead of SQLAlchemy's.

SQLite (WAL) and PostgreSQL (READ COMMITTED) run the same statements. On SQLite a write transaction begins
IMMEDIATE, so that it never fails half-way for want of the lock; on PostgreSQL every function takes its row locks in
one order (reservation, job, leader, host, gpu, allocation, queue, event); what still ends in a deadlock is repeated.

A write returns when its commit is on disk: PostgreSQL's own ``synchronous_commit``, and ``group_commit`` on SQLite.
What may be lost in a power cut because it is soon written again uses :func:`writing_unsynced`.
"""

from __future__ import annotations

import functools
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, cast

import structlog
from sqlalchemy import (
    ColumnElement,
    CursorResult,
    Delete,
    Double,
    Select,
    Table,
    Update,
    event,
    extract,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy import cast as sql_cast
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from gpu_platform.store import models
from gpu_platform.store.driver_errors import refusing, translating
from gpu_platform.store.engines import BUSY_TIMEOUT_S, normalised, postgresql_engine, shown, sqlite_engine
from gpu_platform.store.group_commit import GroupCommit

P = ParamSpec("P")
R = TypeVar("R")
Rec = TypeVar("Rec", bound=models.Record)

MAX_TRIES = 8
_RETRY_SQLSTATES = frozenset({"40001", "40P01"})  # serialization_failure, deadlock_detected
_REVISION_TABLE = "alembic_version"
_EVENT_LOCK = 0x6770755F6576656E  # "gpu_even": the advisory lock that orders the change feed

EVENT_CHANNEL = "gpu_platform_event"
"""On PostgreSQL, those who LISTEN on it are told of each commit of events; see ``change_watch.py``."""

log = structlog.get_logger(__name__)


class Store:
    """The SQL database with jobs, queue, hosts, GPUs, allocations and events. Threads may share it.

    ``url`` is a SQLAlchemy address; ``postgresql://`` means the psycopg driver. Creating a store opens nothing, but
    raises :class:`InvalidRequest` for another kind of address and :class:`CannotStart` without a directory for SQLite.
    Every use raises :class:`Unavailable` while the database is away, and :class:`StorageFull` while its disk is full.
    """

    def __init__(self, url: str) -> None:
        self.url = normalised(url)
        self.dialect: Literal["sqlite", "postgresql"] = "sqlite" if self.is_sqlite(self.url) else "postgresql"
        if self.dialect == "sqlite":
            with refusing(self.url):
                self._engine = sqlite_engine(self.url, writes=False)
                self._write_engine = sqlite_engine(self.url, writes=True)
            self._turn = threading.Lock()  # threads queue up here, so that only one per process asks for the lock
            self._group_commit = GroupCommit(Path(self.url.database or ""))
        else:
            self._engine = self._write_engine = postgresql_engine(self.url)
            self._turn = nullcontext()
            self._group_commit = None
        self._closed = False
        for engine in {self._engine, self._write_engine}:
            event.listen(engine, "checkin", self._close_late_connection)
        self._token = _ChangeToken(self)
        self.memo: dict[str, Any] = {}
        """Derived values that functions keep between calls, each with the version it was derived from."""

    @staticmethod
    def is_sqlite(url: URL) -> bool:
        """Whether ``url`` is an address of SQLite."""
        return url.get_backend_name() == "sqlite"

    @property
    def shown_url(self) -> str:
        """Its address without passwords."""
        return shown(self.url)

    def migrate(self, *, accept_newer: bool = False) -> None:
        """Bring the schema to the newest revision; many processes may do so at once.

        Raises :class:`CannotStart` for what waiting cannot mend: a schema of a newer release, unless ``accept_newer``,
        or a database that refuses this process.
        """
        from gpu_platform.store.migrate import upgrade  # Alembic costs 0.2 s of start-up: only who migrates pays

        with refusing(self.url):
            upgrade(self._write_engine, accept_newer=accept_newer)
        if self._group_commit is not None:
            self._group_commit.wait()

    def server_version(self) -> str:
        """The product and its version, e.g. ``PostgreSQL 16.4``."""
        with self.read() as session:
            if self.dialect == "sqlite":
                return f"SQLite {session.scalar(text('SELECT sqlite_version()'))}"
            return f"PostgreSQL {session.scalar(text('SHOW server_version'))}"

    def clock(self) -> float | None:
        """The time by the clock of the database's machine, Unix seconds. None: that is this machine (SQLite)."""
        if self.dialect == "sqlite":
            return None
        with self.read() as session:
            return float(session.scalar(text("SELECT extract(epoch FROM clock_timestamp())")) or 0.0)

    def schema(self) -> str | None:
        """The revision of the schema that the database has. None: it has none yet."""
        with refusing(self.url), self._engine.connect() as connection:
            if not inspect(connection).has_table(_REVISION_TABLE):
                return None
            return connection.scalar(text(f"SELECT version_num FROM {_REVISION_TABLE}"))

    def close(self) -> None:
        """Close all connections. The store cannot be used afterwards.

        A connection that a thread uses at this moment is closed when its transaction ends.
        """
        self._closed = True
        self._token.close()
        if self._group_commit is not None:
            self._group_commit.close()
        self._engine.dispose()
        self._write_engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one state of the database (SQLite) or one per statement (PostgreSQL)."""
        with translating(), Session(self._engine, autoflush=False) as session:
            yield session

    @contextmanager
    def read_consistently(self) -> Iterator[Session]:
        """A session that sees one state of the database, however many statements it runs."""
        with self.read() as session:
            if self.dialect == "postgresql":
                session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            yield session

    @contextmanager
    def write(self, *, synced: bool = True) -> Iterator[Session]:
        """A transaction: commits at the end of the block, or rolls everything back when it raises.

        ``synced``: what was committed is on disk before this returns, and survives a power cut. A function of the
        session may ask for it: ``session.info["synced"] = True``.
        """
        with translating(), self._turn, Session(self._write_engine, autoflush=False) as session:
            yield session
            _insert_events(session)
            session.commit()
            synced = synced or bool(session.info.get("synced"))
        if synced and self._group_commit is not None:
            self._group_commit.wait()  # nobody waits for the lock meanwhile

    def _close_late_connection(self, _connection: object, record: ConnectionPoolEntry) -> None:
        # The pool of this connection may be gone already: nobody else would close it.
        if self._closed:
            record.close()

    def change_token(self) -> int:
        """See :func:`gpu_platform.store.events.change_token`."""
        return self._token.read()


def writing(function: Callable[Concatenate[Session, P], R]) -> Callable[Concatenate[Store, P], R]:
    """Make a function of a session a function of the store: one transaction, repeated after a deadlock.

    Nothing was committed when a statement fails, so that repeating is safe; a failed COMMIT is never repeated.
    When it returns, its commit is on disk.
    """
    return _transaction(function, synced=True)


def writing_unsynced(function: Callable[Concatenate[Session, P], R]) -> Callable[Concatenate[Store, P], R]:
    """As :func:`writing`, but a power cut may lose the last seconds: only for data that is soon written again."""
    return _transaction(function, synced=False)


def _transaction(function: Callable[Concatenate[Session, P], R], *, synced: bool) -> Callable[Concatenate[Store, P], R]:
    @functools.wraps(function)
    def transaction(store: Store, *args: P.args, **kwargs: P.kwargs) -> R:
        for attempt in range(1, MAX_TRIES + 1):
            try:
                with store.write(synced=synced) as session:
                    try:
                        return function(session, *args, **kwargs)
                    except DBAPIError as error:
                        if attempt == MAX_TRIES or not _worth_repeating(error, attempt):
                            raise
                        raise _Repeat from error
            except _Repeat as repeat:
                log.info("store.transaction_repeated", transaction=function.__name__, error=str(repeat.__cause__))
                time.sleep(random.uniform(0, 0.002 * 2**attempt))
        raise AssertionError("unreachable")

    return transaction


def reading(function: Callable[Concatenate[Session, P], R]) -> Callable[Concatenate[Store | Session, P], R]:
    """Make a function of a session, which only reads, a function of the store too.

    Given a session, the function reads inside that transaction.
    """

    @functools.wraps(function)
    def transaction(store: Store | Session, *args: P.args, **kwargs: P.kwargs) -> R:
        if isinstance(store, Session):
            return function(store, *args, **kwargs)
        with store.read() as session:
            return function(session, *args, **kwargs)

    return transaction


@contextmanager
def undone_alone(session: Session) -> Iterator[None]:
    """Inside a transaction: if the block raises, only what it wrote is undone, and its events are not written."""
    events = len(session.info.get("events", ()))
    try:
        with session.begin_nested():
            yield
    except BaseException:
        del session.info.get("events", [])[events:]
        raise


def insert_new(session: Session, table: Table, row: Mapping[str, Any]) -> bool:
    """Insert the row unless its key exists. Returns whether it was inserted.

    On PostgreSQL it waits for a transaction that is just inserting the same key.
    """
    statement = _INSERT_NEW[session.get_bind().dialect.name](table)
    return cast("CursorResult[Any]", session.execute(statement, row)).rowcount == 1


def insert_all_new(session: Session, table: Table, rows: Sequence[Mapping[str, Any]]) -> int:
    """Insert the rows whose keys do not exist, in one statement. All rows have the same columns. Returns how many
    were inserted."""
    if not rows:
        return 0
    statement = _INSERT_NEW[session.get_bind().dialect.name](table)
    return cast("CursorResult[Any]", session.execute(statement, rows)).rowcount


def upsert(session: Session, table: Table, row: Mapping[str, Any]) -> None:
    """Insert the row or overwrite the one with its key: in one statement, so that a DELETE cannot come in between."""
    session.execute(_UPSERT[session.get_bind().dialect.name](table, tuple(row)), row)


def change(
    session: Session,
    statement: Update | Delete,
    parameters: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
) -> int:
    """Run an UPDATE or DELETE, once for each set of parameters; returns how many rows it met in all."""
    return cast("CursorResult[Any]", session.execute(statement, parameters)).rowcount


def read_record(
    session: Session, record: type[Rec], statement: Select[Any], parameters: Mapping[str, Any] | None = None
) -> Rec | None:
    """The only row of a statement that selects a whole table; None if there is none. See :func:`read_records`."""
    records = read_records(session, record, statement, parameters)
    assert len(records) <= 1, "the statement meets several rows"
    return records[0] if records else None


def read_records(
    session: Session, record: type[Rec], statement: Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[Rec]:
    """The rows of a statement that selects a whole table, e.g. ``select(gpu)``, as they are in the database now.

    They do not belong to the session: to change one writes nothing, and the next call reads it again. SQLAlchemy would
    take more than twice as long to load the same rows as objects of the session.
    """
    new = inspect(record).class_manager.new_instance
    records: list[Rec] = []
    for row in session.execute(statement, parameters):
        one = new()
        vars(one).update(row._mapping)
        records.append(one)
    return records


def epoch_s(session: Session, column: ColumnElement[Any]) -> ColumnElement[float]:
    """A time as Unix seconds, to calculate with."""
    if session.get_bind().dialect.name == "postgresql":
        return sql_cast(extract("epoch", column), Double)
    return (func.julianday(column) - 2440587.5) * 86400.0


class _Repeat(Exception):
    """The transaction was rolled back and may be run again."""


def _worth_repeating(error: DBAPIError, attempt: int) -> bool:
    # A connection that broke while idle (server restart) is found out by the first statement: once more on a new one.
    return getattr(error.orig, "sqlstate", None) in _RETRY_SQLSTATES or (error.connection_invalidated and attempt == 1)


def _insert_events(session: Session) -> None:
    """Write the transaction's events, last: on PostgreSQL they hold the lock that makes ``seq`` appear in order."""
    rows = session.info.get("events")
    if not rows:
        return
    if session.get_bind().dialect.name == "postgresql":
        session.execute(_LOCK_EVENTS, {"lock": _EVENT_LOCK, "channel": EVENT_CHANNEL})
    session.execute(_INSERT_EVENTS, rows)


_LOCK_EVENTS = text("SELECT pg_advisory_xact_lock(:lock), pg_notify(:channel, '')")
_INSERT_EVENTS = insert(models.event)


def _inserting_new(dialect_insert: Callable[[Table], Any]) -> Callable[[Table], Any]:
    @functools.cache
    def statement(table: Table) -> Any:
        insertion = dialect_insert(table).on_conflict_do_nothing()
        return insertion.execution_options(preserve_rowcount=True)  # kept only on demand, unlike an UPDATE's

    return statement


def _upserting(dialect_insert: Callable[[Table], Any]) -> Callable[[Table, tuple[str, ...]], Any]:
    @functools.cache
    def statement(table: Table, columns: tuple[str, ...]) -> Any:
        insertion = dialect_insert(table)
        new = {name: insertion.excluded[name] for name in columns if not table.c[name].primary_key}
        return insertion.on_conflict_do_update(index_elements=list(table.primary_key), set_=new)

    return statement


_INSERT_NEW = {"postgresql": _inserting_new(postgresql.insert), "sqlite": _inserting_new(sqlite.insert)}
_UPSERT = {"postgresql": _upserting(postgresql.insert), "sqlite": _upserting(sqlite.insert)}


class _ChangeToken:
    """A value that is equal as long as nobody committed, on a connection kept for that alone."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._sqlite: sqlite3.Connection | None = None

    def read(self) -> int:
        with self._lock, translating():
            return self._data_version() if self._store.dialect == "sqlite" else self._last_seq()

    def close(self) -> None:
        with self._lock:
            if self._sqlite is not None:
                self._sqlite.close()
                self._sqlite = None

    def _data_version(self) -> int:
        """https://sqlite.org/pragma.html#pragma_data_version: differs when another connection committed."""
        if self._sqlite is None:
            path = self._store.url.database
            assert path is not None
            self._sqlite = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, check_same_thread=False, isolation_level=None)
        return self._sqlite.execute("PRAGMA data_version").fetchone()[0]

    def _last_seq(self) -> int:
        with self._store._engine.connect() as connection:
            return connection.scalar(_LAST_SEQ) or 0


_LAST_SEQ = select(models.event.c.seq).order_by(models.event.c.seq.desc()).limit(1)
