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
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from gpu_platform.domain.texts import printable

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import Console, RenderableType

    from gpu_platform.client import Client
    from gpu_platform.domain.errors import PlatformError
    from gpu_platform.domain.jobs.job import Job

M = TypeVar("M", bound="BaseModel")

PIPED_WIDTH = 240
"""Columns if stdout is no terminal: `grep` needs each row on one line."""

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
JobId = Annotated[str, typer.Argument(metavar="JOB", help="Job id.", show_default=False)]


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


def validated(model: type[M], fields: dict[str, Any]) -> M:
    """The model with these fields. Raises :class:`InvalidRequest`, which names every wrong one."""
    from pydantic import ValidationError

    from gpu_platform.client.wire import invalid_request

    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid_request(error.errors()) from None


def out() -> Console:
    """The console for stdout."""
    from service.cli.terminal import SafeConsole

    return SafeConsole(width=None if sys.stdout.isatty() else PIPED_WIDTH)


def err() -> Console:
    """The console for stderr."""
    from service.cli.terminal import SafeConsole

    return SafeConsole(stderr=True)


def show(renderable: RenderableType) -> None:
    """Print a table or text to stdout."""
    out().print(renderable)


def say(text: str) -> None:
    """Print to stderr: for people, not for a pipe."""
    typer.echo(printable(text), err=True)


def write_json_line(value: dict[str, Any]) -> None:
    """Print one JSON object on one line of stdout."""
    typer.echo(json.dumps(value))


def write(text: str) -> None:
    """Print lines to stdout that are no table, e.g. an id."""
    typer.echo(printable(text))


def write_file(path: Path, text: str, summary: str = "") -> None:
    """Write what ``-o FILE`` asks for, and say so. Raises :class:`typer.BadParameter`."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot write {path}: {error.strerror}") from None
    say(f"wrote {path}: {summary}" if summary else f"wrote {path}")


def print_json(value: BaseModel | Iterable[BaseModel] | dict[str, Any]) -> None:
    """Print one model as an object, several as a list."""
    if isinstance(value, dict):
        content: Any = value
    elif hasattr(value, "model_dump"):
        content = value.model_dump(mode="json")  # type: ignore[union-attr]
    else:
        content = [item.model_dump(mode="json") for item in value]  # type: ignore[union-attr]
    sys.stdout.write(json.dumps(content, indent=2 if sys.stdout.isatty() else None) + "\n")
    sys.stdout.flush()
