"""The elements of an array as people write them: indices, a file with one row for each element, or a matrix."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer

_BOUND = re.compile(r"(.+)%([0-9]{1,9})", re.DOTALL)
_INDICES = re.compile(r"[0-9,:\s-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RANGE = re.compile(r"(-?[0-9]{1,12})\.\.(-?[0-9]{1,12})")
_READERS = (".csv", ".jsonl")


class Written(NamedTuple):
    """What ``--array`` says."""

    text: str
    """Indices, or the path of a file."""
    at_once: int | None
    """The number after ``%``."""

    @property
    def is_file(self) -> bool:
        """True if it names a file with parameters."""
        return _INDICES.fullmatch(self.text) is None


class Table(NamedTuple):
    """Named parameters, one row for each element."""

    names: list[str]
    rows: list[list[str]]


def written(text: str) -> Written:
    """Split ``0-1999%64`` or ``params.csv%64``."""
    bound = _BOUND.fullmatch(text.strip())
    return Written(text.strip(), None) if bound is None else Written(bound[1].strip(), int(bound[2]))


def read_table(path: Path) -> Table:
    """Read the parameters of a ``.csv`` or ``.jsonl`` file. Raises :class:`typer.BadParameter`, with the line."""
    from gpu_platform.domain.jobs.array import MAX_PARAMETER_BYTES

    if path.suffix.lower() not in _READERS:
        raise typer.BadParameter(
            f"--array {path}: write indices (0-1999, 1,3,5-9), or name a file that ends with {' or '.join(_READERS)}"
        )
    try:
        if path.stat().st_size > 2 * MAX_PARAMETER_BYTES:
            raise typer.BadParameter(
                f"{path} has {path.stat().st_size} bytes; the parameters of an array have at most "
                f"{MAX_PARAMETER_BYTES}: put large values into files that the elements read"
            )
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{path} is not UTF-8 text") from None
    table = _from_csv(path, text) if path.suffix.lower() == ".csv" else _from_jsonl(path, text)
    if not table.rows:
        raise typer.BadParameter(f"{path} has no rows, so there is nothing to run")
    return table


def read_matrix(items: Sequence[str]) -> dict[str, list[str]]:
    """Read ``lr=1e-3,1e-4`` and ``seed=1..5``; an item may hold several, with spaces between them.

    Raises :class:`typer.BadParameter`, before anything is expanded, if there are more combinations than elements in
    the largest array.
    """
    from gpu_platform.domain.jobs.array import MAX_ELEMENTS
    from gpu_platform.domain.jobs.index_set import MAX_INDEX

    ranges: dict[str, list[str] | range] = {}
    for part in (part for item in items for part in item.split()):
        name, equals, values = part.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise typer.BadParameter(f"--matrix {part!r}: write NAME=VALUE,VALUE or NAME=FIRST..LAST")
        if name in ranges:
            raise typer.BadParameter(f"--matrix names {name} twice: write all of its values at one place")
        ranges[name] = _values(name, values)
    count = math.prod(len(values) for values in ranges.values())
    if any(len(values) > MAX_ELEMENTS for values in ranges.values()) or count > MAX_INDEX + 1:
        raise typer.BadParameter(
            f"--matrix has {count:,} combinations; an array has at most {MAX_ELEMENTS:,} elements: leave values out, "
            "or submit several arrays"
        )
    return {name: [str(value) for value in values] for name, values in ranges.items()}


def is_matrix_word(text: str) -> bool:
    """True for ``seed=1..5``: a word that follows ``--matrix``."""
    name, equals, values = text.partition("=")
    return bool(equals and values) and _NAME.fullmatch(name) is not None


def _values(name: str, text: str) -> list[str] | range:
    if (found := _RANGE.fullmatch(text)) is not None:
        first, last = int(found[1]), int(found[2])
        if first > last:
            raise typer.BadParameter(f"--matrix {name}={text}: the first number must not be after the last")
        return range(first, last + 1)
    values = text.split(",")
    if not all(values):
        raise typer.BadParameter(f"--matrix {name}={text}: a value is empty; values with commas need a CSV file")
    return values


def _from_csv(path: Path, text: str) -> Table:
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    table: Table | None = None
    try:
        for row in reader:
            if not row:
                continue  # an empty line
            if table is None:
                table = Table(_names(path, reader.line_num, row), [])
            elif len(row) != len(table.names):
                raise _wrong(
                    path, reader.line_num, f"{len(row)} values, but the first line names {len(table.names)} parameters"
                )
            else:
                table.rows.append(row)
    except csv.Error as error:
        raise _wrong(path, reader.line_num, str(error)) from None
    if table is None:
        raise typer.BadParameter(f"{path} is empty: its first line names the parameters, e.g. lr,seed")
    return table


def _from_jsonl(path: Path, text: str) -> Table:
    table: Table | None = None
    for line, given in _objects(path, text):
        if table is None:
            table = Table(_names(path, line, list(given)), [])
        if given.keys() != set(table.names):
            raise _wrong(
                path,
                line,
                f"the parameters are {', '.join(given) or 'none'}, but those of the first line are "
                f"{', '.join(table.names)}",
            )
        table.rows.append([_scalar(path, line, name, given[name]) for name in table.names])
    if table is None:
        raise typer.BadParameter(f'{path} is empty: each line is an object, e.g. {{"lr": 1e-3, "seed": 1}}')
    return table


def _objects(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    # Not splitlines(): a text in JSON may hold other characters that it takes for line ends.
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            # Numbers stay as they are written: 1e-3 does not become 0.001.
            pairs = json.loads(content, parse_int=str, parse_float=str, parse_constant=str, object_pairs_hook=_Pairs)
        except (ValueError, RecursionError):
            raise _wrong(path, line, "it is not JSON") from None
        if not isinstance(pairs, _Pairs):
            raise _wrong(path, line, 'it is no object; write e.g. {"lr": 1e-3, "seed": 1}')
        if len(dict(pairs)) < len(pairs):
            raise _wrong(path, line, "it names a parameter twice")
        yield line, dict(pairs)


class _Pairs(list[tuple[str, Any]]):
    """An object of JSON, with names that come twice."""


def _scalar(path: Path, line: int, name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    raise _wrong(path, line, f"the value of {name} is no text, number or truth value")


def _names(path: Path, line: int, found: list[str]) -> list[str]:
    names = [name.strip() for name in found]
    for name in names:
        if not _NAME.fullmatch(name):
            raise _wrong(path, line, f"{name[:80]!r} is not the name of a parameter: use letters, digits and '_'")
    if twice := [name for name in names if names.count(name) > 1]:
        raise _wrong(path, line, f"it names {twice[0]} twice")
    return names


def _wrong(path: Path, line: int, what: str) -> typer.BadParameter:
    return typer.BadParameter(f"{path}, line {line}: {what}")
