"""The end of a process's log is one line that says why the process died."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workers.local.log_ends import error_in, error_of


def line(level: str, **fields: str) -> str:
    return json.dumps({"event": "process.cannot_start", "level": level, **fields})


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "main.py", line 1, in <module>
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    | OSError: [Errno 28] No space left on device
    +------------------------------------
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([line("error", error="no nftables"), line("info", event="process.stopped")], "no nftables"),
        ([line("error", error="the first"), line("critical", error="the second")], "the second"),
        (["Traceback (most recent call last):", '  File "x.py"', "ImportError: no zlib"], "ImportError: no zlib"),
        (GROUP.splitlines(), "OSError: [Errno 28] No space left on device"),
        ([line("error", exception="Traceback:\n  File\nKeyError: 'a'")], "KeyError: 'a'"),
        ([line("error")], "process.cannot_start"),
        (["\x1b[31m[error  ]\x1b[0m it is full", ""], "[error  ] it is full"),
        (["a title \x1b]0;evil\x07 of a terminal"], "a title ]0;evil of a terminal"),
        ([line("info", error="harmless"), "[1, 2]", "null"], "null"),
        ([line("info"), line("warning", error="slow")], ""),
        (["x" * 501], "x" * 500 + "…"),
        ([], ""),
    ],
)
def test_the_last_error_is_found(lines: list[str], expected: str) -> None:
    assert error_of(lines) == expected


def test_only_what_was_written_since_counts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert error_in(log) == ""
    log.write_text(line("error", error="yesterday") + "\n")
    began = log.stat().st_size
    assert (error_in(log), error_in(log, began)) == ("yesterday", "")
    with log.open("a") as file:
        file.write("🙂" * 50_000 + "\n" + line("error", error="today") + "\n")
    assert error_in(log, began) == "today"
