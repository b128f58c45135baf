"""Pages of lists that begin with the newest: the cursor names the last row of the page before."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Collection
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, Select, Table, tuple_
from sqlalchemy.orm import Session

from gpu_platform.domain.errors import InvalidRequest

MAX_PAGE = 1000
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""A page ends early when its rows have so many bytes: a job says up to 384 KiB, and as objects ten times as much."""
_READ_AT_ONCE = 20


def rows_of_page(
    session: Session, query: Select[Any], limit: int, size: Callable[[Row[Any]], int]
) -> tuple[list[Row[Any]], bool]:
    """The first rows of a page, and whether there are more: at most ``limit``, and about :data:`MAX_PAGE_BYTES`, but
    at least one. ``size``: the bytes of a row that may be many."""
    found: list[Row[Any]] = []
    size_bytes = 0
    limited = query.limit(min(limit, MAX_PAGE) + 1)
    if limit > _READ_AT_ONCE:
        limited = limited.execution_options(yield_per=_READ_AT_ONCE)
    rows = session.execute(limited)
    for row in rows:
        size_bytes += size(row)
        if len(found) == limit or (found and size_bytes > MAX_PAGE_BYTES):
            rows.close()
            return found, True
        found.append(row)
    return found, False


def newest_first(query: Select[Any], table: Table, cursor: str | None) -> Select[Any]:
    """The rows of ``table`` after the cursor (None: all), the newest first. Raises :class:`InvalidRequest`."""
    if cursor is not None:
        # Compared as a row, so that an index leads to the page; with OR, all newer rows are read first.
        query = query.where(tuple_(table.c.created_at, table.c.id) < _read_cursor(cursor))
    return query.order_by(table.c.created_at.desc(), table.c.id.desc())


def only(
    query: Select[Any],
    table: Table,
    *,
    states: Collection[StrEnum] | None = None,
    namespace: str | None = None,
    user: str | None = None,
    name: str | None = None,
    visible: Collection[str] | None = None,
) -> Select[Any]:
    """The rows of ``table`` with these values; None: with any. ``visible``: only rows of these namespaces."""
    columns = table.c
    if states is not None:
        query = query.where(columns.state.in_([str(state) for state in states]))
    for column, value in ((columns.namespace, namespace), (columns.user, user), (columns.name, name)):
        if value is not None:
            query = query.where(column == value)
    return query if visible is None else query.where(columns.namespace.in_(sorted(visible)))


def cursor_of(row: Row[Any]) -> str:
    """The cursor of the page after this row."""
    return base64.urlsafe_b64encode(json.dumps([row.created_at.isoformat(), row.id]).encode()).decode()


def read_index(cursor: str | None) -> int:
    """The index of the last element of the page before; -1: there was none. Raises :class:`InvalidRequest`."""
    if cursor is None:
        return -1
    if not (cursor.isascii() and cursor.isdecimal() and len(cursor) < 10):
        raise _no_cursor(cursor)
    return int(cursor)


def _read_cursor(cursor: str) -> tuple[datetime, str]:
    try:
        created_at, last = json.loads(base64.b64decode(cursor, altchars=b"-_", validate=True))
        when = datetime.fromisoformat(created_at)
        if when.tzinfo is None or not isinstance(last, str):
            raise ValueError
    except (ValueError, TypeError, binascii.Error):
        raise _no_cursor(cursor) from None
    return when, last


def _no_cursor(cursor: str) -> InvalidRequest:
    return InvalidRequest(f"{cursor[:80]!r} is not a cursor of this list; leave it out to begin with the first page")
