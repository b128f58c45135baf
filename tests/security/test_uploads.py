"""Uploaded code, asked from outside: who may send it, who may use it, and which host gets it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.client.calls import UPLOAD_SIZE_HEADER
from gpu_platform.domain.jobs.upload_limits import CHUNK_BYTES
from gpu_platform.domain.states import JobState
from gpu_platform.settings import ServiceSettings
from gpu_platform.settings.service import UploadSettings
from gpu_platform.store import Store
from gpu_platform.store.reservations import attempts
from tests.security.test_secrets import JOB, NOWHERE, ROLES, Desk, token_of
from tests.support.api_server import application, in_process, node_headers, sign_in
from tests.support.store_cluster import NOW, Cluster

CODE = bytes(range(256)) * 4 * 1200
HASH = hashlib.sha256(CODE).hexdigest()
ENVIRONMENT = {"upload": HASH}


@pytest.fixture
async def desk(store: Store, tmp_path: Path) -> AsyncIterator[Desk]:
    cluster = Cluster(store).host("a", gpus=1).host("b", gpus=1)
    node_headers("a", tmp_path)
    limits = ServiceSettings(uploads=UploadSettings(max_mib=2, namespace_mib=3))
    app = application(store, NOWHERE, state_dir=tmp_path, service=limits)
    for who, roles in ROLES.items():
        sign_in(store, token_of(who), who, roles)
    async with in_process(app) as http:
        yield Desk(http, store, tmp_path, cluster)


async def send(desk: Desk, who: str = "ada", namespace: str = "team-a", code: bytes = CODE) -> httpx.Response:
    """Send all parts, and return the answer to the last one."""
    path, offset = f"/v1/uploads/{namespace}/{hashlib.sha256(code).hexdigest()}", 0
    while True:
        part = code[offset : offset + CHUNK_BYTES]
        query = {"size_bytes": len(code), "offset": offset}
        answer = await desk.ask(who, "PUT", path, content=part, params=query)
        if answer.status_code != 200 or answer.json()["complete"]:
            return answer
        offset = answer.json()["received"]


async def submit(desk: Desk, who: str, namespace: str, **fields: Any) -> httpx.Response:
    job = {"command": ["true"], "namespace": namespace, "environment": ENVIRONMENT, **fields}
    return await desk.ask(who, "POST", "/v1/jobs", json=job)


async def fetch(desk: Desk, host: str, of: str | None = None, attempt: int = 1, offset: int = 0) -> httpx.Response:
    path = f"/v1/hosts/{host}/attempts/{JOB}/{attempt}/upload"
    return await desk.http.get(path, params={"offset": offset}, headers=node_headers(of or host, desk.state))


async def test_who_guesses_a_hash_of_another_namespace_has_nothing(desk: Desk) -> None:
    assert (await send(desk)).json()["complete"]
    there = (await desk.ask("bob", "GET", f"/v1/uploads/team-b/{HASH}")).json()
    assert (there["received"], there["complete"]) == (0, False)
    refused = await submit(desk, "bob", "team-b")
    assert refused.status_code == 422
    assert "bob has no uploaded code" in refused.json()["detail"]
    assert (await desk.ask("bob", "GET", f"/v1/uploads/team-a/{HASH}")).status_code == 403
    assert (await send(desk, "bob")).status_code == 403
    assert (await send(desk, "vic")).status_code == 403


async def test_nobody_uses_or_hinders_what_another_of_the_team_sends(desk: Desk) -> None:
    """Whoever sees a job sees the hash of its code."""
    path = f"/v1/uploads/team-a/{HASH}"
    wrong = {"size_bytes": len(CODE) - 7, "offset": 0}
    assert (await desk.ask("eve", "PUT", path, content=CODE[:9], params=wrong)).status_code == 200
    assert (await desk.ask("ada", "GET", path)).json()["received"] == 0
    assert (await send(desk)).json()["complete"]
    assert not (await desk.ask("eve", "GET", path)).json()["complete"]
    refused = await submit(desk, "eve", "team-a")
    assert refused.status_code == 422
    assert "eve has no uploaded code" in refused.json()["detail"]
    assert (await desk.ask("eve", "PUT", path, content=CODE[:9], params=wrong)).status_code == 200
    desk.runs(environment=ENVIRONMENT)
    assert (await fetch(desk, "a")).content == CODE[:CHUNK_BYTES]


async def test_what_is_too_large_or_damaged_is_refused(desk: Desk) -> None:
    large = await send(desk, code=bytes(3 << 20))
    assert large.status_code == 422
    assert "the upload has 3.1 MB; the limit is 2.1 MB (service.uploads.max_mib)" in large.json()["detail"]
    path = f"/v1/uploads/team-a/{HASH}"
    body = await desk.ask("ada", "PUT", path, content=bytes(CHUNK_BYTES + 1), params={"size_bytes": len(CODE)})
    assert body.status_code == 413
    damaged = b"\1" * 100
    wrong = await desk.ask("ada", "PUT", path, content=damaged, params={"size_bytes": len(damaged)})
    assert wrong.status_code == 422
    assert "what arrived is not the archive" in wrong.json()["detail"]
    assert (await send(desk)).json()["complete"]
    full = await send(desk, code=b"x" * (2 << 20))
    assert full.status_code == 422
    assert "are allowed together" in full.json()["detail"]


async def test_only_the_host_that_holds_the_attempt_gets_the_code(desk: Desk) -> None:
    await send(desk)
    key = desk.runs(environment=ENVIRONMENT)
    found = b""
    while len(found) < len(CODE):
        answer = await fetch(desk, "a", offset=len(found))
        assert answer.status_code == 200, answer.text
        assert int(answer.headers[UPLOAD_SIZE_HEADER]) == len(CODE)
        found += answer.content
    assert found == CODE
    path = f"/v1/hosts/a/attempts/{JOB}/1/upload"
    for refused in (
        await fetch(desk, "b"),  # holds nothing of it
        await fetch(desk, "a", of="b"),  # another host's identity
        await fetch(desk, "a", attempt=2),
        await desk.ask("adm", "GET", path),
        await desk.http.get(path),
    ):
        assert refused.status_code in (401, 403), refused.text
    assert (await fetch(desk, "a", offset=5)).status_code == 404
    attempts.end_attempt(desk.store, key, [JobState.QUEUED], now=NOW, actor="test")
    assert (await fetch(desk, "a")).status_code == 403


async def test_a_job_works_in_its_code_or_elsewhere(desk: Desk) -> None:
    await send(desk)
    both = await submit(desk, "ada", "team-a", workdir="/home/ada")
    assert both.status_code == 422
    assert "leave workdir or environment.upload out" in both.text
