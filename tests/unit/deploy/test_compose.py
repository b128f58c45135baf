"""The compose files as a container runtime would take them: what each service is allowed, needs, mounts and is told."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
FILES = [ROOT / "docker-compose.yml", ROOT / "deploy" / "compose.node.yml"]
WITHOUT_HEALTH = {
    "temporal-ui": "nothing waits for it, and it only shows",
    "control": "no port: Temporal notices when it is silent",
    "scheduler": "no port: another one leads when it is silent",
}
"""Services that run on and have no health check, and why."""
SECRET = re.compile(r"PASSWORD|PASSWD|PWD|TOKEN|SECRET")


def services(file: Path = FILES[0]) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(file.read_text())["services"]


def ends(service: dict[str, Any]) -> bool:
    """Whether it does one thing and ends."""
    return service["restart"] == "no" or service["restart"].startswith("on-failure")


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
@pytest.mark.skipif(shutil.which("docker") is None, reason="Docker is not installed")
def test_docker_compose_takes_the_file(file: Path) -> None:
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0:
        pytest.skip("Docker Compose is not installed")
    command = ["docker", "compose", "--file", str(file), "config", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 0, done.stderr


def test_a_service_that_runs_on_has_a_health_check() -> None:
    found = services()
    without = {
        name
        for name, service in found.items()
        if not ends(service) and "test" not in service.get("healthcheck", {"disable": True})
    }
    assert without == set(WITHOUT_HEALTH)


def test_what_a_service_waits_for_can_happen() -> None:
    found = services()
    for name, service in found.items():
        for needed, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_completed_successfully":
                assert ends(found[needed]), f"{name} would wait for ever for {needed}"
            elif how["condition"] == "service_healthy":
                assert "test" in found[needed]["healthcheck"], f"{name} would wait for ever for {needed}"
            else:
                assert how["condition"] == "service_started"


def test_our_containers_have_no_privileges_and_write_only_to_their_volume() -> None:
    ours = {name: service for name, service in services().items() if service["image"] == "gpu-platform"}
    for service in ours.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "privileged" not in service
    assert [name for name, service in ours.items() if "user" in service or "cap_add" in service] == ["setup"]
    assert ours["setup"]["network_mode"] == "none", "root, but nobody reaches it"


def test_no_container_gains_privileges_or_reaches_docker_itself() -> None:
    for name, service in services().items():
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service
        assert "docker.sock" not in str(service)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_secrets_are_files_and_never_values(file: Path) -> None:
    for service in services(file).values():
        for variable, value in (service.get("environment") or {}).items():
            assert variable.endswith("_FILE") or not SECRET.search(variable), variable
            assert not re.search(r"://[^/@\s]*:[^/@\s]+@", str(value)), f"{variable} has a password in its URL"


def test_each_service_is_on_networks_that_are_declared_or_on_none() -> None:
    declared = set(yaml.safe_load(FILES[0].read_text())["networks"])
    used = [set(service["networks"]) for service in services().values() if "networks" in service]
    assert set().union(*used) == declared
    alone = {name for name, service in services().items() if service.get("network_mode") == "none"}
    assert alone == {"setup", "postgres-roles", "keys"}
    assert len(used) + len(alone) == len(services()), "no service is on Docker's default network"


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_what_is_mounted_exists_and_files_of_the_checkout_are_read_only(file: Path) -> None:
    volumes = set(yaml.safe_load(file.read_text()).get("volumes", {}))
    used: set[str] = set()
    for service in services(file).values():
        for mounted in service.get("volumes", []):
            source, _, rest = mounted.partition(":")
            if source.startswith("."):
                assert (file.parent / source).exists(), mounted
                assert rest.endswith(":ro"), mounted
            elif not source.startswith("/"):
                used.add(source)
    assert used == volumes


def test_temporal_on_two_networks_is_told_its_address() -> None:
    """Its image takes all addresses of the container as one if it listens on all of them."""
    temporal = services()["temporal"]
    assert len(temporal["networks"]) > 1
    assert temporal["environment"]["BIND_ON_IP"] == "0.0.0.0"
    assert temporal["environment"]["TEMPORAL_BROADCAST_ADDRESS"] == "127.0.0.1"


def test_go_programs_on_inner_networks_ask_no_name_server_for_txt_records() -> None:
    """Docker Engine 20.10 passes such questions on, and where no name server is reached there is never an answer."""
    document = yaml.safe_load(FILES[0].read_text())
    inner = {name for name, network in document["networks"].items() if (network or {}).get("internal")}
    for service in document["services"].values():
        tools = "TEMPORAL_TOOLS_IMAGE" in service["image"]
        if tools and set(service["networks"]) <= inner and "TEMPORAL_ADDRESS" in service["environment"]:
            assert service["environment"]["TEMPORAL_ADDRESS"].startswith("passthrough:///")


def test_every_variable_of_compose_is_in_the_example_of_env() -> None:
    text = "\n".join(file.read_text() for file in FILES)
    used = set(re.findall(r"\$\{(\w+)", text)) | set(re.findall(r"args: \[(\w+)\]", text))
    example = (ROOT / "deploy" / "environment.example").read_text()
    assert used == set(re.findall(r"^(?:# )?([A-Z_]+)=", example, re.MULTILINE))
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert {name for name in used if f"ARG {name}=" in dockerfile} == {"PYTHON_IMAGE"}
