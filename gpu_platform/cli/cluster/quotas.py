"""``gpu-platform quotas``: what namespaces may hold, and what they hold now."""

from __future__ import annotations

import typer

from gpu_platform.cli import session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show.listing import ListingOptions
from gpu_platform.client import calls


def register(app: typer.Typer) -> None:
    """Add the command ``quotas``."""
    app.command()(quotas)


@grouped_options
def quotas(*, listing: ListingOptions) -> None:
    """Guarantees and limits of namespaces, and the GPUs that their jobs hold now."""
    from gpu_platform.cli.show.list_columns import QUOTAS

    shown = listing.listing(QUOTAS)
    with session.service() as client:
        shown.show(client.json_pages(calls.quotas))
