"""``gpu-platform alerts …``: alert rules for Prometheus, and a test of those who are told."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli import session
from service.cli.option_groups import grouped_options
from service.cli.show.listing import ListingOptions

alerts = typer.Typer(help="Alert rules for Prometheus, and who is told.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands for alerts."""
    alerts.command("rules")(print_rules)
    alerts.command("test")(send_test)
    app.add_typer(alerts, name="alerts")


def print_rules() -> None:
    """Print the alert rules with the thresholds of this configuration (`alerts`, `node.max_temperature_c`,
    `tls.certificate_hours`), for Prometheus' `rule_files`."""
    # Imported only now: reading the settings takes time that no other command should need.
    from gpu_platform.alerting.rules import rules
    from gpu_platform.settings.reading import read_settings

    session.write(rules(read_settings()).rstrip())


@grouped_options
def send_test(
    target: Annotated[str | None, typer.Option(metavar="NAME", help="Only this one.", show_default=False)] = None,
    *,
    listing: ListingOptions,
) -> None:
    """Send a test message to the targets of `notifications`, and say what came of it for each. The exit code is 1 if
    one did not take it, or if there is none."""
    from service.cli.show.list_columns import DELIVERIES, show_deliveries

    shown = listing.listing(DELIVERIES)
    with session.service() as client:
        found = client.test_notifications(target)
    show_deliveries(shown, (one.model_dump(mode="json") for one in found))
    if shown.is_for_people and not found:
        session.say("nobody is told: notifications.targets of the control workers is empty")
    if not found or not all(one.sent for one in found):
        raise typer.Exit(session.FAILED)
