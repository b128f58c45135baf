"""``gpu-platform queue|snapshot``: the queue with its reasons, and the whole state of the scheduler as one document."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from gpu_platform.cli import completion, session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show import list_columns
from gpu_platform.cli.show.listing import ListingOptions, Row
from gpu_platform.client import calls

if TYPE_CHECKING:
    from rich.console import RenderableType


def register(app: typer.Typer) -> None:
    """Add the commands ``queue`` and ``snapshot``."""
    for command in (queue, snapshot):
        app.command()(command)


@grouped_options
def queue(
    namespace: Annotated[
        str | None,
        typer.Option(help="Only its jobs; places count all jobs.", autocompletion=completion.namespace_names),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most, the next one first.")] = 50,
    *,
    shown: ListingOptions,
) -> None:
    """List waiting jobs in order: why each waits, what would help, and when it should start."""
    listing, size = shown.listing(list_columns.QUEUE), min(limit, 1000)
    with session.service() as client:
        pages = client.json_pages(lambda cursor: calls.queue(namespace, cursor, size))
        found = list(islice(pages, limit))
    if listing.is_for_people and not found:
        session.say("nobody waits")
        return
    listing.show(found, _table)


def _table(found: list[Row]) -> RenderableType:
    """Elements of one array that wait side by side have one row, and each reason has its next step."""
    from gpu_platform.cli.show import show_waiting
    from gpu_platform.domain.jobs.job import QueueEntry

    return show_waiting.queue_table([QueueEntry.model_validate(one) for one in found])


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
