"""What deploy/ says fits the code: settings exist, modules exist, files parse."""

from __future__ import annotations

import configparser
import importlib.util
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from gpu_platform.domain.jobs.ranks import max_ranks
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.identity import names
from gpu_platform.identity.certificates import CertificateFiles
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.settings import Settings
from service.cli.app import app as cli

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


@pytest.mark.parametrize("name", ["gpu-platform.example.yaml", "gpu-platform-node.example.yaml"])
def test_an_example_configuration_is_understood(name: str) -> None:
    settings = yaml.safe_load((ROOT / "deploy" / name).read_text())
    assert_known(settings, Settings)
    Settings.model_validate(settings)
    if "scheduler" in settings:
        read_policy(settings["scheduler"]["policy"])


def test_a_host_of_the_example_reaches_temporal_by_the_gateway_with_the_certificate_that_it_gets() -> None:
    control, host = (
        Settings.model_validate(yaml.safe_load((ROOT / "deploy" / name).read_text()))
        for name in ("gpu-platform.example.yaml", "gpu-platform-node.example.yaml")
    )
    assert control.tls.enabled
    assert host.tls.enabled
    assert host.api_url == control.api_url
    assert host.temporal.address.endswith(f":{control.gateway.port}")
    assert host.temporal.namespace == control.temporal.namespace
    files = CertificateFiles.of(host.tls, host.state_dir, names.node(host.node.name))
    assert (host.temporal.tls_cert, host.temporal.tls_ca) == (files.certificate, files.trusted)
    assert host.temporal.tls_server_name == names.dns_name(names.GATEWAY, host.tls.trust_domain)
    assert host.state_dir != control.state_dir


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


def test_the_node_worker_has_a_directory_that_no_other_account_owns() -> None:
    """systemd gives a StateDirectory to the account of the unit that starts last."""
    owners: dict[str, set[str]] = {}
    for unit in UNITS:
        text = unit.read_text()
        directory, user = (re.search(rf"^{key}=(.+)$", text, re.MULTILINE) for key in ("StateDirectory", "User"))
        assert directory
        assert user
        owners.setdefault(directory[1], set()).add(user[1])
        assert f"\nEnvironment=GPU_PLATFORM_STATE_DIR=/var/lib/{directory[1]}\n" in text
        assert f"\nWorkingDirectory=/var/lib/{directory[1]}\n" in text
    assert owners == {"gpu-platform": {"gpu-platform"}, "gpu-platform-node": {"root"}}


def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_compose_starts_our_processes_with_settings_that_exist() -> None:
    services = compose()["services"]
    ours = {name: service for name, service in services.items() if service["image"] == "gpu-platform"}
    assert set(ours) == {"setup", "keys", "service", "control", "scheduler", "gateway"}
    for name, service in ours.items():
        if name not in ("setup", "keys"):
            assert importlib.util.find_spec(service["command"][-1])
        for variable in set(service["environment"]) - {"GPU_PLATFORM_CA_FILE"}:
            settings: dict[str, Any] = {}
            *outer, setting = variable.removeprefix("GPU_PLATFORM_").lower().split("__")
            inner = settings
            for part in outer:
                inner = inner.setdefault(part, {})
            inner[setting] = ""
            assert_known(settings, Settings)
    for service in services.values():
        for needed in service.get("depends_on", {}):
            assert needed in services


def test_compose_opens_only_ports_with_tls_to_other_machines() -> None:
    services, networks = compose()["services"], compose()["networks"]
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert ports == {
        "service": ["${BIND_ADDRESS:-127.0.0.1}:8700:8700"],
        "gateway": ["${BIND_ADDRESS:-127.0.0.1}:7243:7243"],
        "temporal-ui": ["127.0.0.1:8080:8080"],
    }
    assert "insecure" not in (ROOT / "docker-compose.yml").read_text().lower()
    assert services["service"]["environment"]["GPU_PLATFORM_TLS__ENABLED"] == "true"
    inside = {name for name, network in networks.items() if (network or {}).get("internal")}
    for name in ("postgres", "temporal", "temporal-schema", "temporal-namespace", "scheduler"):
        assert set(services[name]["networks"]) <= inside, name


def test_compose_names_images_by_digest_and_keeps_keys_apart() -> None:
    services = compose()["services"]
    for service in services.values():
        assert service["image"] == "gpu-platform" or re.search(r"@sha256:[0-9a-f]{64}\}$", service["image"])

    def has(volume: str) -> set[str]:
        return {
            name
            for name, service in services.items()
            if any(mounted.split(":")[0] == volume for mounted in service.get("volumes", []))
        }

    assert has("service") == {"setup", "service"}, "the CA"
    assert has("control") == {"setup", "control", "keys"}, "the key that signs orders"
    assert has("passwords") == {"setup", "postgres", "postgres-roles"}


@pytest.mark.parametrize("script", sorted((ROOT / "deploy").rglob("*.sh")), ids=lambda path: path.name)
def test_a_script_can_be_read_by_the_shell(script: Path) -> None:
    assert subprocess.run(["sh", "-n", str(script)], check=False).returncode == 0


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
