"""Processes start in any order: they wait for what will come and say so, and end with one line for what will not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import text

from gpu_platform.identity import key_ring
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.node.system.ports import free_port
from gpu_platform.store import Store
from gpu_platform.store.migrate import newest_revision
from tests.support.api_server import application, in_process
from tests.support.forking import SERVER
from tests.support.lines import whole_lines
from tests.support.postgres import Databases
from tests.support.relay import Relay
from tests.support.temporal_server import client_of_new_namespace, temporal_binary
from tests.support.waiting import eventually
from workers.local.forked.client import Process

PROCESSES = ("service", "control", "scheduler", "gateway", "node")
WITH_DATABASE = PROCESSES[:-1]
AWAY = "127.0.0.1:1"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of processes that find neither Temporal nor other services of this machine."""
    state = tmp_path / "state"
    key_ring.create(state / "keys" / "ring.json")
    CertificateAuthority.init(state / "identity" / "ca")
    given = {
        "STATE_DIR": str(state),
        "KEY_RING": str(state / "keys" / "ring.json"),
        "API_URL": f"http://{AWAY}",
        "TEMPORAL__ADDRESS": AWAY,
        "SERVICE__PORT": str(free_port()),
        "GATEWAY__PORT": str(free_port()),
        "NODE__NAME": "a",
        "NODE__SIMULATE": "dgx-h100",
    }
    own = {name: value for name, value in os.environ.items() if not name.startswith("GPU_PLATFORM_")}
    return own | {f"GPU_PLATFORM_{name}": value for name, value in given.items()}


def argv(process: str) -> list[str]:
    return [sys.executable, "-P", "-m", f"workers.{process}"]


def told(ran: subprocess.CompletedProcess[str]) -> str:
    """The one line that a process writes that cannot start."""
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    assert "Traceback" not in ran.stderr
    lines = [json.loads(line) for line in ran.stderr.splitlines() if line.startswith("{")]  # gRPC writes lines, too
    [line] = [line for line in lines if line["level"] == "error"]
    assert line["event"] == "process.cannot_start"
    return line["error"]


class Started:
    """Processes that run until the end of a test, with what they logged."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._processes: dict[str, Process] = {}

    def start(self, process: str, env: dict[str, str]) -> None:
        with self._log(process).open("wb") as log:
            self._processes[process] = SERVER.start(
                argv(process), env, stdout=log.fileno(), stderr=log.fileno(), cwd=self._directory, dies_with_parent=True
            )

    def lines(self, process: str, event: str, **facts: str) -> list[dict[str, Any]]:
        lines = whole_lines(self._log(process))
        assert self._processes[process].returncode is None, lines
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in found if line["event"] == event and facts.items() <= line.items()]

    async def says(self, process: str, event: str, error: str = "", **facts: str) -> None:
        await eventually(
            lambda: [line for line in self.lines(process, event, **facts) if error in line.get("error", "")],
            f"{process} says {event} {error}",
        )

    async def end(self) -> None:
        codes: dict[str, int] = {}
        for name, process in self._processes.items():
            process.send_signal(signal.SIGTERM)
            codes[name] = await process.wait()
        logs = {name: self._log(name).read_text() for name in self._processes}
        wrong = [log[max(0, log.index("Traceback") - 2000) :] for log in logs.values() if "Traceback" in log]
        assert not wrong, "\n".join(wrong)
        assert set(codes.values()) <= {0, -signal.SIGTERM}, "\n".join(logs.values())  # uvicorn ends by the signal

    def _log(self, process: str) -> Path:
        return self._directory / f"{process}.log"


@pytest.fixture
async def started(tmp_path: Path) -> AsyncIterator[Started]:
    started = Started(tmp_path)
    yield started
    await started.end()


@pytest.mark.parametrize("process", PROCESSES)
def test_wrong_settings_end_every_process_with_one_line(process: str, env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text("service:\n  prot: 80\nlease_ttl_s: 0\n")
    env |= {"GPU_PLATFORM_CONFIG": str(file), "GPU_PLATFORM_NODE__SCRUB": "sometimes"}
    said = told(SERVER.run(argv(process), env, cwd=tmp_path, timeout_s=30))
    assert f"service.prot ({file}, line 2): there is no such setting; did you mean service.port?" in said
    assert f"lease_ttl_s is 0 ({file}, line 3): should be greater than or equal to 1" in said
    assert "node.scrub is 'sometimes' (variable GPU_PLATFORM_NODE__SCRUB): should be 'never'," in said


@pytest.mark.parametrize(("process", "setting"), [("service", "service.port"), ("gateway", "gateway.port")])
def test_a_port_in_use_is_told_with_its_setting(
    process: str, setting: str, env: dict[str, str], sqlite_store: Store
) -> None:
    env["GPU_PLATFORM_DATABASE_URL"] = str(sqlite_store.url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env[f"GPU_PLATFORM_{setting.replace('.', '__').upper()}"] = str(port)
        said = told(SERVER.run(argv(process), env, timeout_s=30))
    assert said.startswith(f"{setting}: cannot listen on 127.0.0.1:{port}")
    assert "end what uses the port" in said
    assert f"or set another {setting}" in said


async def test_a_second_gateway_does_not_share_the_port_of_the_first(
    env: dict[str, str], sqlite_store: Store, started: Started
) -> None:
    env["GPU_PLATFORM_DATABASE_URL"] = str(sqlite_store.url)
    started.start("gateway", env)
    await started.says("gateway", "gateway.serves")
    said = told(await asyncio.to_thread(SERVER.run, argv("gateway"), env, timeout_s=30))
    assert said.startswith("gateway.port: cannot listen on")


def test_a_port_in_use_with_a_proxy_before_it_ends_a_node_worker(env: dict[str, str]) -> None:
    """The proxy leads to this port. Without one, the node worker takes another, and reports that."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env |= {"GPU_PLATFORM_NODE__PORT": str(port), "GPU_PLATFORM_NODE__ADVERTISED_URL": "http://proxy:1"}
        said = told(SERVER.run(argv("node"), env, timeout_s=30))
    assert said.startswith(f"node.port: cannot listen on 127.0.0.1:{port} (Address already in use); end what")


@pytest.mark.parametrize("process", ["control", "scheduler", "gateway"])
async def test_a_port_of_metrics_in_use_ends_no_process_and_is_told_with_its_setting(
    process: str, env: dict[str, str], sqlite_store: Store, started: Started
) -> None:
    env["GPU_PLATFORM_DATABASE_URL"] = str(sqlite_store.url)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env[f"GPU_PLATFORM_{process.upper()}__METRICS_PORT"] = str(port)
        started.start(process, env)
        await started.says(process, "metrics.served")
        [line] = started.lines(process, "metrics.port_taken")
        await started.says(process, "gateway.serves" if process == "gateway" else "process.waits")
    assert line["message"].startswith(
        f"{process}.metrics_port: Prometheus looks for them at 127.0.0.1:{port}; end what"
    )
    assert started.lines(process, "metrics.served")[0]["port"] != port


def test_a_state_directory_that_cannot_be_made_is_told(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env["GPU_PLATFORM_STATE_DIR"] = str(tmp_path / "file" / "state")
    assert "cannot be made (Not a directory): name one" in told(SERVER.run(argv("node"), env, timeout_s=30))
    assert "the service must be able to write" in told(SERVER.run(argv("service"), env, timeout_s=30))


@pytest.mark.parametrize("process", WITH_DATABASE)
def test_a_newer_schema_is_refused_by_its_version(process: str, env: dict[str, str], sqlite_store: Store) -> None:
    with sqlite_store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    env["GPU_PLATFORM_DATABASE_URL"] = str(sqlite_store.url)
    said = told(SERVER.run(argv(process), env, timeout_s=30))
    assert "the database has schema 9999, which a newer release made: this one, gpu-platform 0." in said
    assert f"knows schemas up to {newest_revision()}. Install that release here, too." in said


async def test_a_newer_schema_may_be_accepted(env: dict[str, str], sqlite_store: Store, started: Started) -> None:
    with sqlite_store.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    env |= {"GPU_PLATFORM_DATABASE_URL": str(sqlite_store.url), "GPU_PLATFORM_NEWER_SCHEMA": "accept"}
    started.start("control", env)
    await started.says("control", "process.waits", waits_for="temporal")
    assert started.lines("control", "store.schema_is_newer")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda url: url.replace("postgres@", "stranger:s3cret@"), 'role "stranger" does not exist; set the right'),
        (lambda url: f"{url}_not_made", "does not exist; create it, owned by this account"),
    ],
    ids=["account", "database"],
)
def test_a_database_that_refuses_is_not_waited_for(change, said: str, env: dict[str, str], postgres_url: str) -> None:
    env["GPU_PLATFORM_DATABASE_URL"] = change(postgres_url)
    message = told(SERVER.run(argv("service"), env, timeout_s=30))
    assert said in message
    assert "s3cret" not in message


async def test_processes_wait_for_a_database_that_comes_later(
    env: dict[str, str], postgres_databases: Databases, started: Started
) -> None:
    name, port = postgres_databases.create(), free_port()
    server = urlsplit(postgres_databases.url(name))
    env["GPU_PLATFORM_DATABASE_URL"] = server._replace(netloc=f"postgres@127.0.0.1:{port}").geturl()
    for process in WITH_DATABASE:
        started.start(process, env)
    for process in WITH_DATABASE:
        await started.says(process, "process.waits", "Connection refused", waits_for="database")
    assert not started.lines("service", "process.goes_on", waited_for="database")
    async with Relay(f"{server.hostname}:{server.port}", port=port).serving():
        for process in WITH_DATABASE:
            await started.says(process, "process.goes_on", waited_for="database")
        await started.says("gateway", "gateway.serves")
        url = f"http://127.0.0.1:{env['GPU_PLATFORM_SERVICE__PORT']}/healthz"
        async with httpx.AsyncClient(trust_env=False) as http:
            await eventually(lambda: _answers(http, url), "the service serves")
        await started.end()
    postgres_databases.drop(name)


async def test_processes_wait_for_temporal_and_for_its_namespace(
    env: dict[str, str], temporal_address: str, started: Started
) -> None:
    waiting, port = ("control", "scheduler", "node"), free_port()
    existing = await client_of_new_namespace(temporal_address)
    namespace = f"{existing.namespace}-later"
    env |= {
        "GPU_PLATFORM_TEMPORAL__ADDRESS": f"127.0.0.1:{port}",
        "GPU_PLATFORM_TEMPORAL__NAMESPACE": namespace,
    }
    for process in waiting:
        started.start(process, env)
    for process in waiting:
        await started.says(process, "process.waits", waits_for="temporal")
    command = f"`temporal operator namespace create --address 127.0.0.1:{port} --namespace {namespace} --retention 72h`"
    async with Relay(temporal_address, port=port).serving():
        for process in waiting:
            await started.says(
                process,
                "process.waits",
                f"has no namespace '{namespace}' (temporal.namespace). Make it",
                waits_for="temporal",
            )
            assert command in started.lines(process, "process.waits", waits_for="temporal")[-1]["error"]
        await _make_namespace(temporal_address, namespace)
        for process in waiting:
            await started.says(process, "process.goes_on", waited_for="temporal")
        await started.end()


async def test_a_service_without_its_namespace_says_how_to_make_it(sqlite_store: Store, temporal_address: str) -> None:
    app = application(sqlite_store, temporal_address, namespace="nowhere")
    async with in_process(app) as http:
        ready = await http.get("/readyz")
        submitted = await http.post("/v1/jobs", json={"command": ["true"]})
    for answer in (ready, submitted):
        assert answer.status_code == 503
        assert "has no namespace 'nowhere' (temporal.namespace). Make it: `temporal operator" in answer.json()["detail"]


async def _answers(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(url)).is_success
    except httpx.TransportError:
        return False


async def _make_namespace(address: str, namespace: str) -> None:
    """With the command that the processes name."""
    made = await asyncio.create_subprocess_exec(
        *(temporal_binary(), "operator", "namespace", "create", "--retention", "72h"),
        *("--address", address, "--namespace", namespace),
        stdout=subprocess.DEVNULL,
    )
    assert await made.wait() == 0
