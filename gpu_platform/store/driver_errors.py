"""What the drivers of SQLite and PostgreSQL raise, as errors of the platform."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import URL
from sqlalchemy.exc import DatabaseError, DataError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gpu_platform import disk_room
from gpu_platform.domain.errors import CannotStart, InvalidRequest, StorageFull, Unavailable
from gpu_platform.store.engines import shown

_STOOD_STILL = "25P03"
"""idle_in_transaction_session_timeout: this process stood still in a transaction; nothing of it was committed."""
_DISK_FULL = "53100"
_NO_PRIVILEGE = "42501"
_SQLITE_FILES = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)
_SQLITE_DAMAGED = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)
_REFUSALS = (
    (
        r"password authentication failed|no password supplied|role \"[^\"]*\" (?:does not exist|is not permitted)",
        "set the right account and password in database_url, or mend the account in PostgreSQL",
    ),
    (r"database \"[^\"]*\" does not exist", "create it, owned by this account: CREATE DATABASE … OWNER …"),
    (r"no pg_hba\.conf entry", "let this machine in, in pg_hba.conf of the server"),
    (r"invalid (?:connection|URI query) (?:option|parameter)", "mend database_url"),
)
"""What a server says before a connection has a SQLSTATE. In another language than English the process waits, and logs
what the server says."""


@contextmanager
def translating() -> Iterator[None]:
    """Raises :class:`Unavailable` while the database is away, :class:`StorageFull` while its disk is full, and
    :class:`InvalidRequest` for values that it cannot store."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout, sqlite3.OperationalError) as error:
        if _is_full(error):
            raise _storage_full(first_line(error)) from error
        raise Unavailable(f"the database does not answer: {first_line(error)}") from error
    except DataError as error:
        raise InvalidRequest(f"the database cannot store this value: {first_line(error)}") from error
    except InternalError as error:
        if _sqlstate(error) != _STOOD_STILL:
            raise
        raise Unavailable(f"the database does not answer: {first_line(error)}") from error


@contextmanager
def refusing(url: URL) -> Iterator[None]:
    """For the first use of a database: raises :class:`CannotStart` for what waiting cannot mend."""
    try:
        with translating():
            yield
    except Unavailable as error:
        if (refusal := _refusal(error.__cause__, url)) is None:
            raise
        raise refusal from error
    except (DatabaseError, sqlite3.DatabaseError, OSError) as error:
        if disk_room.fails_because_full(error):
            raise _storage_full(str(error)) from error
        if (refusal := _refusal(error, url)) is None:
            raise
        raise refusal from error


def first_line(error: BaseException) -> str:
    """The message of the driver, without SQL and its parameters."""
    cause = getattr(error, "orig", None) or error
    return str(cause).strip().split("\n")[0]


def _storage_full(why: str) -> StorageFull:
    return StorageFull(
        f"{disk_room.told('the database', why)}. Nothing was stored; the same request succeeds when there is room"
    )


def _refusal(error: BaseException | None, url: URL) -> CannotStart | None:
    """Why this process cannot use the database, and what to do. None: it may be able to later."""
    address = shown(url)
    if isinstance(error, OSError):
        return CannotStart(f"the database {address} cannot be used: {error}. {_FILE_RIGHTS}")
    cause = getattr(error, "orig", None) or error
    if isinstance(cause, sqlite3.Error):
        code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
        if code in _SQLITE_FILES:
            return CannotStart(f"the database {address} cannot be used: {cause}. {_FILE_RIGHTS}")
        if code in _SQLITE_DAMAGED:
            return CannotStart(
                f"the database {address} cannot be used: {cause}. Name another file (database_url), or put back a "
                "backup (docs/how-to/backup.md)"
            )
        return None
    text = str(cause)
    for pattern, advice in _REFUSALS:
        if (found := re.search(rf"(?:[^\n:]*: )?[^\n:]*(?:{pattern})[^\n]*", text)) is not None:
            return CannotStart(f"the database {address} refuses this process: {found[0].strip()}; {advice}")
    if isinstance(error, ProgrammingError) and _sqlstate(error) in (None, _NO_PRIVILEGE):
        return CannotStart(
            f"the database {address} refuses this process: {first_line(error)}; the account must own its tables"
        )
    return None


_FILE_RIGHTS = "This process must be able to write the file and its directory (database_url, state_dir)"


def _is_full(error: Exception) -> bool:
    cause = getattr(error, "orig", None) or error
    code = (getattr(cause, "sqlite_errorcode", None) or 0) & 0xFF
    return code == sqlite3.SQLITE_FULL or _sqlstate(error) == _DISK_FULL


def _sqlstate(error: BaseException) -> str | None:
    return getattr(getattr(error, "orig", None), "sqlstate", None)
