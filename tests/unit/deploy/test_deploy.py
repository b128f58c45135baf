"""What deploy/ says fits the code: settings exist, modules exist, files parse."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from gpu_platform.domain.jobs.ranks import max_ranks
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.settings import Settings
from service.cli.main import app as cli

ROOT = Path(__file__).parents[3]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def assert_known(settings: dict[str, Any], model: type[BaseModel]) -> None:
    for name, value in settings.items():
        assert name in model.model_fields, f"no setting is called {name}"
        if isinstance(value, dict):
            annotation = model.model_fields[name].annotation
            if not isinstance(annotation, type) or not issubclass(annotation, BaseModel):  # a mapping: labels, a policy
                continue
            assert_known(value, annotation)


def test_the_example_configuration_is_understood() -> None:
    settings = yaml.safe_load((ROOT / "deploy" / "gpu-platform.example.yaml").read_text())
    assert_known(settings, Settings)
    Settings.model_validate(settings)
    read_policy(settings["scheduler"]["policy"])


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_a_process_that_exists(unit: Path) -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read(unit)
    module = re.search(r"-m (\S+)$", parser["Service"]["ExecStart"])
    assert module
    assert importlib.util.find_spec(module[1])


def test_ranks_outlive_the_node_workers_unit() -> None:
    text = (ROOT / "deploy" / "systemd" / "gpu-platform-node.service").read_text()
    assert "\nKillMode=process\n" in text


def test_compose_starts_our_processes_with_settings_that_exist() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    ours = {name: service for name, service in services.items() if service["image"] == "gpu-platform"}
    assert set(ours) == {"service", "control", "scheduler"}
    for service in ours.values():
        assert importlib.util.find_spec(service["command"][-1])
        for variable in service["environment"]:
            settings: dict[str, Any] = {}
            *outer, name = variable.removeprefix("GPU_PLATFORM_").lower().split("__")
            inner = settings
            for part in outer:
                inner = inner.setdefault(part, {})
            inner[name] = ""
            assert_known(settings, Settings)
    for service in services.values():
        for needed in service.get("depends_on", {}):
            assert needed in services


def test_the_image_has_every_package() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", (ROOT / "deploy" / "Dockerfile").read_text(), re.MULTILINE))
    assert copied == {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}


def test_the_example_job_is_a_job() -> None:
    spec = JobSpec.model_validate(yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text()))
    assert max_ranks(spec) == 4


def test_draining_on_stop_uses_commands_that_exist() -> None:
    text = (ROOT / "deploy" / "systemd" / "drain-on-stop.conf").read_text()
    commands = re.findall(r"^Exec\w+=-\S+/gpu-platform (.+)$", text, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["online", "drain"]
    for command in commands:
        ran = CliRunner().invoke(cli, [*shlex.split(command)[:1], "--help"])
        options = {word for word in shlex.split(command) if word.startswith("--")}
        assert all(option in ran.output for option in options)
