"""``gpu-platform jobs checkpoints`` and ``jobs checkpoint``."""

from __future__ import annotations

from typing import Annotated

import typer

from gpu_platform.client import calls
from service.cli import session
from service.cli.option_groups import grouped_options
from service.cli.session import JobId
from service.cli.show import list_columns
from service.cli.show.listing import ListingOptions


def register(jobs: typer.Typer) -> None:
    """Add the commands for checkpoints of jobs."""
    jobs.command()(checkpoints)
    jobs.command()(checkpoint)


@grouped_options
def checkpoints(
    job: JobId,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte; default: compare only the sizes of files.")
    ] = False,
    *,
    shown: ListingOptions,
) -> None:
    """List a job's checkpoints: which are whole, and where. Begin with one: submit --resume-from JOB:CHECKPOINT."""
    listing = shown.listing(list_columns.CHECKPOINTS)
    with session.service(session.FOLLOW_PATIENCE_S if verify else 15.0) as client:
        found = client.json(calls.checkpoints(job, verify))["items"]
    if listing.is_for_people and not found:
        session.say(f"{job} has no checkpoint that its hosts see")
    else:
        listing.show(found)


def checkpoint(job: JobId, json: session.Json = False) -> None:
    """Ask a running job for a checkpoint now; see it with: jobs checkpoints."""
    with session.service() as client:
        asked = client.ask_for_checkpoint(job)
    if json:
        session.print_json(asked)
    else:
        signalled = f" and a signal to {asked.signalled} of its processes" if asked.signalled else ""
        session.say(
            f"{job} was asked, by its request file{signalled}; see it with: gpu-platform jobs checkpoints {job}"
        )
