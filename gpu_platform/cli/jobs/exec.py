"""``gpu-platform jobs exec`` and ``jobs attach``: a command, or a shell, in the place where a rank of a job runs."""

from __future__ import annotations

from typing import Annotated

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.cli.session import JobId

Rank = Annotated[int, typer.Option(min=0, help="The rank beside which the command runs.")]


def register(jobs: typer.Typer) -> None:
    """Add the commands ``jobs exec`` and ``jobs attach``."""
    jobs.command("exec")(exec_command)
    jobs.command("attach")(attach_command)


def exec_command(
    job: JobId,
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="Program and arguments.", show_default=False)
    ],
    rank: Rank = 0,
    terminal: Annotated[bool, typer.Option("-t", "--tty", help="With a terminal, for a shell.")] = False,
    idle: Annotated[
        int | None,
        typer.Option(
            parser=parsing.whole_s,
            metavar="TIME",
            help="End the command when nobody was attached to it for so long; default: 30s.",
        ),
    ] = None,
    break_glass: session.BreakGlass = None,
) -> None:
    """Run a command where a rank runs: its cgroup, namespaces, user, environment, GPUs.

    It ends with the rank at the latest. Returns the command's exit code.
    """
    from gpu_platform.cli.jobs.streaming import Place, need_terminal, stream_both_ways, with_terminal
    from gpu_platform.domain.errors import NotFound, PlatformError
    from gpu_platform.domain.jobs.exec import UNREAD_S, ExecRequest

    if terminal:
        need_terminal()
    fields = {"command": command, "rank": rank, "tty": terminal, "unread_s": idle}
    request = session.validated(ExecRequest, fields)
    with session.service(session.FOLLOW_PATIENCE_S, break_glass) as client:
        started = client.exec(job, with_terminal(request) if terminal else request)
        try:
            ended = stream_both_ways(client, Place(started), terminal=terminal)
        except PlatformError as error:
            if not isinstance(error, NotFound):
                session.say(
                    f"the command goes on, and ends if nobody is attached for {request.unread_s or UNREAD_S:g} s; come "
                    f"back: gpu-platform jobs attach {job} --rank {rank} --session {started.id}"
                )
            raise
    if ended.reason is not None:
        session.say(f"the command was ended: {ended.reason}" if ended.how == "exit" else ended.reason)
    raise typer.Exit(ended.exit_code)


def attach_command(
    job: JobId,
    rank: Rank = 0,
    session_id: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="Which of your sessions; default: the newest.")
    ] = None,
    break_glass: session.BreakGlass = None,
) -> None:
    """Come back to a terminal or command that you started with `run`, or with `jobs exec`.

    Shows the last screenful of its output. Whoever is attached to it now is told, and leaves it. ~. at the start of a
    line leaves it again. Returns the command's exit code.
    """
    from gpu_platform.cli.jobs import interactive

    raise typer.Exit(interactive.attach(job, rank, session_id, break_glass))
