"""The disk of the database is full: the API says so, nothing acknowledged is lost, and all goes on with more room."""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from gpu_platform.client.wire import PROBLEM_JSON
from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from service.temporal import JobWorkflows
from tests.support.api_server import application, in_process
from tests.support.postgres import Databases, find_binaries, running_postgres
from tests.support.temporal_server import client_of_new_namespace
from tests.support.waiting import eventually

MOST_SUBMISSIONS = 200


@dataclass
class Disk:
    url: str
    """The address of a database on it."""
    ballast: Path

    def fill(self) -> None:
        with self.ballast.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1 << 9):
                with suppress(OSError):
                    while True:
                        file.write(bytes(size))


@pytest.fixture(params=["sqlite", "postgresql"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    if request.param == "sqlite":
        path: Path = request.getfixturevalue("small_disk")
        yield Disk(f"sqlite:///{path / 'platform.db'}", path / "ballast")
        return
    binaries = find_binaries() or pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    # A server of its own: while one disk is full, no checkpoint succeeds, and other tests' databases need them.
    with running_postgres(binaries) as server:
        yield from _tablespace(server)


def _tablespace(server: str) -> Iterator[Disk]:
    """A database of PostgreSQL whose tables are on a small disk. Its log of transactions is elsewhere."""
    databases = Databases(server)
    with psycopg.connect(server, autocommit=True) as admin:
        [data] = admin.execute("SHOW data_directory").fetchone() or ("",)
        owner = Path(data).stat().st_uid
        path = Path(tempfile.mkdtemp(prefix="gpu-platform-tablespace-"))
        path.chmod(0o755)
        options = f"size=32m,mode=0700,uid={owner}"
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=False).returncode != 0:
            path.rmdir()
            pytest.skip("no tmpfs can be mounted here")
        name = f"small_{os.getpid()}"
        try:
            admin.execute(f"CREATE TABLESPACE {name} LOCATION '{path}'")  # type: ignore[arg-type]
            admin.execute(f"CREATE DATABASE {name} TABLESPACE {name}")  # type: ignore[arg-type]
            yield Disk(databases.url(name), path / "ballast")
            databases.drop(name)
            admin.execute(f"DROP TABLESPACE {name}")  # type: ignore[arg-type]
        finally:
            subprocess.run(["umount", "-l", path], check=True)
            path.rmdir()


async def submit(http: httpx.AsyncClient) -> httpx.Response:
    """A job that needs some pages of the database."""
    return await http.post("/v1/jobs", json={"command": ["true", secrets.token_hex(8000)]})


async def test_a_full_disk_is_said_and_nothing_acknowledged_is_lost(disk: Disk, temporal_address: str) -> None:
    namespace = (await client_of_new_namespace(temporal_address)).namespace
    store = Store(disk.url)
    store.migrate()
    acknowledged: list[str] = []
    async with in_process(application(store, temporal_address, namespace=namespace)) as http:
        assert (await submit(http)).status_code == 201
        disk.fill()
        for _ in range(MOST_SUBMISSIONS):
            answer = await submit(http)
            if answer.status_code != 201:
                break
            acknowledged.append(answer.json()["id"])
        problem: dict[str, Any] = answer.json()
        assert (answer.status_code, problem["code"], problem["retryable"]) == (507, "storage_full", True), problem
        assert answer.headers["content-type"] == PROBLEM_JSON
        assert answer.headers["retry-after"] == "1"
        assert "full" in problem["detail"]
        assert "make room there" in problem["detail"]
        assert (await http.get("/v1/jobs")).status_code == 200, "what is there can be read"
        disk.ballast.unlink()

        async def accepted() -> str | None:
            again = await submit(http)
            return again.json()["id"] if again.status_code == 201 else None

        acknowledged.append(await eventually(accepted, "it goes on by itself"))
    store.close()
    reopened = Store(disk.url)
    for job_id in acknowledged:
        assert jobs.get_job(reopened, job_id).id == job_id
    reopened.close()


async def test_a_submission_that_cannot_be_taken_back_is_said_and_its_key_finds_it(
    small_disk: Path, temporal_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal gives no answer, and the disk is full at the moment at which the record is to be taken back."""
    namespace = (await client_of_new_namespace(temporal_address)).namespace
    disk = Disk(f"sqlite:///{small_disk / 'platform.db'}", small_disk / "ballast")
    store = Store(disk.url)
    store.migrate()
    start = JobWorkflows.start

    async def no_answer(workflows: JobWorkflows, job_id: str, spec: JobSpec) -> None:
        disk.fill()
        raise Unavailable("Temporal does not answer: nothing was started")

    monkeypatch.setattr(JobWorkflows, "start", no_answer)
    key = {"Idempotency-Key": "again"}
    async with in_process(application(store, temporal_address, namespace=namespace)) as http:
        answer = await http.post("/v1/jobs", json={"command": ["true"]}, headers=key)
        [recorded] = jobs.list_jobs(store)[0]
        assert (answer.status_code, answer.json()["code"], answer.json()["retryable"]) == (503, "unavailable", True)
        assert "the submission is recorded and could not be taken back" in answer.json()["detail"]
        assert "full" in answer.json()["detail"]
        disk.ballast.unlink()
        monkeypatch.setattr(JobWorkflows, "start", start)

        async def accepted() -> str | None:
            again = await http.post("/v1/jobs", json={"command": ["true"]}, headers=key)
            return again.json()["id"] if again.is_success else None

        assert await eventually(accepted, "the same key to be accepted") == recorded.id
    store.close()
