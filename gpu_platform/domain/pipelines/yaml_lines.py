"""Reads YAML into plain values that remember their lines. Nothing else than scalars, lists and mappings is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

Path = tuple[str | int, ...]
_DEEPEST = 40


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
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                line = 1 if event.start_mark is None else event.start_mark.line + 1
                raise WrongFile(line, "an alias (*) is not supported: write the value again")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        document.value = None if root is None else _value(root, (), document.lines)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise WrongFile(1 if mark is None else mark.line + 1, f"this is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise WrongFile(1, f"this is not YAML: {error}") from error
    except RecursionError as error:
        raise WrongFile(1, "it is nested too deeply") from error
    return document


def _value(node: yaml.Node, path: Path, lines: dict[Path, int]) -> Any:
    line = node.start_mark.line + 1
    lines.setdefault(path, line)
    if len(path) > _DEEPEST:
        raise WrongFile(line, "it is nested too deeply")
    if isinstance(node, yaml.SequenceNode):
        return [_value(one, (*path, index), lines) for index, one in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, lines)
    value = yaml.SafeLoader("").construct_object(node)
    # Dates and binary data have no place in JSON: they stay as they are written.
    return value if value is None or isinstance(value, str | int | float | bool) else str(node.value)


def _mapping(node: yaml.MappingNode, path: Path, lines: dict[Path, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            raise WrongFile(line, "a name is expected here")
        name = str(key.value)
        if name in found:
            raise WrongFile(line, f"{name} is there twice")
        lines[(*path, name)] = line
        found[name] = _value(value, (*path, name), lines)
    return found
