"""``gpu-platform usage``: what jobs used, and who used how much."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli import parsing, session


def register(app: typer.Typer) -> None:
    """Add the command ``usage``."""
    app.command()(usage)


def usage(
    job: Annotated[str | None, typer.Argument(help="A job's id, for its attempts and ranks; default: sums.")] = None,
    namespace: Annotated[str | None, typer.Option()] = None,
    user: Annotated[str | None, typer.Option()] = None,
    since: Annotated[
        str | None, typer.Option(help="Attempts that ended within this time, e.g. 24h or 7d; default: all.")
    ] = None,
    json: session.Json = False,
) -> None:
    """GPU-hours, energy and CPU time of a job, or of all by namespace and user."""
    from datetime import UTC, datetime, timedelta

    from service.cli.show import show_usage

    with session.service() as client:
        if job is not None:
            of_job = client.job_usage(job)
            session.print_json(of_job) if json else session.show(show_usage.job_table(of_job))
            return
        start = None if since is None else datetime.now(UTC) - timedelta(seconds=parsing.duration_s(since))
        report = client.usage(namespace=namespace, user=user, since=start)
    session.print_json(report) if json else session.show(show_usage.report_table(report))
