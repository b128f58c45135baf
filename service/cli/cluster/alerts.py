"""``gpu-platform alerts …``: alert rules for Prometheus."""

from __future__ import annotations

import typer

from service.cli import session

alerts = typer.Typer(help="Alert rules for Prometheus.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands for alerts."""
    alerts.command("rules")(print_rules)
    alerts.callback()(_group)
    app.add_typer(alerts, name="alerts")


def _group() -> None:
    """Without it typer would take a group with one command for that command."""


def print_rules() -> None:
    """Print the alert rules with the thresholds of this configuration (`alerts`, `node.max_temperature_c`,
    `tls.certificate_hours`), for Prometheus' `rule_files`."""
    # Imported only now: reading the settings takes time that no other command should need.
    from gpu_platform.alerting.rules import rules
    from gpu_platform.settings import Settings

    session.write(rules(Settings()).rstrip())
