"""``gpu-platform alerts …``: alert rules for Prometheus, and a test of those who are told."""

from __future__ import annotations

from typing import Annotated

import typer

from gpu_platform.cli import session
from gpu_platform.cli.local.alert_rules import print_rules
from gpu_platform.cli.option_groups import grouped_options
from gpu_platform.cli.show.listing import ListingOptions

alerts = typer.Typer(help="Alert rules for Prometheus, and who is told.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands for alerts."""
    alerts.command("rules")(print_rules)
    alerts.command("test")(send_test)
    app.add_typer(alerts, name="alerts")


@grouped_options
def send_test(
    target: Annotated[str | None, typer.Option(metavar="NAME", help="Only this one.", show_default=False)] = None,
    *,
    listing: ListingOptions,
) -> None:
    """Send a test message to the targets of `notifications`, and say what came of it for each. The exit code is 1 if
    one did not take it, or if there is none."""
    from gpu_platform.cli.show.list_columns import DELIVERIES, show_deliveries

    shown = listing.listing(DELIVERIES)
    with session.service() as client:
        found = client.test_notifications(target)
    show_deliveries(shown, (one.model_dump(mode="json") for one in found))
    if shown.is_for_people and not found:
        session.say("nobody is told: notifications.targets of the control workers is empty")
    if not found or not all(one.sent for one in found):
        raise typer.Exit(session.FAILED)
