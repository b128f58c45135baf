"""Whatever is sent: a clear problem, and nothing changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from service.access.routes import ROUTES
from tests.support.api_server import application, in_process, node_headers
from tests.support.examples import few
from tests.support.store_cluster import NOW, Cluster, spec

NO_TEMPORAL = "127.0.0.1:1"
"""What is refused never gets that far."""


@pytest.fixture
def store(sqlite_template: Path, tmp_path: Path):
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    yield store
    store.close()


@pytest.fixture
async def http(store: Store, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(application(store, NO_TEMPORAL, state_dir=tmp_path)) as http:
        yield http


def is_problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert {"type", "title", "status", "detail", "code"} <= problem.keys()
    assert problem["status"] == status
    assert problem["code"] == code, problem
    assert problem["type"] == f"urn:gpu-platform:problem:{code}"
    assert "Traceback" not in answer.text
    return problem


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"command": ["x"], "gpu": 1}, "gpu", "no such field"),
        ({"command": ["x"], "gpus": {"hosts": 1, "gpu_per_host": 1}}, "gpus.gpu_per_host", "no such field"),
        ({}, "command", "is required"),
        ({"command": []}, "command", "at least 1"),
        ({"command": "python train.py"}, "command", "valid list"),
        ({"command": ["", "x"]}, "command", "empty"),
        ({"command": ["x\0y"]}, "command", "NUL"),
        ({"command": ["x", 7]}, "command[1]", "valid string"),
        ({"command": ["x" * 200_000]}, "command", "put it into a script"),
        ({"command": ["x"], "gpus": {"gpus_per_host": 0, "model": "H100"}}, "gpus", "none is asked for"),
        ({"command": ["x"], "gpus": {"gpus_per_host": -3}}, "gpus.gpus_per_host", "greater than or equal to 0"),
        ({"command": ["x"], "gpus": {"gpus_per_host": 10**9}}, "gpus.gpus_per_host", "less than or equal to 64"),
        ({"command": ["x"], "gpus": {"gpus_per_host": 1.5}}, "gpus.gpus_per_host", "integer"),
        ({"command": ["x"], "gpus": {"gpus_per_host": "many"}}, "gpus.gpus_per_host", "integer"),
        ({"command": ["x"], "gpus": {"hosts": 4096, "gpus_per_host": 64}}, "body", "at most 100000"),
        ({"command": ["x"], "gpus": {"memory_mib": -1}}, "gpus.memory_mib", "greater than or equal to 0"),
        ({"command": ["x"], "gpus": {"min_compute_capability": "nine"}}, "gpus.min_compute_capability", "pattern"),
        ({"command": ["x"], "gpus": {"strategy": "scatter"}}, "gpus.strategy", "'pack' or 'spread'"),
        ({"command": ["x"], "gpus": None}, "gpus", "valid"),
        ({"command": ["x"], "gpus": {"total": 1, "gpus_per_host": {}}}, "gpus.gpus_per_host", "integer"),
        ({"command": ["x"], "gpus": {"total": 1, "gpus_per_host": None}}, "gpus.gpus_per_host", "integer"),
        ({"command": ["x"], "gpus": {"gpus_per_host": 0, "cpus_per_host": []}}, "gpus.cpus_per_host", "integer"),
        ({"command": ["x"], "time_limit_s": 0}, "time_limit_s", "greater than or equal to 1"),
        ({"command": ["x"], "priority": 10**30}, "priority", "less than or equal to 1000"),
        ({"command": ["x"], "max_retries": -1}, "max_retries", "greater than or equal to 0"),
        ({"command": ["x"], "name": "two words"}, "name", "not a name"),
        ({"command": ["x"], "name": "x" * 64}, "name", "not a name"),
        ({"command": ["x"], "env": {"1A": "x"}}, "env", "not the name of an environment variable"),
        ({"command": ["x"], "env": {"A": "b\0c"}}, "env", "NUL"),
        ({"command": ["x"], "env": {"A": "x" * 300_000}}, "env", "put large values into a file"),
        ({"command": ["x"], "workdir": "relative/path"}, "workdir", "not an absolute path"),
    ],
)
async def test_a_wrong_submission_names_field_and_value(
    http: httpx.AsyncClient, store: Store, body: dict[str, Any], field: str, words: str
) -> None:
    problem = is_problem(await http.post("/v1/jobs", json=body), 422, "invalid_request")
    (error,) = [error for error in problem["errors"] if error["field"] == field]
    assert words in error["message"]
    assert field in problem["detail"]
    assert len(problem["detail"]) < 1000
    assert jobs.list_jobs(store)[0] == []


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/tokens", {"max_priority": "5"}, "max_priority"),
        ("/v1/tokens", {"max_priority": True}, "max_priority"),
        ("/v1/tokens", {"expires_at": 9_999_999_999}, "expires_at"),
        ("/v1/tokens", {"expires_at": "9999999999"}, "expires_at"),
        ("/v1/hosts/a/enroll", {"valid_s": "60"}, "valid_s"),
        ("/v1/hosts/a/enroll", {"valid_s": True}, "valid_s"),
        ("/v1/jobs", {"command": ["x"], "priority": "5"}, "priority"),
        ("/v1/jobs", {"command": ["x"], "preemptible": 1}, "preemptible"),
    ],
)
async def test_a_body_has_exactly_the_types_of_its_description(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], field: str
) -> None:
    problem = is_problem(await http.post(path, json=body), 422, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == [field]


async def test_every_wrong_field_is_named_at_once(http: httpx.AsyncClient) -> None:
    body = {"command": ["x"], "gpus": {"hosts": 0, "gpus_per_host": -1}, "priority": 5000}
    problem = is_problem(await http.post("/v1/jobs", json=body), 422, "invalid_request")
    assert [error["field"] for error in problem["errors"]] == ["gpus.hosts", "gpus.gpus_per_host", "priority"]
    assert [error["given"] for error in problem["errors"]] == [0, -1, 5000]


@pytest.mark.parametrize(
    ("content", "status", "code", "words"),
    [
        (b"{", 400, "malformed_body", "not JSON"),
        (b"", 422, "invalid_request", "required"),
        (b"\xff\xfe{}", 400, "malformed_body", ""),
        (b'{"command": ["caf\xe9"]}', 400, "malformed_body", "not UTF-8: byte 0xe9"),
        (b'{"command": ["x"], "env": {"A": "\\ud800"}}', 422, "invalid_request", "env"),
        (b'{"command": ["x"], "priority": NaN}', 422, "invalid_request", "priority"),
        (b'{"command": ["x"], "priority": ' + b"9" * 5000 + b"}", 400, "malformed_body", ""),
        (b"[" * 100_000, 400, "malformed_body", ""),
        (b"[]", 422, "invalid_request", "body"),
        (b"null", 422, "invalid_request", "body"),
    ],
)
async def test_a_body_that_is_no_job_is_told_why(
    http: httpx.AsyncClient, content: bytes, status: int, code: str, words: str
) -> None:
    answer = await http.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    assert words in is_problem(answer, status, code)["detail"]


async def test_an_enormous_body_is_refused(http: httpx.AsyncClient) -> None:
    body = {"command": ["x"], "env": {f"V{number}": "x" * 1000 for number in range(1100)}}
    problem = is_problem(await http.post("/v1/jobs", json=body), 413, "body_too_large")
    assert "1048576" in problem["detail"]

    async def endless():
        for _ in range(40):
            yield b" " * 65536

    headers = {"Content-Type": "application/json"}
    is_problem(await http.post("/v1/jobs", content=endless(), headers=headers), 413, "body_too_large")


async def test_a_body_that_is_not_json_by_its_type(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/jobs", content=b"command=x", headers={"Content-Type": "text/plain"})
    assert "application/json" in is_problem(answer, 415, "unsupported_media_type")["detail"]


async def test_more_than_the_cluster_could_ever_hold_says_what_it_could(http: httpx.AsyncClient, store: Store) -> None:
    Cluster(store).host("a", gpus=4).host("b", gpus=4)
    body = {"command": ["x"], "gpus": {"hosts": 3, "gpus_per_host": 4}}
    problem = is_problem(await http.post("/v1/jobs", json=body), 422, "impossible_request")
    assert "only 2 of 2 hosts" in problem["detail"]
    assert jobs.list_jobs(store)[0] == []


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "caf\u00e9"])
async def test_a_bad_idempotency_key(http: httpx.AsyncClient, key: str) -> None:
    headers = [(b"Idempotency-Key", key.encode("latin-1"))]
    answer = await http.post("/v1/jobs", json={"command": ["x"]}, headers=headers)
    problem = is_problem(answer, 422, "invalid_request")
    assert problem["errors"][0]["field"].lower() == "idempotency-key"


@pytest.mark.parametrize("verb", ["cancel", "kill", "preempt"])
async def test_an_unknown_job(http: httpx.AsyncClient, verb: str) -> None:
    for answer in (
        await http.get("/v1/jobs/j-none"),
        await http.get("/v1/jobs/j-none/events"),
        await http.get("/v1/jobs/j-none/events", params={"follow": True}),
        await http.get("/v1/jobs/j-none/logs"),
        await http.get("/v1/jobs/j-none/logs", params={"follow": True}),
        await http.post(f"/v1/jobs/j-none/{verb}"),
    ):
        assert "j-none" in is_problem(answer, 404, "not_found")["detail"]


async def test_unknown_machines(http: httpx.AsyncClient) -> None:
    for method, path in (
        ("GET", "/v1/hosts/x"),
        ("POST", "/v1/hosts/x/drain"),
        ("POST", "/v1/hosts/x/offline"),
        ("POST", "/v1/hosts/x/online"),
        ("GET", "/v1/gpus/x:1"),
        ("POST", "/v1/gpus/x:1/drain"),
        ("POST", "/v1/gpus/x:1/offline"),
        ("POST", "/v1/gpus/x:1/online"),
    ):
        is_problem(await http.request(method, path), 404, "not_found")


async def test_unknown_addresses_and_methods(http: httpx.AsyncClient) -> None:
    is_problem(await http.get("/v2/jobs"), 404, "not_found")
    is_problem(await http.get("/v1/jobs/"), 404, "not_found")
    answer = await http.delete("/v1/jobs")
    problem = is_problem(answer, 405, "method_not_allowed")
    assert "DELETE is not possible here" in problem["detail"]
    assert answer.headers["allow"]


def submitted(store: Store, job_id: str = "j-1") -> None:
    jobs.submit_job(store, job_id, spec(), actor="test", now=NOW, idempotency_key=None)


@pytest.mark.parametrize(
    ("path", "params", "field"),
    [
        ("/v1/jobs", {"limit": 0}, "limit"),
        ("/v1/jobs", {"limit": 1001}, "limit"),
        ("/v1/jobs", {"limit": "all"}, "limit"),
        ("/v1/jobs", {"state": "SLEEPING"}, "state[0]"),
        ("/v1/gpus", {"state": "SLEEPING"}, "state[0]"),
        ("/v1/jobs/j-1", {"wait_s": 1e9}, "wait_s"),
        ("/v1/jobs/j-1", {"wait_s": "nan"}, "wait_s"),
        ("/v1/jobs/j-1/logs", {"rank": -1}, "rank"),
        ("/v1/jobs/j-1/logs", {"attempt": 0}, "attempt"),
        ("/v1/jobs/j-1/events", {"after": -1}, "after"),
        ("/v1/jobs/j-1/events", {"after": 2**64}, "after"),
    ],
)
async def test_a_wrong_parameter(
    http: httpx.AsyncClient, store: Store, path: str, params: dict[str, Any], field: str
) -> None:
    submitted(store)  # whoever asks for a job that is not there learns only that
    problem = is_problem(await http.get(path, params=params), 422, "invalid_request")
    assert problem["errors"][0]["field"] == field


@pytest.mark.parametrize(
    ("path", "name", "good", "bad"),
    [
        ("/v1/jobs/j-1/logs", "rank", ["0", "0.0", " 0 ", "+0"], ["", "1e0", "0x0", "zero", "true", "null", "\u0660"]),
        ("/v1/jobs/j-1", "wait_s", ["0", "0.0", "0e3", " 0 "], ["", "nan", "inf", "-inf", "1e3", "0x0", "true"]),
        ("/v1/jobs/j-1/events", "follow", ["false", "0", "no", "OFF"], ["", " false ", "2", "0.0", "null", "None"]),
        ("/v1/usage", "until", ["2026-01-02T03:04:05Z", "2026-01-02T03:04:05+01:00"], ["", "0", "-1", "1e9", "1e-3"]),
        ("/v1/usage", "since", ["2026-01-02 03:04Z"], ["2026-01-02", "2026-01-02T03:04:05", "now", "20260102"]),
    ],
)
async def test_values_in_queries_may_be_spelt_in_several_ways_but_not_guessed(
    http: httpx.AsyncClient, store: Store, path: str, name: str, good: list[str], bad: list[str]
) -> None:
    """Scripts write ``yes`` and ``5.0``: these have one meaning only. What has none, or two, is refused."""
    submitted(store)
    for value in good:
        assert (await http.get(path, params={name: value})).status_code == 200, value
    for value in bad:
        problem = is_problem(await http.get(path, params={name: value}), 422, "invalid_request")
        assert [error["field"] for error in problem["errors"]] == [name], value


async def test_options_says_what_a_path_has_and_allows_no_other_site_anything(http: httpx.AsyncClient) -> None:
    """Without a token, as a browser asks; the preflight of the Temporal UI has tests of its own."""
    del http.headers["Authorization"]
    methods: dict[str, set[str]] = {}
    for route in ROUTES:
        method, path = route.split(" ")
        methods.setdefault(path, set()).add(method)
    for path, expected in methods.items():
        answer = await http.options(path.replace("{", "").replace("}", ""), headers={"Origin": "http://evil.example"})
        is_problem(answer, 405, "method_not_allowed")
        assert set(answer.headers["allow"].split(", ")) == expected, path
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/hosts", "/v1/gpus"])
@pytest.mark.parametrize("cursor", ["x", "-1", "bm90IGpzb24=", "\u00b2", "0x10", "WzEsMl0="])
async def test_a_cursor_of_no_list(http: httpx.AsyncClient, path: str, cursor: str) -> None:
    problem = is_problem(await http.get(path, params={"cursor": cursor}), 422, "invalid_request")
    assert "not a cursor" in problem["detail"]


async def test_an_id_of_no_stream(http: httpx.AsyncClient, store: Store) -> None:
    jobs.submit_job(store, "j-1", spec(), actor="ada", now=NOW, idempotency_key=None)
    for path in ("/v1/events", "/v1/jobs/j-1/events?follow=true", "/v1/jobs/j-1/logs?follow=true"):
        answer = await http.get(path, headers={"Last-Event-ID": "x.y"})
        assert "Last-Event-ID" in is_problem(answer, 422, "invalid_request")["detail"]


async def test_a_rank_or_attempt_that_never_was(http: httpx.AsyncClient, store: Store) -> None:
    jobs.submit_job(store, "j-1", spec(hosts=2), actor="ada", now=NOW, idempotency_key=None)
    problem = is_problem(await http.get("/v1/jobs/j-1/logs?rank=2"), 422, "invalid_request")
    assert "2 ranks, 0 to 1" in problem["detail"]
    is_problem(await http.get("/v1/jobs/j-1/logs?attempt=1"), 404, "not_found")
    answer = await http.get("/v1/jobs/j-1/logs")
    assert (answer.status_code, answer.text) == (200, "")


async def test_a_wrong_reason_body(http: httpx.AsyncClient, store: Store) -> None:
    jobs.submit_job(store, "j-1", spec(), actor="ada", now=NOW, idempotency_key=None)
    answer = await http.post("/v1/jobs/j-1/cancel", json={"reasn": "typo"})
    assert is_problem(answer, 422, "invalid_request")["errors"][0]["field"] == "reasn"
    assert jobs.get_job(store, "j-1").state is JobState.PENDING


async def test_a_report_of_another_host(http: httpx.AsyncClient, tmp_path: Path) -> None:
    report = {
        "name": "b", "session": "s", "address": "127.0.0.1", "url": "http://127.0.0.1:1",
        "inventory": {"machine": "m", "gpus": []},
    }  # fmt: skip
    sent = await http.post("/v1/hosts/a/report", json=report, headers=node_headers("a", tmp_path))
    is_problem(sent, 422, "invalid_request")
    assert (await http.get("/v1/hosts")).json()["items"] == []
    del report["session"]
    sent = await http.post("/v1/hosts/b/report", json=report, headers=node_headers("b", tmp_path))
    problem = is_problem(sent, 422, "invalid_request")
    assert problem["errors"][0]["field"] == "session"


async def test_an_error_of_ours_says_so_and_shows_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    submitted(store)
    app = application(store, NO_TEMPORAL)
    monkeypatch.setattr("gpu_platform.store.jobs.jobs.get_job", lambda *_: 1 / 0)
    async with in_process(app) as http:
        with structlog.testing.capture_logs() as lines:
            answer = await http.get("/v1/jobs/j-1")
        problem = is_problem(answer, 500, "internal")
        assert "division" not in problem["detail"]
        assert isinstance(lines[-1]["exc_info"], ZeroDivisionError)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
FIELDS = ["command", "gpus", "env", "name", "workdir", "priority", "time_limit_s", "rank_per", "grace_s", "?"]


@settings(max_examples=few(100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
async def test_no_body_makes_the_service_fail(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode()
    answer = await http.post("/v1/jobs", content=content, headers={"Content-Type": "application/json"})
    # 503: it was right, and then there was no Temporal.
    assert answer.status_code in (400, 422, 503), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
