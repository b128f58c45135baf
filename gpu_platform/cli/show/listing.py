"""Lists for people and for programs: one mechanism for every command that lists something.

A command gives the rows as JSON, as the service sends them, and the columns that it has. ``--output`` and ``--columns``
say what becomes of them. ``--json`` is ``--output json``.
"""

from __future__ import annotations

import json as json_module
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from gpu_platform.cli import session
from gpu_platform.cli.nearest import nearest
from gpu_platform.cli.show import plain_text, times
from gpu_platform.domain.texts import duration, one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

Row = Mapping[str, Any]
"""One thing of a list, as the service describes it in JSON."""
_FORMULA = re.compile(r"[=@\t\r\n\uff1d\uff0b\uff0d\uff20]|[+-](?!(?:[0-9.]+(?:e[+-]?[0-9]+)?)?\Z)")
"""How a cell begins that a spreadsheet computes, if it is no number: https://owasp.org/www-community/attacks/CSV_Injection"""
Shape = Literal["table", "wide", "json", "yaml", "csv"]


@dataclass(frozen=True)
class ListingOptions:
    """The options that every command has that lists something (``grouped_options``)."""

    output: Annotated[
        Shape, typer.Option("-o", "--output", help="How to print the list; wide: a table with more columns.")
    ] = "table"
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="These columns of a table or of CSV. A wrong one tells which there are."),
    ] = None
    json: session.Json = False

    def listing(self, columns: Sequence[Column]) -> Listing:
        """How the command prints its list, which has these columns."""
        return Listing(columns, self.output, self.columns, self.json)


@dataclass(frozen=True)
class Column:
    """A column of a list: what it says of a row, to programs and to people.

    ``value`` gives a text, a number or None; a time as RFC 3339. ``text`` makes of it what a table shows.
    """

    name: str
    value: Callable[[Row], Any]
    text: Callable[[Any], str] | None = None
    title: str | None = None
    wide: bool = False
    """Only in ``-o wide``, and where it is named."""
    only_if_any: bool = False
    """Not in tables of which no row has it."""

    @property
    def header(self) -> str:
        """What stands above it in a table. Times are local, and say in which zone."""
        title = self.title or self.name.upper()
        return times.headed(title) if self.text is at else title

    def shown(self, row: Row) -> str:
        """The cell of a table; a :class:`Coloured` one has a colour."""
        value = self.value(row)
        if value is None or value == "":
            return "-" if value is None else ""
        return str(value) if self.text is None else self.text(value)


class Listing:
    """How a command prints its list, as ``--output``, ``--columns`` and ``--json`` say.

    Raises :class:`typer.BadParameter` if they contradict each other, or name a column that is not there.
    """

    def __init__(
        self, columns: Sequence[Column], output: Shape = "table", names: str | None = None, json: bool = False
    ):
        if json and output not in ("table", "json"):
            raise typer.BadParameter(f"--json contradicts --output {output}: leave one of them out")
        self.shape: Shape = "json" if json else output
        if names is not None and self.shape in ("json", "yaml"):
            raise typer.BadParameter(f"{self.shape.upper()} has all fields: leave out --columns, or write --output csv")
        self._named = names is not None
        self._columns = [*columns] if names is None else [_column(columns, name.strip()) for name in names.split(",")]

    @property
    def is_for_people(self) -> bool:
        """True if a table is printed, so that remarks make sense."""
        return self.shape in ("table", "wide")

    @property
    def is_chosen(self) -> bool:
        """True if somebody said which columns or which table."""
        return self._named or self.shape != "table"

    def show(
        self,
        rows: Iterable[Row],
        for_people: Callable[[list[Row]], RenderableType] | None = None,
        whole: Mapping[str, Any] | None = None,
    ) -> None:
        """Print the list. ``for_people``: makes the table where columns are not enough, if nobody has chosen some.
        ``whole``: what JSON and YAML print in place of the rows, where these are a part of an answer."""
        rows = [*rows]
        match self.shape:
            case "json":
                session.print_json(rows if whole is None else dict(whole))
            case "yaml":
                import yaml

                session.write(yaml.safe_dump(rows if whole is None else dict(whole), sort_keys=False).rstrip())
            case "csv":
                session.write(self._csv(rows))
            case "table" if for_people is not None and not self._named:
                session.show(for_people(rows))
            case _:
                room = plain_text.room(session.PIPED_WIDTH)
                plain = None if room is None else self._plain(rows, *room)
                session.show(self.table(rows)) if plain is None else session.write_table(plain)

    def table(self, rows: Iterable[Row]) -> Table:
        """The rows for a terminal."""
        from gpu_platform.cli.show.tables import coloured, plain_table

        heads, cells = self._cells([*rows])
        table = plain_table(*heads)
        for row in cells:
            table.add_row(*map(coloured, row))
        return table

    def _plain(self, rows: Sequence[Row], width: int, colours: bool) -> str | None:
        heads, cells = self._cells(rows)
        return plain_text.table(heads, cells, width, colours=colours)

    def _cells(self, rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
        shown = [column for column in self._columns if self._is_shown(column, rows)]
        cells = [[column.shown(row) for column in shown] for row in rows]
        if not sys.stdout.isatty():  # a program reads a row from each line
            cells = [[one_line(cell) if "\n" in cell else cell for cell in row] for row in cells]
        return [column.header for column in shown], cells

    def _is_shown(self, column: Column, rows: Sequence[Row]) -> bool:
        if self._named:
            return True
        if column.only_if_any and not any(column.value(row) for row in rows):
            return False
        return not column.wide or self.shape == "wide"

    def _csv(self, rows: Sequence[Row]) -> str:
        import csv
        from io import StringIO

        text = StringIO()
        # Every column: a program leaves out what it does not need.
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([column.name for column in self._columns])
        writer.writerows([[_cell(column.value(row)) for column in self._columns] for row in rows])
        return text.getvalue().rstrip("\n")


def field(name: str) -> Callable[[Row], Any]:
    """The value of a column that the row has under this name."""
    return lambda row: row.get(name)


def age(time: str) -> str:
    """How long ago this time was: ``2m05s``."""
    return duration((datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds())


def at(time: str) -> str:
    """Local time. The head of the column names the zone."""
    return times.without_zone(datetime.fromisoformat(time))


def coloured_state(state: str) -> str:
    """The state in its colour."""
    return plain_text.Coloured(state, plain_text.COLOURS.get(state, ""))


def no_formula(text: str) -> str:
    """A text for CSV that a spreadsheet does not take for a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return no_formula(value)
    return json_module.dumps(value) if isinstance(value, bool | list | dict) else value


def _column(columns: Sequence[Column], name: str) -> Column:
    names = [column.name for column in columns]
    if name.lower() in names:
        return columns[names.index(name.lower())]
    near = nearest(name, names)
    meant = f", did you mean {near}?" if near else ";"
    raise typer.BadParameter(f"there is no column {name!r}{meant} There are: {', '.join(names)}")
