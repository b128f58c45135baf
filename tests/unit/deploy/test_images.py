"""The two images: what they are made from, as whom they run, and that their parts fit what docs and code say.

No container runtime is needed: the Dockerfile is read, and the health checks are run against real servers.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import shlex
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.identity import names
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import CertificateFiles, TlsContexts, make_key_and_request
from gpu_platform.node.system.ports import free_port
from gpu_platform.settings import NodeSettings, ServiceSettings, Settings, TlsSettings
from gpu_platform.store import Store
from service.app import create_app
from service.server import Server
from tests.support.api_server import ADMIN, sign_in
from tests.support.waiting import eventually
from workers import healthcheck

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
UNIT = ROOT / "deploy" / "systemd" / "gpu-platform-node.service"


@dataclass
class Stage:
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def last(self, name: str) -> str | None:
        return next((rest for found, rest in reversed(self.instructions) if found == name), None)


def stages() -> dict[str, Stage]:
    """The stages of the Dockerfile by name."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    found: dict[str, Stage] = {}
    stage = Stage("")
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if not line.strip():
            continue
        name, rest = line.split(maxsplit=1)
        if name == "ARG" and not found:  # for FROM
            continue
        if name == "FROM":
            base, _, called = rest.partition(" AS ")
            stage = found[called] = Stage(base)
        stage.instructions.append((name, rest))
    return found


def compose_node() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / "compose.node.yml").read_text())["services"]["node"]


def packages(command: str) -> set[str]:
    """What ``apt-get install`` installs with bubblewrap."""
    installs = re.search(r"apt-get install ((?:-\S+ )*bubblewrap(?: [\w.+-]+)*)", command)
    assert installs
    return {word for word in installs[1].split() if not word.startswith("-")}


def test_the_base_is_pinned_by_digest_and_nothing_else_is_pulled() -> None:
    found = stages()
    assert set(found) == {"base", "node", "control-plane"}
    assert found["base"].base == "${PYTHON_IMAGE}"
    assert re.search(r"^ARG PYTHON_IMAGE=\S+@sha256:[0-9a-f]{64}$", DOCKERFILE.read_text(), re.MULTILINE)
    assert {found["node"].base, found["control-plane"].base} == {"base"}
    assert list(found)[-1] == "control-plane", "what is built if nobody says which"


def test_packages_are_installed_from_the_lock_file_with_hashes() -> None:
    commands = [rest for name, rest in stages()["base"].instructions if name == "RUN"]
    installs = [shlex.split(command) for command in commands]
    assert "--require-hashes" in installs[0]
    assert "requirements/runtime.lock" in installs[0]
    assert {"--no-deps", "--no-build-isolation"} <= set(installs[1]), "the project itself downloads nothing"


def test_what_is_copied_reaches_the_build() -> None:
    """``.dockerignore`` hides all that it does not name."""
    shown = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {word for name, rest in stages()["base"].instructions if name == "COPY" for word in rest.split()[:-1]}
    assert copied == shown
    assert all((ROOT / path).exists() for path in copied)


def test_the_control_plane_has_an_account_without_privileges_that_setup_knows() -> None:
    stage = stages()["control-plane"]
    assert stage.last("USER") == "gpu-platform"
    account = re.search(r"useradd .*--uid (\d+)", str(stage.last("RUN")))
    assert account
    assert f"\nplatform={account[1]} " in (ROOT / "deploy" / "compose" / "setup.sh").read_text()


def test_the_node_image_has_what_the_how_to_installs_on_a_host() -> None:
    inside = packages(str(stages()["node"].last("RUN")))
    assert inside == packages((ROOT / "docs" / "how-to" / "install.md").read_text())
    setup = (ROOT / "scripts" / "setup").read_text()
    installed = {name for line in re.findall(r"apt_install ([a-z0-9 ]+)", setup) for name in line.split()}
    assert {"bubblewrap", "nftables", "iproute2"} <= inside & installed


def test_the_node_image_keeps_its_records_where_the_unit_does() -> None:
    environment = dict(one.split("=", 1) for one in str(stages()["node"].last("ENV")).split())
    unit = dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    assert environment == unit
    volumes = {volume.split(":")[1] for volume in compose_node()["volumes"]}
    assert environment["GPU_PLATFORM_STATE_DIR"] in volumes
    assert str(Path(environment["GPU_PLATFORM_CONFIG"]).parent) in volumes
    assert stages()["node"].last("USER") == "root"


def test_the_node_container_is_privileged_and_says_so_in_the_how_to() -> None:
    node = compose_node()
    assert node["build"]["target"] in stages()
    assert (ROOT / "deploy" / node["build"]["context"] / node["build"]["dockerfile"]).samefile(DOCKERFILE)
    assert (node["privileged"], node["pid"], node["network_mode"], node["cgroup"]) == (True, "host", "host", "host")
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    for words in ("`privileged`", "`pid: host`", "ends the jobs of the host", "root on the host"):
        assert words in page


def test_commands_of_images_and_compose_are_modules_that_exist() -> None:
    commands = [json.loads(str(stages()[name].last("CMD"))) for name in ("node", "control-plane")]
    checks = [
        json.loads(str(stages()[name].last("HEALTHCHECK")).partition("CMD ")[2]) for name in ("node", "control-plane")
    ]
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    ours = {name: service for name, service in services.items() if service["image"] == "gpu-platform"}
    assert {service["build"]["target"] for service in ours.values()} == {"control-plane"}
    healths = {name: service["healthcheck"] for name, service in ours.items()}
    assert {name for name, check in healths.items() if not check.get("disable")} == {"service", "gateway"}
    checks += [healths[name]["test"][1:] for name in ("service", "gateway")]
    assert [check[-1] for check in checks] == ["node", "service", "service", "gateway"]
    for command in [*commands, *checks]:
        assert command[:3] == ["python", "-P", "-m"]
        assert importlib.util.find_spec(command[3])


# -- the health checks themselves ------------------------------------------------------------------


async def says(process: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of the health check of a process with these settings."""
    monkeypatch.setattr(healthcheck, "read_settings", lambda: settings)
    return await asyncio.to_thread(healthcheck.main, [process])


@pytest.fixture
async def service(request: pytest.FixtureRequest, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Settings]:
    """The settings of a service that runs; ``param``: with TLS. Like that of an image, it has no Temporal yet."""
    settings = Settings(
        state_dir=tmp_path,
        tls=TlsSettings(enabled=request.param),
        service=ServiceSettings(host="127.0.0.1", port=free_port()),
    )
    sign_in(sqlite_store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
    contexts = None
    if request.param:
        CertificateAuthority.init(tmp_path / "ca")
        ca = CertificateAuthority.load(tmp_path / "ca")
        files = CertificateFiles.of(settings.tls, tmp_path, names.SERVICE)
        key, asked = make_key_and_request()
        files.write(key, ca.sign(asked, names.SERVICE), ca.bundle())
        contexts = TlsContexts(files)
    app = create_app(settings, sqlite_store, tls=contexts)
    server = Server(app, settings.service.host, settings.service.port, contexts)
    task = asyncio.create_task(server.serve())
    await eventually(lambda: server.started, "the service to start")
    yield settings
    server.should_exit = True
    await task


@pytest.mark.parametrize("service", [False, True], ids=["http", "tls"], indirect=True)
async def test_a_service_that_answers_is_healthy_and_another_is_not(
    service: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    everywhere = service.model_copy(update={"service": service.service.model_copy(update={"host": "0.0.0.0"})})
    assert await says("service", everywhere, monkeypatch) == 0
    gone = service.model_copy(update={"service": service.service.model_copy(update={"port": free_port()})})
    assert await says("service", gone, monkeypatch) == 1
    assert "service does not answer" in capsys.readouterr().err
    other = service.model_copy(update={"tls": TlsSettings(enabled=not service.tls.enabled)})
    assert await says("service", other, monkeypatch) == 1, "it is not what the settings say"


async def test_gateway_and_node_worker_are_healthy_while_they_take_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        node = Settings(node=NodeSettings(name="a", address="127.0.0.1", port=port))
        gateway = Settings.model_validate({"gateway": {"host": "0.0.0.0", "port": port}})
        assert await says("node", node, monkeypatch) == 0
        assert await says("gateway", gateway, monkeypatch) == 0
    assert await says("node", node, monkeypatch) == 1
    assert await says("gateway", gateway, monkeypatch) == 1


async def test_a_node_worker_on_any_free_port_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await says("node", Settings.model_validate({"node": {"port": 0}}), monkeypatch) == 1
    assert "set it" in capsys.readouterr().err
    assert healthcheck.main(["scheduler"]) == 2
