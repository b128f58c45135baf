"""The process that answers large requests: what others notice of it, and what happens if it or the service dies."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.store import Store
from service.http.body_limit import LARGE_BYTES
from service.http.large_requests import _large_route
from tests.support.api_server import ADMIN, bearer, sign_in
from tests.support.service_process import ServiceProcess, service_process
from tests.support.waiting import eventually
from workers import large_requests

STEPS = {"file": "steps: {a: {command: [x]}}", "dry_run": True}
LARGE_JOB = b'{"command": ["x"]}' + b" " * LARGE_BYTES
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the service of these tests keeps its database and its log."""
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def service(sqlite_template: Path, directory: Path) -> Iterator[ServiceProcess]:
    """One for all tests that leave it as they found it."""
    path = directory / "platform.db"
    shutil.copy(sqlite_template, path)
    with closing(Store(f"sqlite:///{path}")) as store:
        sign_in(store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
        with service_process(str(store.url), directory) as running:
            yield running


def starter(service: ServiceProcess) -> int:
    """The process that starts the one for large requests."""
    return service.pids[1]


def answering(service: ServiceProcess) -> int | None:
    """The process that answers large requests, if it runs."""
    return next(iter(service.pids[2:]), None)


def sockets(pid: int) -> list[Path]:
    """The named sockets that a process has open: one that listens, and one for each accepted connection."""
    inodes = {os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir()}
    lines = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()]
    return [Path(line[7]) for line in lines if len(line) > 7 and f"socket:[{line[6]}]" in inodes]


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def test_it_dies_in_the_middle_and_the_next_request_is_answered(service: ServiceProcess) -> None:
    first = answering(service)
    assert first is not None
    sent = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield b" "
        await sent.wait()
        yield json.dumps(STEPS).encode()

    async with httpx.AsyncClient(base_url=service.url, headers=bearer(), timeout=30) as http:
        waiting = asyncio.create_task(http.post("/v1/pipelines", content=slowly(), headers=JSON))
        await eventually(lambda: len(sockets(first)) == 2, "it to have begun with the request")
        os.kill(first, signal.SIGKILL)
        sent.set()
        lost = await waiting
        assert (lost.status_code, lost.json()["code"], lost.json()["retryable"]) == (503, "unavailable", True)
        assert "send the same again" in lost.json()["detail"]
        assert (await http.post("/v1/pipelines", json=STEPS)).status_code == 201
        assert answering(service) not in (first, None)


@pytest.mark.long
async def test_it_hangs_and_only_its_own_requests_wait_and_none_is_lost_that_it_had_not_begun(
    service: ServiceProcess,
) -> None:
    first = answering(service)
    assert first is not None
    async with httpx.AsyncClient(base_url=service.url, headers=bearer(), timeout=30) as http:
        os.kill(first, signal.SIGSTOP)
        waiting = asyncio.create_task(http.post("/v1/pipelines", json=STEPS))
        for _ in range(10):
            assert (await http.get("/v1/jobs", timeout=20)).status_code == 200
        assert not waiting.done()
        os.kill(first, signal.SIGKILL)
        assert (await waiting).status_code == 201, "the next one answers it"


@pytest.mark.long
async def test_it_is_slow_and_answers_at_last(service: ServiceProcess) -> None:
    pid = answering(service)
    assert pid is not None
    async with httpx.AsyncClient(base_url=service.url, headers=bearer(), timeout=30) as http:
        os.kill(pid, signal.SIGSTOP)
        waiting = asyncio.create_task(http.post("/v1/jobs:dry-run", content=LARGE_JOB, headers=JSON))
        await asyncio.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        assert (await waiting).status_code == 200


@pytest.mark.some(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_it_ends_with_its_service(sqlite_store: Store, tmp_path: Path, number: signal.Signals) -> None:
    with service_process(str(sqlite_store.url), tmp_path) as service:
        pids, socket = service.pids, sockets(starter(service))[0]
        assert len(pids) == 3
        assert socket.is_socket()
        os.kill(service.pid, number)
        await eventually(lambda: all(map(has_ended, pids)), "all of them to end")
        assert not socket.parent.exists()


@pytest.mark.long
async def test_a_service_that_cannot_start_it_any_more_is_started_again(sqlite_store: Store, tmp_path: Path) -> None:
    with service_process(str(sqlite_store.url), tmp_path) as service:
        os.kill(starter(service), signal.SIGKILL)
        await eventually(lambda: has_ended(service.pid), "the service to end")
    log = (tmp_path / "service.log").read_text()
    assert "what starts the process for large requests has died" in log
    assert "process.ended" in log


def test_it_is_forked_when_it_is_needed(sqlite_store: Store, tmp_path: Path) -> None:
    with service_process(str(sqlite_store.url), tmp_path, warm=False) as service:
        assert answering(service) is None
        assert httpx.post(f"{service.url}/v1/arrays", json={}, timeout=30).status_code == 401
        assert answering(service) is not None


async def test_it_knows_who_asks_and_nobody_can_say_otherwise(service: ServiceProcess, directory: Path) -> None:
    spoofed = {"X-Forwarded-For": "203.0.113.7", "X-Forwarded-Proto": "https"}
    async with httpx.AsyncClient(base_url=service.url, timeout=30) as http:
        stranger = await http.post("/v1/arrays", headers=spoofed, json={})
        known = await http.post("/v1/arrays", headers=bearer(), json={"job": {}, "array": {}})
    assert stranger.status_code == 401
    assert known.status_code == 422
    assert len(stranger.headers.get_list("x-request-id")) == len(stranger.headers.get_list("date")) == 1
    log = (directory / "service.log").read_text()
    assert "203.0.113.7" not in log
    assert "127.0.0.1" in log


async def test_metrics_name_the_routes(service: ServiceProcess) -> None:
    async with httpx.AsyncClient(base_url=service.url, headers=bearer(), timeout=30) as http:
        await http.post("/v1/pipelines", json=STEPS)
        metrics = (await http.get("/metrics")).text
    assert 'method="POST",route="/v1/pipelines",status="201"' in metrics.replace(" ", "")


LARGE = {"content-type": "application/json", "content-length": str(LARGE_BYTES + 1)}


@pytest.mark.parametrize(
    ("method", "path", "headers", "route"),
    [
        ("POST", "/v1/arrays", {}, "POST /v1/arrays"),
        ("POST", "/v1/pipelines", {}, "POST /v1/pipelines"),
        ("POST", "/v1/schedules", {}, "POST /v1/schedules"),
        ("PATCH", "/v1/arrays/a-1", {}, "PATCH /v1/arrays/{array_id}"),
        ("POST", "/v1/arrays/a-1/retry", {}, "POST /v1/arrays/{array_id}/retry"),
        ("POST", "/v1/arrays/a-1/cancel", {}, None),
        ("GET", "/v1/arrays", {}, None),
        ("GET", "/v1/pipelines/p-1", {}, "GET /v1/pipelines/{pipeline_id}"),
        ("GET", "/v1/pipelines", {}, None),
        ("GET", "/v1/jobs/j-1/reason", {}, "GET /v1/jobs/{job_id}/reason"),
        ("GET", "/v1/report", {}, "GET /v1/report"),
        ("GET", "/v1/jobs", {}, None),
        ("POST", "/v1/arrays/", {}, None),
        ("POST", "/v1/jobs", {}, None),
        ("POST", "/v1/jobs", LARGE, "POST /v1/jobs"),
        ("POST", "/v1/jobs", {**LARGE, "content-length": str(LARGE_BYTES)}, None),
        ("POST", "/v1/jobs", {**LARGE, "content-length": "9" * 100}, "POST /v1/jobs"),
        ("POST", "/v1/jobs", {**LARGE, "content-length": "-1"}, "POST /v1/jobs"),
        ("POST", "/v1/jobs", {"content-type": "application/json", "transfer-encoding": "chunked"}, "POST /v1/jobs"),
        ("POST", "/v1/jobs", {**LARGE, "content-type": "text/plain"}, None),
        ("POST", "/v1/jobs:dry-run", {}, "POST /v1/jobs:dry-run"),
        ("POST", "/v1/hosts/a/report", LARGE, None),
        ("POST", "/v1/hosts/a/heartbeat", LARGE, None),
        ("PUT", "/v1/uploads/n/" + "a" * 64, {**LARGE, "content-type": "application/octet-stream"}, None),
        ("POST", "/nothing", LARGE, None),
    ],
)
def test_which_requests_are_passed_on(method: str, path: str, headers: dict[str, str], route: str | None) -> None:
    listed = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope: Any = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": listed}
    assert _large_route(scope) == route


SHARED = """
import os
from gpu_platform.domain.errors import TooManyRequests
from gpu_platform.settings.service import RateLimit, RateLimitSettings
from service.http.rate_limits import RateLimits, SharedTimes

limits, wait_until = RateLimitSettings(releases=RateLimit(per_s=0.02, burst=2)), SharedTimes()

def may_submit(caller, known=wait_until, given=limits):
    try:
        RateLimits(given, known).check_releases(caller)
    except TooManyRequests as error:
        assert "stopped jobs that hold GPUs more often than" in str(error)
        return False
    return True

service = RateLimits(limits, wait_until)
service.note_release("person/ada")
(service_goes_on, wrote), (other_goes_on, told) = os.pipe(), os.pipe()
if (pid := os.fork()) == 0:
    before = may_submit("person/ada")
    os.write(told, b"1")
    os.read(service_goes_on, 1)
    os._exit(not (before and not may_submit("person/ada") and may_submit("person/eve")))
os.read(other_goes_on, 1)
service.note_release("person/ada")
os.write(wrote, b"1")
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert not may_submit("person/ada")
assert may_submit("person/ada", None)
assert may_submit("person/ada", wait_until, RateLimitSettings(releases=None))
"""


def test_who_gives_gpus_back_too_often_waits_with_large_requests_too() -> None:
    """Stops are taken by the service, arrays and pipelines by the other process."""
    subprocess.run([sys.executable, "-c", SHARED], check=True)


def test_what_a_killed_one_left_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(large_requests, "_YOUNG_S", 0.0)
    left, used, other = (tmp_path / f"gpu-platform-{name}" for name in ("large-a", "large-b", "other"))
    for directory in (left, used, other):
        directory.mkdir()
        (directory / "large").touch()
    held = os.open(used, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(held, fcntl.LOCK_EX)
    large_requests._remove_leftovers()
    assert [left.exists(), used.exists(), other.exists()] == [False, True, True]
    monkeypatch.setattr(large_requests, "_YOUNG_S", 60.0)
    os.close(held)
    large_requests._remove_leftovers()
    assert used.exists(), "it may have begun just now"
