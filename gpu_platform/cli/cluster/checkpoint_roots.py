"""``gpu-platform hosts checkpoint-roots``: which hosts share their checkpoints."""

from __future__ import annotations

import typer

from gpu_platform.cli import session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show.listing import ListingOptions


def register(hosts: typer.Typer) -> None:
    """Add the command to ``hosts``."""
    hosts.command("checkpoint-roots")(checkpoint_roots)


@grouped_options
def checkpoint_roots(*, listing: ListingOptions) -> None:
    """Test with a file which hosts see each other's checkpoints. Returns 1 if hosts that say so do not."""
    from gpu_platform.cli.show.list_columns import CHECKPOINT_ROOTS

    shown = listing.listing(CHECKPOINT_ROOTS)
    with session.service(60.0) as client:
        roots = client.check_checkpoint_roots()
    shown.show(one.model_dump(mode="json") for one in roots)
    if shown.is_for_people and len(roots) > 1:
        session.say("a retry on a host of another group starts at zero: let all share node.checkpoint_root")
    if any(one.problem for one in roots):
        raise typer.Exit(session.FAILED)
