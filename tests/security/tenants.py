"""Two tenants and what they have: ada of team-a, and bob of team-b."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.reservations import attempts, reserving
from tests.support.api_server import (
    application,
    bearer,
    in_process,
    sign_in,
)
from tests.support.store_cluster import NOW, Cluster, key, placement

NOWHERE = "127.0.0.1:1"
ADA, BOB = "gpt_" + "ada" * 14, "gpt_" + "bob" * 14
"""Ada is a user of team-a, bob is a user of team-b."""
SECRET = "s3cr3t-of-ada"
ADAS = "j-0000000000000aa"


@dataclass
class Tenants:
    http: httpx.AsyncClient
    store: Store

    async def ask(self, token: str, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {**options.pop("headers", {}), **bearer(token)}
        return await self.http.request(method, path, headers=headers, **options)

    async def submit(self, token: str, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        return await self.ask(token, "POST", "/v1/jobs", json={"command": ["true"], **fields}, headers=headers or {})


@asynccontextmanager
async def two_tenants(sqlite_store: Store) -> AsyncIterator[Tenants]:
    """Ada's job runs on the GPU of host a, and bob's waits for it."""
    Cluster(sqlite_store).host("a", gpus=1)
    spec = JobSpec(
        name="rosebud",
        command=["train"],
        namespace="team-a",
        user="ada",
        env={"TOKEN": SECRET},
        gpus={"gpus_per_host": 1},
    )
    jobs.submit_job(sqlite_store, ADAS, spec, actor="ada", now=NOW, idempotency_key=None)
    jobs.admit_job(sqlite_store, ADAS, NOW)
    reserving.reserve_gang(sqlite_store, key(ADAS), placement({"a": [0]}), now=NOW)
    attempts.mark_running(sqlite_store, key(ADAS), NOW)
    app = application(sqlite_store, NOWHERE)
    sign_in(sqlite_store, ADA, "ada", {"team-a": Role.USER})
    sign_in(sqlite_store, BOB, "bob", {"team-b": Role.USER})
    async with in_process(app) as http:
        yield Tenants(http, sqlite_store)
