"""The fields of an order, each checked when it is taken. Standard library only: the spawner imports it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")
_Check = Callable[[object], bool]


class BadOrder(ValueError):
    """An order that is refused. The message names the order, the field and what is wrong with it."""


class Fields:
    """The fields of one JSON object, taken one after the other."""

    def __init__(self, what: str, value: object) -> None:
        if not isinstance(value, dict):
            raise BadOrder(f"{what} must be an object, not {type(value).__name__}")
        self._what = what
        self._left: dict[str, Any] = dict(value)

    def take(self, name: str, check: _Check, expected: str) -> Any:
        """Take a field that ``check`` accepts. ``expected`` says in words what it accepts."""
        if name not in self._left:
            raise BadOrder(f"{self._what} has no field {name!r}")
        found = self._left.pop(name)
        if not check(found):
            raise BadOrder(f"{name} of {self._what} must be {expected}, not {type(found).__name__} {str(found)[:80]!r}")
        return found

    def maybe(self, name: str, take: Callable[[str], _T]) -> _T | None:
        """Take a field that may be null or missing: then None."""
        if self._left.get(name) is None:
            self._left.pop(name, None)
            return None
        return take(name)

    def kind(self, wanted: str) -> None:
        """Take ``kind``, which must be ``wanted``."""
        self.take("kind", lambda found: found == wanted, repr(wanted))

    def text(self, name: str) -> str:
        """A text without zero bytes."""
        return self.take(name, is_text, "a text")

    def path(self, name: str) -> str:
        """An absolute path."""
        return self.take(name, is_path, "an absolute path")

    def flag(self, name: str) -> bool:
        """True or False."""
        return self.take(name, lambda found: isinstance(found, bool), "true or false")

    def count(self, name: str) -> int:
        """A number from 0 on."""
        return self.take(name, is_count, "a number from 0 on")

    def maybe_count(self, name: str) -> int | None:
        """The same, or None."""
        return self.maybe(name, self.count)

    def parsed(self, name: str, parse: Callable[[object], _T]) -> _T:
        """What ``parse`` makes of a field. It says what is wrong: the field may hold what no message may show."""
        try:
            return parse(self._left.pop(name))
        except ValueError as error:
            raise BadOrder(f"{name} of {self._what}: {error}") from None

    def refuse_others(self) -> None:
        """Raise :class:`BadOrder` if fields are left."""
        if self._left:
            raise BadOrder(f"{self._what} has unknown fields: {', '.join(sorted(map(str, self._left)))}")


def is_int(value: object) -> bool:
    """True for a number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: object) -> bool:
    """True for a number from 0 on."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_text(value: object) -> bool:
    """True for a text without zero bytes."""
    return isinstance(value, str) and "\0" not in value


def is_path(value: object) -> bool:
    """True for an absolute path."""
    return isinstance(value, str) and "\0" not in value and os.path.isabs(value)


def is_object(value: object) -> bool:
    """True for an object of JSON."""
    return isinstance(value, dict)


def is_list(value: object, check: _Check) -> bool:
    """True for a list of what ``check`` accepts."""
    return isinstance(value, list) and all(map(check, value))


def is_counts(value: object) -> bool:
    """True for a list of numbers from 0 on."""
    return is_list(value, is_count)


def is_environ(value: object) -> bool:
    """True for an object of texts whose names can be those of variables."""
    return isinstance(value, dict) and all(is_text(k) and k and "=" not in k and is_text(v) for k, v in value.items())


def is_or_null(value: object, check: _Check) -> bool:
    """True for null, and for what ``check`` accepts."""
    return value is None or check(value)
