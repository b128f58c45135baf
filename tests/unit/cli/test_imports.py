"""What a command does not need is not imported (ADR 93): the real limit is time, which no test can measure here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gpu_platform.cli.commands import COMMANDS, _registered

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[3]
HEAVY = ("pydantic", "httpx", "asyncio", "temporalio", "fastapi", "yaml", "numpy", "structlog", "importlib.metadata")
PARSER = ("typer", "rich")
_RUN = """
import json, sys
from gpu_platform.cli.main import run
sys.argv = ["gpu-platform", *sys.argv[1:]]
try:
    run()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


class _Service(BaseHTTPRequestHandler):
    """Answers as the service would: the command line itself is what is tested."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer({"items": [], "next_cursor": None})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({"id": "j-1", "warnings": []})

    def _answer(self, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Service) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (["--version"], (*HEAVY[:-1], *PARSER, "http.client")),
        (["jobs", "list", "--limit", "5", "--output", "csv"], (*HEAVY, "rich")),
        (["jobs", "list"], (*HEAVY, "rich")),
        (["submit", "--gpus", "2", "--time", "2h", "--", "true"], (*HEAVY, "rich")),
    ],
    ids=lambda value: " ".join(value[:2]),
)
def test_commands_import_only_what_they_need(service: str, arguments: list[str], unwanted: tuple[str, ...]) -> None:
    env = {**os.environ, "GPU_PLATFORM_API_URL": service, "GPU_PLATFORM_TOKEN": "gpt_x"}
    ran = subprocess.run([sys.executable, "-c", _RUN, *arguments], env=env, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    modules = set(json.loads(ran.stderr.splitlines()[-1]))
    assert "gpu_platform.cli.main" in modules
    assert sorted(modules & set(unwanted)) == []


def test_help_imports_nothing_heavy() -> None:
    ran = subprocess.run([sys.executable, "-c", _RUN, "--help"], capture_output=True, text=True, timeout=60)
    heavy = {"temporalio", "fastapi", "httpx", "yaml", "numpy"}
    assert set(json.loads(ran.stderr.splitlines()[-1])) & heavy == set()


def test_each_command_is_where_the_table_says() -> None:
    for module in set(COMMANDS.values()):
        assert set(_registered(module)) == {name for name, home in COMMANDS.items() if home == module}


# -- what `pip install gpu-platform` installs is enough ---------------------------------------------

IN_THE_CLIENT = ("cli", "client", "domain", "executor", "pages", "slurm")
"""Folders of the library that a client uses, with ``gpu_platform/job.py``."""
_IMPORT = """
import sys
from importlib import import_module
before = set(sys.modules)
for name in sys.argv[1:]:
    import_module(name)
print(*(set(sys.modules) - before))
"""


PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def needed() -> dict[str, Distribution]:
    """The distributions that pip installs with ours, if nobody asks for an extra."""
    waiting: list[str] = PROJECT["dependencies"]
    found: dict[str, Distribution] = {}
    while waiting:
        wanted = Requirement(waiting.pop())
        name = canonicalize_name(wanted.name)
        if name not in found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found[name] = distribution(name)
            waiting = [*waiting, *(found[name].requires or ())]
    return found


def modules_of_the_client() -> list[str]:
    paths = [ROOT / "gpu_platform" / "job.py"]
    for folder in IN_THE_CLIENT:
        paths += sorted((ROOT / "gpu_platform" / folder).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names if not name.endswith(".rpc_sender")]  # it needs an extra


@pytest.fixture(scope="module")
def client_only(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A Python that finds our package and what pip installs with it, and nothing else."""
    site = tmp_path_factory.mktemp("site")
    (site / "gpu_platform").symlink_to(ROOT / "gpu_platform")
    for one in needed().values():
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            (site / name).symlink_to(str(one.locate_file(name)))
    return ["env", f"PYTHONPATH={site}", sys.executable, "-P", "-S"]


def test_importing_the_client_loads_no_package_of_the_cluster() -> None:
    modules = modules_of_the_client()
    assert len(modules) > 200
    ran = subprocess.run([sys.executable, "-c", _IMPORT, *modules], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    loaded = {name.partition(".")[0] for name in ran.stdout.split()}
    extras = [*PROJECT["optional-dependencies"]["cluster"], *PROJECT["optional-dependencies"]["grpc"]]
    heavy = {canonicalize_name(Requirement(one).name) for one in extras} - {"gpu-platform"}
    of = {name: {canonicalize_name(one) for one in those} for name, those in packages_distributions().items()}
    assert {"numpy", "google", "grpc", "temporalio", "sqlmodel", "ortools", "fastapi", "structlog"} <= {
        name for name, those in of.items() if those & heavy
    }
    assert [name for name in loaded if of.get(name, set()) & heavy] == []
    assert {"sqlalchemy", "service", "workers", "workflows", "activities"} & loaded == set()


def test_a_client_needs_only_its_own_packages(client_only: list[str], tmp_path: Path) -> None:
    command = [*client_only, "-c", _IMPORT, *modules_of_the_client()]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["jobs", "list"],
        ["jobs", "list", "--output", "yaml"],
        ["submit", "--gpus", "2", "--time", "2h", "--", "true"],
        ["hosts", "list"],
    ],
    ids=" ".join,
)
def test_commands_run_where_only_the_client_is_installed(
    client_only: list[str], service: str, arguments: list[str], tmp_path: Path
) -> None:
    env = {**os.environ, "GPU_PLATFORM_API_URL": service, "GPU_PLATFORM_TOKEN": "gpt_x"}
    ran = subprocess.run(
        [*client_only, "-c", _RUN, *arguments], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("arguments", "install"),
    [
        (["up"], "gpu-platform-cluster"),
        (["doctor"], "gpu-platform-cluster"),
        (["tokens", "create", "--admin"], "gpu-platform-cluster"),
        (["ca", "show"], "gpu-platform-cluster"),
        (["keys", "list"], "gpu-platform-cluster"),
        (["alerts", "rules"], "gpu-platform-cluster"),
        (["simulate", "jobs.jsonl"], "gpu-platform-cluster"),
        (["machines", "check", "dgx-h100"], "gpu-platform-cluster"),
        (["fleet", "list"], "gpu-platform-cluster"),
        (["--transport", "grpc", "jobs", "list"], "'gpu-platform[grpc]'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_of_the_cluster_says_what_to_install(
    client_only: list[str], arguments: list[str], install: str, tmp_path: Path
) -> None:
    command = [*client_only, "-m", "gpu_platform.cli.main", *arguments]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert ran.returncode in (1, 2)
    assert f"pip install {install}" in ran.stderr
    assert "Traceback" not in ran.stderr
