"""``gpu-platform alerts rules``: Prometheus' alert rules, from the settings of this machine."""

from __future__ import annotations

from gpu_platform.cli import session


def print_rules() -> None:
    """Print the alert rules with the thresholds of this configuration (`alerts`, `node.max_temperature_c`,
    `tls.certificate_hours`), for Prometheus' `rule_files`."""
    # Imported only now: reading the settings takes time that no other command should need.
    from gpu_platform.alerting.rules import rules
    from gpu_platform.settings.reading import read_settings

    session.write(rules(read_settings()).rstrip())
