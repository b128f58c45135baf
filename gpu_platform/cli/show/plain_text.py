"""Tables as plain text, without rich, whose import is a third of what a list takes (ADR 93).

What is written here is what rich would write. It does the easy case: every cell is one line of ASCII, and the table
fits into the terminal. Everything else, which needs folding or the width of characters, is rich's.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from gpu_platform.domain.states import ArrayState, GpuState, HostState, JobState

COLOURS: dict[str, str] = {
    JobState.RUNNING: "green",
    JobState.COMPLETED: "green",
    JobState.FAILED: "red",
    JobState.CANCELLED: "yellow",
    JobState.QUEUED: "cyan",
    ArrayState.RUNNING: "green",
    ArrayState.COMPLETED: "green",
    ArrayState.FAILED: "red",
    ArrayState.CANCELLED: "yellow",
    GpuState.AVAILABLE: "green",
    GpuState.DRAINING: "yellow",
    GpuState.DRAINED: "yellow",
    GpuState.DEGRADED: "yellow",
    GpuState.RESETTING: "yellow",
    GpuState.OFFLINE: "red",
    HostState.READY: "green",
    HostState.DRAINING: "yellow",
    HostState.DRAINED: "yellow",
    HostState.LOST: "red",
}
"""State -> its colour, by the names of rich."""
RIGHT = frozenset(
    [
        *("PLACE", "PRIORITY", "SCORE", "MS", "+MS", "AGE", "FREE", "GPUS", "FAULTS", "RESETS", "TEMP", "POWER"),
        *("UTIL", "MEMORY"),
    ]
)
"""Heads of columns whose cells are at the right."""
_CODES = {"green": "32", "red": "31", "yellow": "33", "cyan": "36"}
_BOLD = "1"
_DECIDES_COLOURS = ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables by which people tell rich what their terminal can do."""


class Coloured(str):
    """A text in a colour."""

    colour: str

    def __new__(cls, text: str, colour: str = "") -> Coloured:  # noqa: D102 (see the class)
        made = super().__new__(cls, text)
        made.colour = colour
        return made


def _right(text: str, size: int) -> str:
    return text.rstrip().rjust(size)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, colours: bool) -> str | None:
    """The table as rich would print it. None: rich must print it."""
    if not all(text.isascii() and text.isprintable() for row in (heads, *rows) for text in row):
        return None
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > width:
        return None
    places = [_right if head in RIGHT else str.ljust for head in heads]
    lines = ["  ".join(place(head, size) for place, head, size in zip(places, heads, widths, strict=True))]
    if colours:
        lines[0] = _in_colour(lines[0], _BOLD)
    for row in rows:
        cells = [place(text, size) for place, text, size in zip(places, row, widths, strict=True)]
        if colours:
            cells = [_in_colour(cell, _code(text)) for cell, text in zip(cells, row, strict=True)]
        lines.append("  ".join(cells))
    return "\n".join(lines)


def room(piped_width: int) -> tuple[int, bool] | None:
    """How wide stdout is, and whether it shows colours. None: rich must find out."""
    if not sys.stdout.isatty():
        return None if any(name in os.environ for name in _DECIDES_COLOURS) else (piped_width, False)
    if any(name in os.environ for name in _DECIDES_COLOURS) or os.environ.get("TERM", "") in ("", "dumb", "unknown"):
        return None
    return shutil.get_terminal_size().columns, True


def _in_colour(text: str, code: str) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def _code(text: str) -> str:
    return _CODES.get(text.colour, "") if isinstance(text, Coloured) else ""
