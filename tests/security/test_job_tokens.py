"""Job tokens: what a rank may do with one, and that it is worth nothing once its attempt has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.reservations import attempts
from tests.support.api_server import (
    application,
    bearer,
    in_process,
    node_headers,
    recording,
    sign_in,
    temporal_dev_server,
)
from tests.support.store_cluster import NOW, Cluster

MINE, OTHER, OTHERS = "j-0000000000000aa", "j-0000000000000ab", "j-0000000000000bb"


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


@dataclass
class Rank:
    """A rank of ada's job, which runs on host a."""

    http: httpx.AsyncClient
    store: Store
    key: AttemptKey
    token: str

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.http.request(method, path, headers=bearer(self.token), **options)

    async def submit(self, **fields: Any) -> httpx.Response:
        return await self.ask("POST", "/v1/jobs", json={"command": ["true"], **fields})


@pytest.fixture
async def rank(sqlite_store: Store, tmp_path: Path, temporal: str) -> AsyncIterator[Rank]:
    cluster = Cluster(sqlite_store).host("a", gpus=1)
    cluster.queued(MINE, namespace="team-a", user="ada", priority=5, job_token=True)
    cluster.queued(OTHER, namespace="team-a", user="ada")
    cluster.queued(OTHERS, namespace="team-b", user="bob")
    key = cluster.reserve(MINE, {"a": [0]})
    headers = node_headers("a", tmp_path)
    async with recording(temporal), in_process(application(sqlite_store, temporal, state_dir=tmp_path)) as http:
        path = f"/v1/hosts/a/attempts/{MINE}/1/secrets"
        given = await http.post(path, json={}, headers=headers)
        yield Rank(http, sqlite_store, key, given.json()["token"])


async def test_a_rank_reads_its_own_job_and_no_other(rank: Rank) -> None:
    for below in ("", "/reason", "/events", "/usage"):
        answer = await rank.ask("GET", f"/v1/jobs/{MINE}{below}?follow=false")
        assert answer.status_code == 200 or "there is no job" not in answer.text, below
    for job_id in (OTHER, OTHERS):
        assert (await rank.ask("GET", f"/v1/jobs/{job_id}")).status_code == 404
    who = (await rank.ask("GET", "/v1/whoami")).json()
    assert (who["kind"], who["name"]) == ("job", MINE)


async def test_a_rank_submits_as_its_user_into_its_namespace_with_at_most_its_priority(rank: Rank) -> None:
    made = (await rank.submit(name="child")).json()
    assert (made["spec"]["namespace"], made["spec"]["user"]) == ("team-a", "ada")
    assert (await rank.submit(priority=5)).status_code == 201
    for wrong in ({"priority": 6}, {"user": "bob"}, {"namespace": "team-b"}, {"namespace": "default"}):
        assert (await rank.submit(**wrong)).status_code == 403, wrong
    headers = {**bearer(rank.token), "X-GPU-Platform-User": "bob"}
    assert (await rank.http.post("/v1/jobs", json={"command": ["true"]}, headers=headers)).status_code == 403


async def test_a_rank_may_do_nothing_else(rank: Rank) -> None:
    tries = [
        ("GET", "/v1/jobs"),
        ("GET", f"/v1/jobs/{MINE}/logs"),
        ("POST", f"/v1/jobs/{MINE}/kill"),
        ("POST", f"/v1/jobs/{MINE}/exec"),
        ("GET", "/v1/queue"),
        ("GET", "/v1/events"),
        ("GET", "/v1/hosts"),
        ("GET", "/v1/secrets"),
        ("PUT", "/v1/secrets/team-a/mine"),
        ("GET", "/v1/tokens"),
        ("POST", "/v1/tokens"),
        ("GET", "/v1/audit"),
        ("GET", "/metrics"),
    ]
    for method, path in tries:
        answer = await rank.ask(method, path, json={"value": "x"} if method in ("PUT", "POST") else None)
        assert answer.status_code == 403, (method, path, answer.text)


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.QUEUED])
async def test_the_token_ends_with_its_attempt(rank: Rank, state: JobState) -> None:
    attempts.mark_running(rank.store, rank.key, NOW)
    assert (await rank.ask("GET", f"/v1/jobs/{MINE}")).status_code == 200
    through = [JobState.PREEMPTED, state] if state is JobState.QUEUED else [state]
    attempts.end_attempt(rank.store, rank.key, through, now=NOW, actor="test")
    for answer in (await rank.ask("GET", f"/v1/jobs/{MINE}"), await rank.submit(), await rank.ask("GET", "/v1/whoami")):
        assert answer.status_code == 401
        assert "its attempt has ended" in answer.json()["detail"]


async def test_a_token_is_for_those_who_asked_and_only_its_hash_is_kept(rank: Rank, tmp_path: Path) -> None:
    assert rank.token.startswith("gpj_")
    for path in tmp_path.glob("platform.db*"):
        assert rank.token.encode() not in path.read_bytes()
    attempts.end_attempt(rank.store, rank.key, [JobState.QUEUED], now=NOW, actor="test")
    cluster = Cluster(rank.store)
    cluster.reserve(OTHER, {"a": [0]})
    headers = node_headers("a", tmp_path)
    answer = await rank.http.post(f"/v1/hosts/a/attempts/{OTHER}/1/secrets", json={}, headers=headers)
    assert answer.json()["token"] is None
    assert jobs.get_job(rank.store, OTHER).spec.job_token is False


async def test_a_made_up_token_is_refused(rank: Rank) -> None:
    sign_in(rank.store, "gpt_" + "x" * 43, "ada", {"team-a": Role.USER})
    for token in ("gpj_" + "x" * 43, rank.token[:-1], rank.token + "x", "gpj_"):
        assert (await rank.http.get("/v1/whoami", headers=bearer(token))).status_code == 401
