"""Pages of lists that are counted: the cursor is the number of the next item."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import Query

from gpu_platform.client.wire import Page
from gpu_platform.domain.errors import InvalidRequest

Cursor = Annotated[str | None, Query(pattern="^[0-9]{1,11}$", description="`next_cursor` of the page before")]

KeyCursor = Annotated[
    str | None,
    Query(min_length=1, max_length=512, pattern=r"^[\w=-]+$", description="`next_cursor` of the page before"),
]
"""For lists whose cursor names the last item of the page before."""
T = TypeVar("T")


def offset_of(cursor: str | None) -> int:
    """The offset that a cursor means. None: the beginning. Raises :class:`InvalidRequest`."""
    if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 12):
        raise InvalidRequest(f"{cursor[:80]!r} is not a cursor of this list; leave it out to start with the first page")
    return int(cursor or 0)


def page_from(items: list[T], cursor: str | None, limit: int) -> Page[T]:
    """The page that begins at ``cursor``. ``items``: what was read from there on, one more than ``limit`` if there is
    more."""
    following = offset_of(cursor) + limit
    return Page(items=items[:limit], next_cursor=str(following) if len(items) > limit else None)


def page_of(items: list[T], cursor: str | None, limit: int) -> Page[T]:
    """The page of ``items`` that begins at ``cursor``. Raises :class:`InvalidRequest` for a bad cursor."""
    start = offset_of(cursor)
    following = start + limit
    return Page(items=items[start:following], next_cursor=str(following) if following < len(items) else None)
