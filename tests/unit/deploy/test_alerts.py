"""Alert rules: they follow the configuration, Prometheus understands them, each is tested and has a runbook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from gpu_platform.alerting.rules import alerts, rules
from gpu_platform.cli.app import app as cli
from gpu_platform.settings import Settings
from tests.support.prometheus import needs, run

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RUNBOOKS = (ROOT / "docs" / "how-to" / "runbooks.md").read_text()
NAMES = [alert.name for group in alerts(Settings()).values() for alert in group]


def test_the_rules_in_deploy_are_those_of_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    written = (PROMETHEUS / "alerts.yaml").read_text()
    assert written == rules(Settings()), "run: gpu-platform alerts rules > deploy/prometheus/alerts.yaml"
    assert CliRunner().invoke(cli, ["alerts", "rules"]).stdout == written


def test_thresholds_come_from_the_configuration() -> None:
    settings = Settings.model_validate(
        {
            "node": {"max_temperature_c": 71},
            "tls": {"certificate_hours": 12},
            "alerts": {
                "gpu_memory_ratio": 0.5,
                "utilization_low_ratio": 0.2,
                "utilization_high_ratio": 0.7,
                "utilization_min": 45,
                "queue_wait_h": 2,
                "leader_silent_s": 17,
                "feed_lag_s": 3,
                "temporal_task_s": 1.5,
                "disk_free_ratio": 0.25,
                "runbook_url": "https://wiki.example/runbooks",
            },
        }
    )
    found = {alert.name: (alert.expr, alert.for_) for group in alerts(settings).values() for alert in group}
    for name, end in (
        ("GpuTooHot", ">= 71"),
        ("GpuMemoryFull", "> 0.5"),
        ("JobUtilizationLow", "< 0.2"),
        ("ClusterUtilizationHigh", "> 0.7"),
        ("QueueWaitLong", "> 7200"),
        ("NoLeader", "> 17"),
        ("FeedLag", "> 3"),
        ("TemporalTasksLate", "> 1.5"),
        ("HostDiskLow", "< 0.25"),
        ("CertificateExpires", "< 7200"),
    ):
        assert found[name][0].endswith(end), name
    assert "[45m]" in found["JobUtilizationLow"][0]
    assert found["JobUtilizationLow"][1] == "45m"
    first = yaml.safe_load(rules(settings))["groups"][0]["rules"][0]
    assert first["annotations"]["runbook_url"] == "https://wiki.example/runbooks#gputoohot"


def test_each_alert_has_a_runbook_with_its_severity() -> None:
    written = dict(re.findall(r"^## (\w+)\n\n\*(\w+)\.\*", RUNBOOKS, re.MULTILINE))
    assert written == {alert.name: alert.severity for group in alerts(Settings()).values() for alert in group}
    assert list(written) == NAMES, "in the order of the rules"


def test_commands_of_the_runbooks_exist() -> None:
    reference = (ROOT / "docs" / "reference" / "cli.md").read_text()
    known = {tuple(title.split()) for title in re.findall(r"^## `gpu-platform (.+)`", reference, re.MULTILINE)}
    asked = re.findall(r"`gpu-platform ([^`]+)`", RUNBOOKS)
    assert len(asked) > 15
    assert [text for text in asked if not {tuple(text.split()[:1]), tuple(text.split()[:2])} & known] == []


def test_metrics_of_the_rules_are_documented() -> None:
    reference = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    documented = set(re.findall(r"`((?:gpu_platform|topology|temporal)_\w+)`", reference))
    used = set(re.findall(r"\b(?:gpu_platform|topology|temporal)_\w+", rules(Settings())))
    assert {name.removesuffix("_bucket") for name in used} <= documented


@needs("promtool")
def test_prometheus_takes_the_rules() -> None:
    run("promtool", "check", "rules", str(PROMETHEUS / "alerts.yaml"))


@needs("promtool")
def test_each_alert_fires_when_it_should_and_not_before() -> None:
    run("promtool", "test", "rules", str(PROMETHEUS / "alerts.test.yaml"))


def test_each_alert_has_a_test_in_which_it_fires() -> None:
    tests = yaml.safe_load((PROMETHEUS / "alerts.test.yaml").read_text())["tests"]
    fired = {
        name
        for group in tests
        for one in group.get("promql_expr_test", [])
        for sample in one["exp_samples"]
        for name in re.findall(r'alertname="(\w+)"', sample["labels"])
    }
    fired |= {one["alertname"] for group in tests for one in group.get("alert_rule_test", []) if one["exp_alerts"]}
    assert fired == set(NAMES)


@needs("promtool")
@pytest.mark.parametrize("name", ["prometheus.example.yaml", "prometheus.up.yaml"])
def test_prometheus_takes_the_examples(name: str) -> None:
    run("promtool", "check", "config", "--syntax-only", str(PROMETHEUS / name))


def test_the_examples_ask_at_the_ports_of_the_settings_under_the_names_that_the_rules_use() -> None:
    settings = Settings()
    ports = {
        "gpu-platform-service": settings.service.port,
        "gpu-platform-scheduler": settings.scheduler.metrics_port,
        "gpu-platform-control": settings.control.metrics_port,
        "gpu-platform-gateway": settings.gateway.metrics_port,
        "gpu-platform-node-dgx-a": settings.node.port,
        "gpu-platform-node": settings.node.port,
    }
    for name in ("prometheus.example.yaml", "prometheus.up.yaml"):
        for job in yaml.safe_load((PROMETHEUS / name).read_text())["scrape_configs"]:
            first = job["static_configs"][0]["targets"][0]
            assert first.endswith(f":{ports[job['job_name']]}")
    assert len(set(ports.values())) == 5


@needs("amtool")
def test_alertmanager_takes_the_example() -> None:
    run("amtool", "check-config", str(PROMETHEUS / "alertmanager.example.yaml"))
