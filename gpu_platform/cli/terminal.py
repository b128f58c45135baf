"""What reaches the user's terminal: texts of jobs and hosts are shown there, and never obeyed.

Tables and texts go through :class:`SafeConsole`, single messages through ``printable``, and what programs wrote (logs,
exec) through :class:`ProgramOutput`. A pipe or a file gets a program's output unchanged.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from gpu_platform.domain.texts import printable

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_KEPT_OF_PROGRAMS = "\n\t\r\b"
"""Progress bars write them. They change nothing but the program's own line."""
_COLOUR = re.compile(r"(\x1b\[[0-9;:]{0,40}m)")
"""Select graphic rendition (ECMA-48, 8.3.117): colours and weight of the text that follows."""
_UNFINISHED_COLOUR = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z")
_NO_COLOUR = "\x1b[0m"


class SafeConsole(Console):
    """A console without markup and emoji codes, which shows control characters as escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:  # type: ignore[override]
        """Called by rich for every string that it prints, also for those in the cells of a table."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Called by rich for everything that it prints. It also meets texts that were no strings before."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text == "\n" or (text.isascii() and text.isprintable()):
                yield segment
            else:
                # The layout is made already, so that each character must stay one character.
                yield Segment("".join(map(_one_cell, text)), segment.style)


class ProgramOutput:
    """Writes what a program wrote to stdout or stderr.

    On a terminal colours and progress bars work, and every other control character is shown as an escape. So an
    output cannot set the window's title, write the clipboard, or answer in the user's place. ``raw``: on a terminal,
    too, nothing is changed.
    """

    def __init__(self, stream: IO[str], *, raw: bool = False) -> None:
        self._stream = stream
        self._filtered = stream.isatty() and not raw
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""
        self._coloured = False

    def write_bytes(self, data: bytes) -> None:
        """Write the next bytes of the output."""
        if self._filtered:
            self.write(self._decoder.decode(data))
            return
        self._stream.flush()
        self._stream.buffer.write(data)  # type: ignore[attr-defined]
        self._stream.buffer.flush()  # type: ignore[attr-defined]

    def write(self, text: str) -> None:
        """Write the next piece of the output."""
        self._stream.write(self._safe(text) if self._filtered else text)
        self._stream.flush()

    def close(self) -> None:
        """Write what was held back, and end its colours."""
        rest = printable(self._held) + (_NO_COLOUR if self._coloured else "")
        self._held, self._coloured = "", False
        if rest:
            self._stream.write(rest)
            self._stream.flush()

    def _safe(self, text: str) -> str:
        text = self._held + text
        # The rest of a colour may be in the next piece.
        unfinished = _UNFINISHED_COLOUR.search(text)
        self._held = unfinished.group() if unfinished else ""
        pieces = _COLOUR.split(text[: len(text) - len(self._held)])
        self._coloured = self._coloured or len(pieces) > 1
        return "".join(
            piece if number % 2 else printable(piece, keep=_KEPT_OF_PROGRAMS) for number, piece in enumerate(pieces)
        )


def safe(text: str, style: str = "") -> Text:
    """A text of somebody else in a style."""
    return Text(printable(text), style=style)


def _one_cell(character: str) -> str:
    return character if character == "\n" or len(printable(character, keep="")) == 1 else _REPLACEMENT
