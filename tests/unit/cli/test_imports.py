"""What a command does not need is not imported (ADR 0080): the real limit is time, which no test can measure here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from service.cli.commands import COMMANDS, _registered

pytestmark = pytest.mark.processes

HEAVY = ("pydantic", "httpx", "asyncio", "temporalio", "fastapi", "yaml", "numpy", "structlog", "importlib.metadata")
PARSER = ("typer", "rich")
_RUN = """
import json, sys
from service.cli.main import run
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
    assert "service.cli.main" in modules
    assert sorted(modules & set(unwanted)) == []


def test_help_imports_nothing_heavy() -> None:
    ran = subprocess.run([sys.executable, "-c", _RUN, "--help"], capture_output=True, text=True, timeout=60)
    heavy = {"temporalio", "fastapi", "httpx", "yaml", "numpy"}
    assert set(json.loads(ran.stderr.splitlines()[-1])) & heavy == set()


def test_each_command_is_where_the_table_says() -> None:
    for module in set(COMMANDS.values()):
        assert set(_registered(module)) == {name for name, home in COMMANDS.items() if home == module}
