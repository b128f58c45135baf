"""Reads YAML into plain values that remember their lines. Nothing else than scalars, lists and mappings is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]
DEEPEST = 40
MAX_VALUES = 20_000
"""Names and values of one document. Each takes about a kilobyte of memory while it is read."""
LONGEST_NUMBER = 100
"""Characters. To read a number takes time that grows with the square of its length."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml: the loader in Python takes ten times as long, and minutes for some texts."""
_MERGE = "tag:yaml.org,2002:merge"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class WrongFile(ValueError):
    """The text is not what is read here. ``line`` counts from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line, self.message = line, message


@dataclass
class Document:
    """Values, and the line at which each one begins."""

    value: Any
    lines: dict[Path, int] = field(default_factory=dict[Path, int])

    def line(self, path: Path) -> int:
        """The line of the value at ``path``, or of the nearest one around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


def read(text: str) -> Document:
    """Read one YAML document. Raises :class:`WrongFile`.

    Aliases are refused: a few lines of them can stand for billions of values.
    """
    reader = _Reader(text)
    try:
        return reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise WrongFile(1 if mark is None else mark.line + 1, f"this is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise WrongFile(1, f"this is not YAML: {error}") from error
    except RecursionError as error:
        raise WrongFile(1, "it is nested too deeply") from error


class _Reader:
    """Makes values from one event after the other: other threads go on between two, and nothing is kept of an event."""

    def __init__(self, text: str) -> None:
        self._events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._scalars = yaml.SafeLoader("")
        self._lines: dict[Path, int] = {}
        self._found = 0

    def document(self) -> Document:
        """The only document of the text."""
        self._next()  # the begin of the text
        if isinstance(self._next(), yaml.StreamEndEvent):
            return Document(None)
        value = self._value(self._next(), ())
        self._next()  # the end of the document
        if isinstance(more := self._next(), yaml.DocumentStartEvent):
            raise WrongFile(_line(more), "a second document begins here: write one file for each")
        return Document(value, self._lines)

    def _next(self) -> Any:
        event = next(self._events)
        if isinstance(event, yaml.AliasEvent):
            raise WrongFile(_line(event), "an alias (*) is not supported: write the value again")
        return event

    def _value(self, event: Any, path: Path) -> Any:
        line = _line(event)
        self._lines.setdefault(path, line)
        self._count(line)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, line)
        if len(path) >= DEEPEST:
            raise WrongFile(line, "it is nested too deeply")
        return self._list(path) if isinstance(event, yaml.SequenceStartEvent) else self._mapping(path)

    def _list(self, path: Path) -> list[Any]:
        found: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            found.append(self._value(event, (*path, len(found))))
        return found

    def _mapping(self, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            line = _line(event)
            self._count(line)
            if not isinstance(event, yaml.ScalarEvent) or self._tag(event) == _MERGE:
                raise WrongFile(line, "a name is expected here")
            if event.value in found:
                raise WrongFile(line, f"{event.value} is there twice")
            self._lines[(*path, event.value)] = line
            found[event.value] = self._value(self._next(), (*path, event.value))
        return found

    def _scalar(self, event: Any, line: int) -> Any:
        tag = self._tag(event)
        if tag in _NUMBERS and len(event.value) > LONGEST_NUMBER:
            raise WrongFile(line, f"a number of {len(event.value)} characters: write it in quotes, as a text")
        try:
            value = self._scalars.construct_object(yaml.ScalarNode(tag, event.value, event.start_mark))
        except ValueError as error:  # 2026-02-31, or !!int of something else
            raise WrongFile(line, f"{event.value[:80]!r} cannot be read: {error}") from error
        # Dates and binary data have no place in JSON: they stay as they are written.
        return value if value is None or isinstance(value, str | int | float | bool) else str(event.value)

    def _tag(self, event: Any) -> str:
        if event.tag not in (None, "!"):
            return event.tag
        return self._scalars.resolve(yaml.ScalarNode, event.value, event.implicit)

    def _count(self, line: int) -> None:
        self._found += 1
        if self._found > MAX_VALUES:
            raise WrongFile(line, f"there are more than {MAX_VALUES} names and values: give lists as a parameter")


def _line(event: Any) -> int:
    return 1 if event.start_mark is None else event.start_mark.line + 1
