"""Reads YAML into plain values that remember their lines. Nothing else than scalars, lists and mappings is read."""

from __future__ import annotations

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
_BEGINS = (yaml.SequenceStartEvent, yaml.MappingStartEvent)
_ENDS = (yaml.SequenceEndEvent, yaml.MappingEndEvent)
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
    document = Document(None)
    try:
        _check_size(text)
        root = yaml.compose(text, Loader=_LOADER)
        document.value = None if root is None else _value(root, (), document.lines, yaml.SafeLoader(""))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise WrongFile(1 if mark is None else mark.line + 1, f"this is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise WrongFile(1, f"this is not YAML: {error}") from error
    except RecursionError as error:
        raise WrongFile(1, "it is nested too deeply") from error
    return document


def _check_size(text: str) -> None:
    """Look at one event after the other, and keep none."""
    values = depth = 0
    for event in yaml.parse(text, Loader=_LOADER):
        line = 1 if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise WrongFile(line, "an alias (*) is not supported: write the value again")
        depth += isinstance(event, _BEGINS) - isinstance(event, _ENDS)
        if depth > DEEPEST:
            raise WrongFile(line, "it is nested too deeply")
        values += isinstance(event, (*_BEGINS, yaml.ScalarEvent))
        if values > MAX_VALUES:
            raise WrongFile(line, f"there are more than {MAX_VALUES} names and values: give lists as a parameter")


def _value(node: yaml.Node, path: Path, lines: dict[Path, int], scalars: yaml.SafeLoader) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if isinstance(node, yaml.SequenceNode):
        return [_value(one, (*path, index), lines, scalars) for index, one in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, lines, scalars)
    if node.tag in _NUMBERS and len(node.value) > LONGEST_NUMBER:
        raise WrongFile(line, f"a number of {len(node.value)} characters: write it in quotes, as a text")
    try:
        value = scalars.construct_object(node)
    except ValueError as error:  # 2026-02-31, or !!int of something else
        raise WrongFile(line, f"{str(node.value)[:80]!r} cannot be read: {error}") from error
    # Dates and binary data have no place in JSON: they stay as they are written.
    return value if value is None or isinstance(value, str | int | float | bool) else str(node.value)


def _mapping(node: yaml.MappingNode, path: Path, lines: dict[Path, int], scalars: yaml.SafeLoader) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            raise WrongFile(line, "a name is expected here")
        name = str(key.value)
        if name in found:
            raise WrongFile(line, f"{name} is there twice")
        lines[(*path, name)] = line
        found[name] = _value(value, (*path, name), lines, scalars)
    return found
