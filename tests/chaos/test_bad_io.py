"""A process meets the files and names that the test gives it; its neighbours do not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.bad_io import FAILING_SYNCS, HANGS, NAMES_HANG, READ_ONLY, SOURCE, BadIo
from tests.chaos.clocks import built

PROGRAM = """
import os, socket, sys, time
for line in sys.stdin:
    begin, what, path = time.monotonic(), "ok", line.strip()
    try:
        if path == "name":
            socket.getaddrinfo("localhost", 1)
        else:
            with open(path, "wb") as file:
                file.write(b"x")
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        what = error.strerror
    print(f"{what}|{time.monotonic() - begin}", flush=True)
"""


@pytest.fixture
def bad(tmp_path: Path) -> BadIo:
    return BadIo(tmp_path / "io")


@pytest.fixture
def ask(tmp_path: Path, bad: BadIo) -> Iterator[Callable[[str], None]]:
    shim, state = built(SOURCE, tmp_path), tmp_path / "state"
    state.mkdir()
    if shim is None:
        pytest.skip("there is no C compiler here")
    process = subprocess.Popen(
        [sys.executable, "-S", "-E", "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "LD_PRELOAD": str(shim), "CHAOS_IO": str(bad.path), "CHAOS_IO_UNDER": str(state)},
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def asked(what: str) -> None:
        assert process.stdin is not None
        process.stdin.write(what + "\n")
        process.stdin.flush()

    asked.answer = lambda: process.stdout.readline().strip().split("|")  # type: ignore[attr-defined, union-attr]
    yield asked
    process.kill()
    process.communicate()


def test_files_fail_and_hang_where_the_state_lies_and_nowhere_else(
    tmp_path: Path, bad: BadIo, ask: Callable[[str], None]
) -> None:
    ours, other = str(tmp_path / "state" / "one"), str(tmp_path / "other")

    def answer_to(path: str) -> list[str]:
        ask(path)
        return ask.answer()  # type: ignore[attr-defined]

    assert answer_to(ours)[0] == "ok"
    with bad.set(READ_ONLY):
        assert answer_to(ours)[0] == "Read-only file system"
        assert answer_to(other)[0] == "ok"
    with bad.set(FAILING_SYNCS):
        assert [answer_to(other)[0], answer_to(ours)[0], answer_to(ours)[0]] == ["ok", "Input/output error", "ok"]
        assert bad.left(FAILING_SYNCS) == 0
    for what, asked in ((HANGS, ours), (NAMES_HANG, "name")):
        with bad.set(what):
            ask(asked)
            time.sleep(0.5)
        text, seconds = ask.answer()  # type: ignore[attr-defined]
        assert (text, float(seconds) > 0.4) == ("ok", True)
