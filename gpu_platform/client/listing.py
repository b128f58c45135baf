"""What methods of the client return that list something: an iterator that a notebook shows as a table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar, cast

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")


class Listing(Iterator[T], Generic[T]):
    """The items, fetched page by page as they are needed. To look at a list in a notebook takes nothing away from it:
    what was shown comes first when it is iterated over later."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._fetched: list[T] = []

    def __next__(self) -> T:
        return self._fetched.pop(0) if self._fetched else next(self._items)

    def _repr_html_(self) -> str:
        from gpu_platform.pages.notebook import SHOWN_ROWS, rows_table

        self._fetched += islice(self._items, SHOWN_ROWS + 1 - len(self._fetched))
        return rows_table(self._fetched[:SHOWN_ROWS], more=len(self._fetched) > SHOWN_ROWS)


def listed(function: Callable[P, R]) -> Callable[P, R]:
    """Let a generator of items return a :class:`Listing`. One of asyncio stays as it is: a notebook cannot wait for it
    while it shows a value."""
    if inspect.isasyncgenfunction(function):
        return cast("Callable[P, R]", function)

    @wraps(function)
    def listing(*arguments: P.args, **named: P.kwargs) -> Any:
        items: Any = function(*arguments, **named)
        return Listing(items)

    return listing
