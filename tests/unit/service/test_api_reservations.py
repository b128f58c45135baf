"""Advance reservations over REST: who sees what of them, and which jobs are accepted for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.store import Store, windows
from gpu_platform.store.jobs import jobs
from service.operations.windows import window_warnings
from tests.support.api_server import application, bearer, in_process, sign_in
from tests.support.store_cluster import NOW, Cluster, spec

START = "2036-01-01T00:00:00Z"
OPERATOR, STUDENT, OTHER = ("gpt_" + name * 10 for name in ("oper", "stud", "othe"))
COURSE: dict[str, Any] = {
    "name": "course",
    "start_at": START,
    "duration_s": 3600,
    "gpu_count": 2,
    "namespaces": ["team-a"],
    "reason": "an exam",
}
JOB: dict[str, Any] = {"command": ["true"], "gpus": {"gpus_per_host": 1}, "time_limit_s": 60, "reservation": "course"}


@pytest.fixture
async def http(sqlite_store: Store) -> AsyncIterator[httpx.AsyncClient]:
    Cluster(sqlite_store).host("a", gpus=2).host("b", gpus=2)
    sign_in(sqlite_store, OPERATOR, "op", {CLUSTER: Role.OPERATOR})
    sign_in(sqlite_store, STUDENT, "stud", {"team-a": Role.USER})
    sign_in(sqlite_store, OTHER, "other", {"team-b": Role.ADMIN})
    async with in_process(application(sqlite_store, "127.0.0.1:1")) as http:
        http.headers.pop("Authorization")
        made = await http.post("/v1/reservations", json=COURSE, headers=bearer(OPERATOR))
        assert made.status_code == 201, made.text
        assert made.headers["Location"] == "/v1/reservations/course"
        yield http


async def test_each_sees_what_concerns_them(http: httpx.AsyncClient) -> None:
    fans = {"name": "fans", "start_at": "2036-02-01T00:00:00Z", "duration_s": 60, "host_count": 1, "maintenance": True}
    assert (await http.post("/v1/reservations", json=fans, headers=bearer(OPERATOR))).status_code == 201

    async def seen(token: str) -> list[str]:
        found = await http.get("/v1/reservations", headers=bearer(token))
        return [one["name"] for one in found.json()["items"]]

    assert await seen(OPERATOR) == await seen(STUDENT) == ["course", "fans"]
    assert await seen(OTHER) == ["fans"]
    assert (await http.get("/v1/reservations/course", headers=bearer(OTHER))).status_code == 404
    shown = (await http.get("/v1/reservations/course", headers=bearer(STUDENT))).json()
    assert (shown["namespaces"], shown["actor"], shown["reason"]) == (["team-a"], "hidden", "an exam")
    for token in (STUDENT, OTHER):
        refused = await http.delete("/v1/reservations/course", headers=bearer(token))
        assert refused.status_code == 403
    hosts = (await http.get("/v1/hosts", headers=bearer(OTHER))).json()["items"]
    kept = {host["name"]: [(one["maintenance"], one["gpus"]) for one in host["windows"]] for host in hosts}
    assert kept == {"a": [(False, 2), (True, 2)], "b": []}
    metrics = await http.get("/metrics", headers=bearer(OPERATOR))
    assert 'gpu_platform_windows{kind="maintenance",state="coming"} 1.0' in metrics.text


@pytest.mark.parametrize(
    ("given", "token", "words"),
    [
        (
            {"reservation": "nope"},
            STUDENT,
            "no advance reservation 'nope' for jobs of stud in namespace team-a",
        ),
        ({}, OTHER, "there is no advance reservation 'course' for jobs of other in namespace team-b"),
        ({"time_limit_s": None}, STUDENT, "give it a time limit of at most 1h00m"),
        ({"time_limit_s": 3601}, STUDENT, "course lasts 1h00m"),
        ({"gpus": {"gpus_per_host": 2, "hosts": 2}}, STUDENT, "asked for 4 GPUs; course has 2"),
        ({"reservation": None, "gpus": {"gpus_per_host": 1, "reservation": "course"}}, STUDENT, "a field of the job"),
    ],
)
async def test_a_job_that_could_never_run_in_it_is_refused(
    http: httpx.AsyncClient, given: dict[str, Any], token: str, words: str
) -> None:
    refused = await http.post("/v1/jobs:dry-run", json=JOB | given, headers=bearer(token))
    assert refused.status_code == 422
    assert words in refused.text


async def test_a_job_of_the_team_is_told_when_it_starts(http: httpx.AsyncClient, sqlite_store: Store) -> None:
    found = await http.post("/v1/jobs:dry-run", json=JOB, headers=bearer(STUDENT))
    assert found.status_code == 200, found.text
    reason = found.json()["reason"]
    assert reason["code"] == "window"
    assert "course is open from 2036-01-01 00:00 to 01:00 UTC" in reason["next_step"]
    jobs.submit_job(sqlite_store, "j-1", spec(reservation="course"), actor="stud", now=NOW, idempotency_key=None)
    shown = (await http.get("/v1/reservations/course", headers=bearer(OPERATOR))).json()
    assert shown["jobs"] == ["j-1"]
    [warning] = window_warnings(sqlite_store, spec())
    assert "does not start on 1 host that is kept later (first for an advance reservation" in warning
    assert window_warnings(sqlite_store, spec(time_limit_s=60)) == []
    windows.remove(sqlite_store, "course", "op", NOW)
    assert window_warnings(sqlite_store, spec()) == []
