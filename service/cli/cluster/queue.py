"""``gpu-platform queue|snapshot``: the queue with its reasons, and the whole state of the scheduler as one document."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from service.cli import session


def register(app: typer.Typer) -> None:
    """Add the commands ``queue`` and ``snapshot``."""
    for command in (queue, snapshot):
        app.command()(command)


def queue(
    namespace: Annotated[str | None, typer.Option(help="Only its jobs; places count all jobs.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the next one first.")] = 50,
    json: session.Json = False,
) -> None:
    """List waiting jobs in order: why each waits, what would help, and when it should start."""
    with session.service() as client:
        found = list(islice(client.queue(namespace=namespace, page_size=min(limit, 1000)), limit))
    if json:
        session.print_json(found)
        return
    if not found:
        session.say("nobody waits")
        return
    from service.cli.show import show_waiting

    session.show(show_waiting.queue_table(found))


def snapshot(
    output: session.Output = None,
) -> None:
    """Write the live state as one JSON document: hosts, GPUs, jobs, the policy. See simulate --snapshot."""
    from gpu_platform.domain.texts import counted

    with session.service() as client:
        found = client.snapshot()
    if output is None:
        session.print_json(found)
        return
    running, waiting = counted(len(found.running), "job"), counted(len(found.queue), "job")
    summary = f"{counted(len(found.hosts), 'host')}, {running} with GPUs, {waiting} in the queue"
    session.write_file(output, found.model_dump_json() + "\n", summary)
