"""``gpu-platform usage``: what jobs used, and who used how much."""

from __future__ import annotations

from typing import Annotated

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show.listing import ListingOptions
from gpu_platform.slurm.ids import id_of


def register(app: typer.Typer) -> None:
    """Add the command ``usage``."""
    app.command()(usage)


@grouped_options
def usage(
    job: Annotated[
        str | None,
        typer.Argument(parser=id_of, metavar="JOB", help="A job's id, for its attempts and ranks; default: sums."),
    ] = None,
    namespace: session.OnlyNamespace = None,
    user: Annotated[str | None, typer.Option()] = None,
    since: Annotated[
        str | None, typer.Option(help="Attempts that ended within this time, e.g. 24h or 7d; default: all.")
    ] = None,
    *,
    listing: ListingOptions,
) -> None:
    """GPU-hours, energy and CPU time of a job, or of all by namespace and user."""
    from datetime import UTC, datetime, timedelta

    from gpu_platform.cli.show import list_columns, show_usage

    shown = listing.listing(list_columns.USAGE if job is None else list_columns.USAGE_OF_JOB)
    with session.service() as client:
        if job is not None:
            of_job = client.job_usage(job)
            whole = of_job.model_dump(mode="json")
            shown.show(whole["attempts"], lambda _: show_usage.job_table(of_job), whole)
            return
        start = None if since is None else datetime.now(UTC) - timedelta(seconds=parsing.duration_s(since))
        report = client.usage(namespace=namespace, user=user, since=start)
    whole = report.model_dump(mode="json")
    shown.show(whole["users"], lambda _: show_usage.report_table(report), whole)
