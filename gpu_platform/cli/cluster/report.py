"""``gpu-platform report``: the key figures of the cluster over a period."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpu_platform.cli import parsing, session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show.listing import ListingOptions


def register(app: typer.Typer) -> None:
    """Add the command ``report``."""
    app.command()(report)


@grouped_options
def report(
    since: Annotated[str, typer.Option(help="Length of the period up to now, e.g. 24h or 30d.")] = "7d",
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write all figures, one per line, for a spreadsheet.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write a page with plots.")] = None,
    *,
    listing: ListingOptions,
) -> None:
    """How well GPUs are used, how long jobs wait and run, what fails: by host, GPU model, namespace and user."""
    from datetime import UTC, datetime, timedelta

    from gpu_platform.cli.show import list_columns, report_files, show_report

    shown = listing.listing(list_columns.REPORT)

    begin = datetime.now(UTC) - timedelta(seconds=parsing.duration_s(since))
    with session.service() as client:
        found = client.report(since=begin)
    rows = report_files.rows_of(found)
    shown.show(rows, lambda _: show_report.report_tables(found), found.model_dump(mode="json"))
    if csv is not None:
        session.write_file(csv, report_files.as_csv(found))
    if html is not None:
        session.write_file(html, report_files.as_page(found))
