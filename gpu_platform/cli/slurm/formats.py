"""Slurm's output formats: ``%.18i %.9P`` (squeue, sinfo), ``JobID:20,Name`` (squeue -O), ``jobid%20,state`` (sacct)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from gpu_platform.domain.texts import one_line
from gpu_platform.slurm.getopt import WrongOption

Row = Mapping[str, Any]
_LETTER = re.compile(r"%(\.)?([0-9]{1,4})?([A-Za-z])")
_LONG = re.compile(r"([A-Za-z_-]+)(?::(\.)?([0-9]{1,4})?([^,]*))?")
_SACCT = re.compile(r"([A-Za-z_]+)(?:%(-?[0-9]{1,4}))?")
_LONG_WIDTH = 20


class Column(NamedTuple):
    """A field of a command: its head, its value, and how wide ``sacct`` prints it."""

    head: str
    value: Callable[[Row], str]
    width: int = 10
    never_cut: bool = False
    """Ids are longer here than Slurm's numbers. Cut ones would be useless."""


class Cell(NamedTuple):
    """A column in one format, or the text between two."""

    column: Column | None
    text: str = ""
    width: int | None = None
    right: bool = False
    marks_cut: bool = False
    """A ``+`` stands where something was cut off, as sacct does."""
    delimiter: str = ""
    """What stands between the columns for a program. Its characters are shown as escapes where a value has them."""

    def shown(self, text: str) -> str:
        """The text in the width of the cell."""
        text = one_line(text)
        if self.delimiter:
            text = "".join(f"\\u{ord(one):04x}" if one in self.delimiter else one for one in text)
        if self.width is None:
            return text
        if len(text) > self.width and not (self.column is not None and self.column.never_cut):
            text = f"{text[: self.width - 1]}+" if self.marks_cut and self.width > 1 else text[: self.width]
        return text.rjust(self.width) if self.right else text.ljust(self.width)


def letters(text: str, columns: Mapping[str, Column]) -> list[Cell]:
    """Read ``%.18i %.9P``; everything else is printed as it stands. Raises :class:`WrongOption`."""
    cells: list[Cell] = []
    place = 0
    for found in _LETTER.finditer(text):
        cells.append(Cell(None, text[place : found.start()]))
        place = found.end()
        column = columns.get(found[3])
        if column is None:
            known = ", ".join(f"%{letter}" for letter in columns)
            raise WrongOption(f"Invalid job format specification: {found[0]}; there are {known}")
        width = int(found[2]) if found[2] else None
        cells.append(Cell(column, width=width or None, right=found[1] is not None))
    return [*cells, Cell(None, text[place:])]


def long_names(text: str, columns: Mapping[str, Column]) -> list[Cell]:
    """Read ``JobID:20,Name,State:.10``. Raises :class:`WrongOption`."""
    cells: list[Cell] = []
    for part in text.split(","):
        found = _LONG.fullmatch(part.strip())
        if found is None:
            raise WrongOption(f"Invalid job format specification: {part.strip()[:60]}")
        column = _named(found[1], columns)
        given = ":" in part
        width = int(found[3]) if found[3] else (None if given and found[4] else _LONG_WIDTH)
        cells.append(Cell(column, width=width, right=found[2] is not None))
        if found[4]:
            cells.append(Cell(None, found[4]))
    return cells


def of_sacct(text: str, columns: Mapping[str, Column], delimiter: str | None, last: bool) -> list[Cell]:
    """Read ``jobid%20,state``. ``delimiter``: between columns of no width; ``last``: also behind the last one.

    Raises :class:`WrongOption`.
    """
    cells: list[Cell] = []
    for part in (part.strip() for part in text.split(",") if part.strip()):
        found = _SACCT.fullmatch(part)
        if found is None:
            raise WrongOption(f'Invalid field requested: "{part[:60]}"')
        column = _named(found[1], columns)
        if delimiter is not None:
            cells += [Cell(column, delimiter=delimiter), Cell(None, delimiter)]
            continue
        width = int(found[2]) if found[2] else column.width
        cells += [Cell(column, width=abs(width), right=width > 0, marks_cut=True), Cell(None, " ")]
    if cells and delimiter is not None and not last:
        cells.pop()
    return cells


def _named(name: str, columns: Mapping[str, Column]) -> Column:
    wanted = _plain(name)
    by_name = {_plain(key): column for key, column in columns.items()}
    if wanted in by_name:
        return by_name[wanted]
    near = get_close_matches(wanted, by_name, 1)
    raise WrongOption(f'Invalid field requested: "{name[:60]}"' + (f"; the nearest is {near[0]}" if near else ""))


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def lines(cells: Sequence[Cell], rows: Iterable[Row], *, header: bool = True) -> Iterable[str]:
    """The lines of a list."""
    if header:
        yield "".join(cell.text if cell.column is None else cell.shown(cell.column.head) for cell in cells)
    for row in rows:
        yield "".join(cell.text if cell.column is None else cell.shown(cell.column.value(row)) for cell in cells)
