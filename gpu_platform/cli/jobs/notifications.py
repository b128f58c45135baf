"""``gpu-platform notifications …``: who can be told of jobs, and a test of it."""

from __future__ import annotations

from typing import Annotated

import typer

from gpu_platform.cli import session
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show.listing import ListingOptions
from gpu_platform.client import calls

notifications = typer.Typer(help="Who can be told of your jobs: submit --notify.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands for notifications."""
    app.add_typer(notifications, name="notifications")


@notifications.command("list")
@grouped_options
def list_targets(*, listing: ListingOptions) -> None:
    """The targets that you may name in `submit --notify WHAT:TARGET`."""
    from gpu_platform.cli.show.list_columns import NOTIFICATION_TARGETS

    shown = listing.listing(NOTIFICATION_TARGETS)
    with session.service() as client:
        found = client.json(calls.notification_targets())["items"]
    shown.show(found)
    if not found and shown.is_for_people:
        session.say("no target is open to you: an operator opens one with notifications.targets")


@notifications.command("test")
@grouped_options
def send_test(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A name from `notifications list`.")],
    address: Annotated[
        str | None,
        typer.Option(metavar="MAIL", help="For a target that sends to users; default: your own.", show_default=False),
    ] = None,
    *,
    listing: ListingOptions,
) -> None:
    """Send a test message, and say what came of it. The exit code is 1 if the target did not take it."""
    from gpu_platform.cli.show.list_columns import DELIVERIES, show_deliveries

    shown = listing.listing(DELIVERIES)
    with session.service() as client:
        found = client.test_notification_target(target, address)
    show_deliveries(shown, (one.model_dump(mode="json") for one in found))
    if not all(one.sent for one in found):
        raise typer.Exit(session.FAILED)
