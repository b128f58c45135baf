"""Texts of jobs, hosts and machines are shown by the command line, and never obeyed by the terminal or by rich."""

from __future__ import annotations

import io
import os
import pty
import re
import tty
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from gpu_platform.cli import main, session
from gpu_platform.cli.app import app as command_line
from gpu_platform.cli.show import tables
from gpu_platform.cli.slurm import entry, job_lists, sacct, sinfo, squeue
from gpu_platform.cli.terminal import ProgramOutput, SafeConsole
from gpu_platform.client import Client
from gpu_platform.client.answer import Answer
from gpu_platform.client.wire import PROBLEM_JSON, Problem
from gpu_platform.domain.texts import one_line, printable
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from service.app import create_app
from tests.security.hostile_service import HOSTILE, HostileHttp, answer_of

_FORBIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_COMMANDS = [
    ["status"],
    ["status", "--all", "--wide"],
    ["health"],
    ["health", "--gpu-id", "g"],
    ["queue"],
    ["usage"],
    ["report"],
    ["usage", "j-1"],
    ["jobs", "list"],
    ["jobs", "list", "--array", "a-1"],
    ["jobs", "describe", "j-1"],
    ["jobs", "describe", "a-1"],
    ["jobs", "cancel", "a-1", "--elements", "1"],
    ["jobs", "retry", "a-1"],
    ["jobs", "wait", "a-1", "--timeout", "100ms"],
    ["jobs", "checkpoints", "j-1"],
    ["jobs", "checkpoint", "j-1"],
    ["jobs", "cancel", "j-1"],
    ["jobs", "kill", "j-1"],
    ["jobs", "preempt", "j-1"],
    ["pipelines", "list"],
    ["pipelines", "describe", "p-1"],
    ["pipelines", "graph", "p-1"],
    ["pipelines", "graph", "--mermaid", "p-1"],
    ["pipelines", "cancel", "p-1"],
    ["pipelines", "retry", "p-1"],
    ["reservations", "list"],
    ["reservations", "describe", "fans"],
    ["schedules", "list"],
    ["schedules", "describe", "s-1"],
    ["schedules", "create", "--every", "1h", "--", "true"],
    ["hosts", "list"],
    ["hosts", "describe", "h"],
    ["hosts", "checkpoint-roots"],
    ["hosts", "declare-lost", "--yes", "h"],
    ["hosts", "remove", "h"],
    ["drain", "h"],
    ["drain", "h:1"],
    ["offline", "h"],
    ["online", "h"],
    ["remediation", "show", "h:1"],
    ["remediation", "approve", "h:1"],
    ["remediation", "veto", "h:1"],
    ["submit", "--dry-run", "--", "true"],
    ["submit", "--", "true"],
    ["submit", "--array", "0-3", "--", "true"],
]


_OF_SLURM = [
    ["squeue"],
    ["squeue", "-l", "-j", "j-1,a-1"],
    ["squeue", "--start"],
    ["squeue", "-h", "-o", "".join(f"%{letter}|" for letter in squeue.LETTERS)],
    ["squeue", "-O", ",".join(squeue.NAMES)],
    ["sacct", "-a", "-o", ",".join(sacct.COLUMNS)],
    ["sacct", "-a", "-P", "-o", ",".join(sacct.COLUMNS)],
    ["sinfo"],
    ["sinfo", "-R"],
    ["sinfo", "-N", "-o", "".join(f"%{letter}|" for letter in sinfo.LETTERS)],
    ["sinfo", "-O", ",".join(sinfo.NAMES)],
    ["scontrol", "show", "job"],
    ["scontrol", "-o", "show", "job", "j-1"],
    ["scontrol", "show", "node"],
    ["scontrol", "show", "partition"],
    ["scontrol", "hold", "j-1"],
    ["scontrol", "requeue", "j-1"],
    ["scontrol", "update", "JobId=j-1", "TimeLimit=10"],
    ["scancel", "j-1", "a-1"],
    ["scancel", "--me"],
    ["sbatch", "--wrap", "true"],
    ["sbatch", "--test-only", "--wrap", "true"],
    ["sbatch", "-p", "x", "--qos=y", "--mail-type=ALL", "-d", "singleton", "--wrap", "true"],
]


@pytest.mark.parametrize("arguments", _OF_SLURM, ids=lambda words: " ".join(words)[:60])
@pytest.mark.usefixtures("hostile_service")
def test_no_command_of_slurm_lets_a_text_control_the_terminal(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The ids of its elements are no ids, from which an index could be read.
    monkeypatch.setattr(job_lists, "_rest_of", lambda array, _: [array])
    assert entry.run(arguments[0], arguments[1:]) in (0, 1)
    printed = capsys.readouterr()
    assert not dangerous(printed.out + printed.err)
    if arguments[0] in ("squeue", "sacct", "sinfo") or "show" in arguments:
        assert printed.out
    if arguments[1:] in (["-R"], ["show", "node"], ["-o", "show", "job", "j-1"]):
        assert "\\x1b]52" in printed.out, "there is something to check"


@pytest.mark.parametrize("arguments", [*_COMMANDS, *_OF_SLURM], ids=lambda words: " ".join(words)[:60])
@pytest.mark.usefixtures("hostile_service")
def test_no_error_controls_the_terminal(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> Answer:
        problem = Problem.make(409, "illegal_transition", HOSTILE).model_dump_json()
        return Answer(409, {"content-type": PROBLEM_JSON}, problem.encode())

    monkeypatch.setattr(HostileHttp, "send", refuse)
    if arguments in _OF_SLURM:
        entry.run(arguments[0], arguments[1:])
    else:
        monkeypatch.setattr("sys.argv", ["gpu-platform", *arguments])
        with pytest.raises(SystemExit):
            main.run()
    printed = capsys.readouterr()
    assert not dangerous(printed.out + printed.err)


def dangerous(text: str, allowed: str = "\n") -> list[str]:
    return [one for one in text if unicodedata.category(one) in _FORBIDDEN and one not in allowed]


@pytest.fixture
def hostile_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    store = Store(f"sqlite:///{tmp_path}/none.db")
    http = HostileHttp(create_app(Settings(), store))

    @contextmanager
    def service(patience_s: float = 0.0) -> Iterator[Client]:
        with Client(retry_for_s=0.0) as client:
            monkeypatch.setattr(client, "_http", http)
            yield client

    monkeypatch.setattr(session, "service", service)
    yield
    store.close()


@pytest.mark.parametrize("arguments", _COMMANDS, ids=" ".join)
@pytest.mark.usefixtures("hostile_service")
def test_no_command_lets_a_text_control_the_terminal(arguments: list[str]) -> None:
    for more in ([], ["--json"]):
        if more and arguments[:2] in (["hosts", "declare-lost"], ["hosts", "remove"], ["pipelines", "graph"]):
            continue  # they have no --json
        place = arguments.index("--") if "--" in arguments else len(arguments)
        ran = CliRunner().invoke(command_line, [*arguments[:place], *more, *arguments[place:]])
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        assert not dangerous(ran.stdout + ran.stderr)
        assert "\N{SKULL}" not in ran.stdout


@pytest.mark.usefixtures("hostile_service")
def test_what_is_typed_as_markup_is_shown_as_it_is() -> None:
    for arguments in (["status", "--all"], ["hosts", "describe", "h"], ["jobs", "describe", "j-1"]):
        shown = CliRunner().invoke(command_line, arguments).stdout
        assert "x[/oops]\\x1b]52;c;ZXZpbA==\\x07\\r" in re.sub(r"\n\s*", "", shown)
        assert ":skull:" in shown


def test_the_answers_are_hostile() -> None:
    """The checks above have found something to check."""
    from gpu_platform.client.wire import Page
    from gpu_platform.domain.hosts.gpu import Host
    from gpu_platform.domain.jobs.job import Job

    assert answer_of(Page[Host])["items"][0]["machine"] == HOSTILE
    assert answer_of(Job)["failure"]["message"] == HOSTILE
    assert dangerous(HOSTILE)


def test_a_console_of_rich_obeys_what_ours_shows() -> None:
    from rich.console import Console

    def printed(console: Console) -> str:
        with console.capture() as captured:
            console.print(table())
        return captured.get()

    def table() -> Table:
        made = tables.plain_table("A", "B")
        made.add_row("\x1b]0;title\x07", Text("\x1b[2J"))
        return made

    assert dangerous(printed(Console(width=80)))
    assert not dangerous(printed(SafeConsole(width=80)))


@given(st.text())
def test_what_is_printable_has_nothing_that_a_terminal_obeys(text: str) -> None:
    assert not dangerous(printable(text), allowed="\n\t")
    assert not dangerous(one_line(text), allowed="")
    if not dangerous(text, allowed=""):
        assert printable(text) == text
    printable(text).encode()  # a lone surrogate would stop the command


def on_a_terminal(pieces: list[str], **options: Any) -> str:
    """What arrives on a real terminal when the pieces are written one after the other."""
    ours, theirs = pty.openpty()
    try:
        tty.setraw(theirs)
        with open(theirs, "w", encoding="utf-8", closefd=False, newline="") as stream:
            output = ProgramOutput(stream, **options)
            for piece in pieces:
                output.write(piece)
            output.close()
        os.set_blocking(ours, False)
        found = b""
        while True:
            try:
                found += os.read(ours, 65536)
            except BlockingIOError:
                return found.decode()
    finally:
        os.close(ours)
        os.close(theirs)


def test_a_log_on_a_terminal_keeps_colours_and_progress_bars_and_nothing_else() -> None:
    pieces = ["10 %\r20 %\n", "\x1b[1;", "31mred\x1b[0m", "\x1b]52;c;ZXZpbA==\x07", "\x1b[2J\x1b[8", "\x1b"]
    shown = on_a_terminal(pieces)
    assert shown == "10 %\r20 %\n\x1b[1;31mred\x1b[0m\\x1b]52;c;ZXZpbA==\\x07\\x1b[2J\\x1b[8\\x1b\x1b[0m"
    assert on_a_terminal(pieces, raw=True) == "".join(pieces)


def test_a_log_in_a_pipe_is_as_it_was_written() -> None:
    stream = io.StringIO()
    ProgramOutput(stream).write("\x1b]52;c;ZXZpbA==\x07")
    assert stream.getvalue() == "\x1b]52;c;ZXZpbA==\x07"


_PIECE = st.text(st.sampled_from("a\x1b[];0m38?J\r\n\x07\x9b\u202e"), max_size=12)


@given(st.lists(_PIECE, max_size=4))
def test_only_colours_pass_however_the_output_is_cut(pieces: list[str]) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    output = ProgramOutput(stream)
    for piece in pieces:
        output.write(piece)
    output.close()
    assert not dangerous(re.sub(r"\x1b\[[0-9;:]*m", "", stream.getvalue()), allowed="\n\r\t\b")


def test_nothing_prints_past_the_three_ways() -> None:
    """Each of these would be a way to the terminal that nobody checks."""
    others = re.compile(r"typer\.s?echo|[^_]print\(|std(?:out|err)\.write|Console\(")
    for path in Path(session.__file__).parent.rglob("*.py"):
        if path.name not in {"session.py", "terminal.py", "main.py"}:
            assert not others.findall(path.read_text()), f"{path}: use session.show, session.write or session.say"
