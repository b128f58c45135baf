"""What every command shares: the client, where output goes, and what exit codes mean.

Results go to stdout (with ``--json`` only JSON), messages for people to stderr.

| code | meaning |
|---|---|
| 0 | done |
| 1 | the job failed, a GPU is not healthy, or something else went wrong |
| 2 | wrong usage, or the request was refused as invalid |
| 3 | no such job, host or GPU |
| 4 | conflict: not in this state, in use, or an idempotency key used for something else |
| 5 | the service (or what it needs) is away, or was asked too often |
| 6 | not signed in, or not allowed |
| 130 | interrupted |

``submit --wait``, ``submit --follow`` and ``jobs wait`` return the exit code of the job itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpu_platform.cli import completion
from gpu_platform.domain.texts import printable
from gpu_platform.slurm.ids import id_of

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, RenderableType

    from gpu_platform.client import Client
    from gpu_platform.domain.errors import PlatformError
    from gpu_platform.domain.jobs.job import Job

M = TypeVar("M", bound="BaseModel")

PIPED_WIDTH = 100_000
"""Columns if stdout is no terminal: `grep` needs each row on one line, and whole, as `kubectl get` prints it."""

FAILED, USAGE, NOT_FOUND, CONFLICT, AWAY, NOT_ALLOWED = 1, 2, 3, 4, 5, 6
# 130 is typer's exit code for Ctrl-C

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="For the event log.")]
Yes = Annotated[bool, typer.Option("--force", help="Stop what runs there.")]
Raw = Annotated[bool, typer.Option("--raw", help="Let the output control the terminal: only if you trust the job.")]
BreakGlass = Annotated[
    str | None,
    typer.Option(help="Operators: why you enter a job of somebody else. It is recorded.", metavar="REASON"),
]
_EXIT_CODES = {
    401: NOT_ALLOWED,
    403: NOT_ALLOWED,
    404: NOT_FOUND,
    409: CONFLICT,
    422: USAGE,
    429: AWAY,
    503: AWAY,
    507: AWAY,
}

Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Default: stdout.")]
HostName = Annotated[
    str, typer.Argument(metavar="HOST", help="Host name.", show_default=False, autocompletion=completion.host_names)
]
OnlyNamespace = Annotated[
    str | None, typer.Option(help="Only of this namespace.", autocompletion=completion.namespace_names)
]
JobId = Annotated[
    str,
    typer.Argument(
        parser=id_of, metavar="JOB", help="Job id.", show_default=False, autocompletion=completion.job_names
    ),
]


@contextmanager
def service(patience_s: float = 5.0, break_glass: str | None = None) -> Iterator[Client]:
    """A client that tries again for ``patience_s`` seconds while the service does not answer. ``break_glass``: why an
    operator enters a job of somebody else."""
    from gpu_platform.client import Client  # imported here, because `--help` must not wait for it

    with Client(retry_for_s=patience_s, break_glass=break_glass) as client:
        yield client


FOLLOW_PATIENCE_S = 60.0
"""How long commands that wait for a job try again, so that a restart of the service does not end them."""


def exit_code_of(error: PlatformError) -> int:
    """The exit code for an error."""
    return _EXIT_CODES.get(error.http_status, FAILED)


def exit_code_of_job(job: Job) -> int:
    """The exit code for a job that has ended: that of its program, or ``FAILED`` if it has none."""
    from gpu_platform.domain.states import JobState

    if job.state is JobState.COMPLETED:
        return 0
    return job.exit_code if job.exit_code else FAILED


def validated(model: type[M], fields: dict[str, Any], subject: str = "the request") -> M:
    """The model with these fields. Raises :class:`InvalidRequest`, which names every wrong one, and ``subject``."""
    from pydantic import ValidationError

    from gpu_platform.client.wire import invalid_request

    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid_request(error.errors(), subject) from None


def out() -> Console:
    """The console for stdout."""
    from gpu_platform.cli.terminal import SafeConsole

    return SafeConsole(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def err() -> Console:
    """The console for stderr."""
    from gpu_platform.cli.terminal import SafeConsole

    return SafeConsole(stderr=True)


def show(renderable: RenderableType) -> None:
    """Print a table or text to stdout."""
    console = out()
    if sys.stdout.isatty() or console.color_system is not None:
        console.print(renderable)
        return
    with console.capture() as printed:
        console.print(renderable)
    _write_lines(printed.get())


def say(text: str) -> None:
    """Print to stderr: for people, not for a pipe."""
    typer.echo(printable(text), err=True)


def interject(text: str, *, raw: bool) -> None:
    """Print a line to stderr between the output of a program. ``raw``: the terminal begins no line by itself."""
    begin_line(raw=raw)
    sys.stderr.write(f"[gpu-platform: {printable(text)}]" + ("\r\n" if raw else "\n"))
    sys.stderr.flush()


def begin_line(*, raw: bool) -> None:
    """Leave the line that a program writes, such as its prompt. ``raw``: it has the terminal, and may be in a line."""
    if raw:
        sys.stderr.write("\r\n")
        sys.stderr.flush()


def write_json_line(value: dict[str, Any]) -> None:
    """Print one JSON object on one line of stdout."""
    typer.echo(json.dumps(value))


def write(text: str) -> None:
    """Print lines to stdout that are no table, e.g. an id."""
    typer.echo(printable(text))


def write_lines(lines: Iterable[str]) -> None:
    """Print each line to stdout; nothing if there are none."""
    for line in lines:
        sys.stdout.write(f"{printable(line)}\n")
    sys.stdout.flush()


def write_table(text: str) -> None:
    """Print a table of ``plain_text`` to stdout: its cells are printable, its colours are ours."""
    if sys.stdout.isatty():
        typer.echo(text)
    else:
        _write_lines(text)


def _write_lines(text: str) -> None:
    """Into a pipe: without the blanks that fill the last column up to its longest cell."""
    typer.echo("\n".join(line.rstrip() for line in text.removesuffix("\n").split("\n")))


def write_file(path: Path, text: str, summary: str = "") -> None:
    """Write what ``-o FILE`` asks for, and say so. Raises :class:`typer.BadParameter`."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}") from None
    say(f"wrote {path}: {summary}" if summary else f"wrote {path}")


def print_json(value: BaseModel | dict[str, Any] | Iterable[BaseModel | Mapping[str, Any]]) -> None:
    """Print one model, or what is JSON already, as an object; several as a list."""
    content = _as_json(value) if isinstance(value, dict) or hasattr(value, "model_dump") else [*map(_as_json, value)]
    sys.stdout.write(json.dumps(content, indent=2 if sys.stdout.isatty() else None) + "\n")
    sys.stdout.flush()


def _as_json(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else value
