"""Why a process has ended, from the end of its log: one line for people."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_READ_BYTES = 64 << 10
_LONGEST = 500
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_FRAME = " |+-"
"""What Python draws around the tracebacks of an exception group."""


def error_in(log_file: Path, since: int = 0) -> str:
    """The last error of what was written from byte ``since`` on. Empty: it tells none.

    A line of our log tells its error, and the last line of a traceback the exception. Characters that would control a
    terminal are left out.
    """
    try:
        with log_file.open("rb") as file:
            file.seek(max(since, file.seek(0, 2) - _READ_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return error_of(lines)


def error_of(lines: list[str]) -> str:
    """As :func:`error_in`, of lines."""
    for raw in reversed(lines):
        line = _COLOURS.sub("", raw).strip(_FRAME)
        record = _record(line)
        if record is None:
            found = line
        elif record.get("level") in ("error", "critical"):
            found = _text(record)
        else:
            continue
        found = "".join(character for character in found if character.isprintable())
        if found:
            return found if len(found) <= _LONGEST else f"{found[:_LONGEST]}…"
    return ""


def _record(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _text(record: dict[str, Any]) -> str:
    exception = str(record.get("exception", "")).strip().splitlines()
    return str(record.get("error") or error_of(exception) or record.get("event") or "")
