"""Two tenants against each other, stolen and revoked tokens, claims in bodies: the real service, asked from outside."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from httpx_sse import aconnect_sse

from gpu_platform.client import AsyncClient
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.settings import RateLimitSettings, ServiceSettings, Settings
from gpu_platform.store import Store, events
from gpu_platform.store.access import sessions, tokens
from gpu_platform.store.jobs import jobs
from service.access.routes import ROUTES
from tests.security.tenants import ADA, ADAS, BOB, NOWHERE, SECRET, Tenants
from tests.store_cluster import NOW, Cluster
from tests.unit.service.api_server import (
    application,
    bearer,
    in_process,
    recording,
    served,
    sign_in,
    temporal_dev_server,
)
from tests.waiting import eventually


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


@pytest.mark.parametrize("route", sorted(ROUTES))
async def test_the_other_tenant_learns_nothing_of_a_job_by_any_route(tenants: Tenants, route: str) -> None:
    """Neither its id, nor its user, namespace, name or environment: from no route, whatever is asked."""
    method, path = route.split(" ", 1)
    for name, value in {"job_id": ADAS, "name": "a", "gpu_id": "a:0", "session_id": f"1.0.{'0' * 32}"}.items():
        path = path.replace(f"{{{name}}}", value)
    answer = await tenants.ask(
        BOB,
        method,
        path.replace("{token_id}", "t-x"),
        params={"follow": "false"},
        json={} if method == "POST" else None,
    )
    assert answer.status_code < 500 or answer.status_code == 503, answer.text
    for word in ("team-a", '"ada"', "rosebud", SECRET, *([] if ADAS in path else [ADAS])):
        assert word not in answer.text, (route, answer.text)


async def test_jobs_that_one_may_not_see_and_jobs_that_do_not_exist_look_alike(tenants: Tenants) -> None:
    other = "j-0000000000000zz"
    for method, path in (("GET", ""), ("POST", "/kill"), ("GET", "/logs"), ("POST", "/exec"), ("GET", "/reason")):
        hidden = await tenants.ask(BOB, method, f"/v1/jobs/{ADAS}{path}", json={"command": ["env"]})
        absent = await tenants.ask(BOB, method, f"/v1/jobs/{other}{path}", json={"command": ["env"]})
        assert hidden.status_code == absent.status_code == 404
        assert hidden.text.replace(ADAS, "") == absent.text.replace(other, "")
    spec = {"checkpoint": {"resume_from": ADAS}}
    stolen = await tenants.submit(BOB, **spec)
    assert stolen.status_code == 422
    assert "there is no job" in stolen.json()["detail"]


async def test_the_environment_is_never_shown_to_anybody(tenants: Tenants) -> None:
    """Not by any route, and not to the user or an administrator either. Names of variables are."""
    sign_in(tenants.store, "gpt_" + "root" * 10, "root", {CLUSTER: Role.ADMIN})
    for token in (ADA, "gpt_" + "root" * 10):
        for route in ROUTES:
            method, path = route.split(" ", 1)
            if method == "GET" and "{session_id}" not in path:
                path = path.replace("{job_id}", ADAS).replace("{name}", "a").replace("{gpu_id}", "a:0")
                answer = await tenants.ask(token, method, path, params={"follow": "false"})
                assert SECRET not in answer.text, route
        assert (await tenants.ask(token, "GET", f"/v1/jobs/{ADAS}")).json()["spec"]["env"] == {"TOKEN": "***"}
        preempted = await tenants.ask(token, "POST", f"/v1/jobs/{ADAS}/preempt")
        assert SECRET not in preempted.text


async def test_who_else_holds_a_gpu_is_masked(tenants: Tenants) -> None:
    assert (await tenants.ask(ADA, "GET", "/v1/gpus/a:0")).json()["job_id"] == ADAS
    seen = (await tenants.ask(BOB, "GET", "/v1/gpus/a:0")).json()
    assert seen["job_id"] == "hidden"
    assert [holder["job_id"] for holder in seen["holders"]] == ["hidden"]


async def test_events_and_usage_are_those_of_ones_own_namespaces(tenants: Tenants) -> None:
    async def kinds(token: str) -> set[str]:
        page = (await tenants.ask(token, "GET", "/v1/events", params={"follow": "false"})).json()
        return {item["kind"] for item in page["items"]}

    assert "job.running" in await kinds(ADA)
    assert await kinds(BOB) == set()
    assert "host.registered" not in await kinds(ADA)
    for token, seen in ((ADA, 1), (BOB, 0)):
        assert len((await tenants.ask(token, "GET", "/v1/jobs")).json()["items"]) == seen
    attempts_of_bob = (await tenants.ask(BOB, "GET", "/v1/usage", params={"namespace": "team-a"})).json()
    assert attempts_of_bob["users"] == []


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"namespace": "team-b"}, 403, "role user there"),
        ({"user": "bob"}, 403, "leave `user` out"),
        ({"user": "root"}, 403, "operator of namespace team-a"),
        ({"priority": 1}, 403, "at most 0"),
    ],
)
async def test_claims_in_the_body_are_refused(
    tenants: Tenants, fields: dict[str, Any], status: int, words: str
) -> None:
    for path in ("/v1/jobs", "/v1/jobs:dry-run"):
        refused = await tenants.ask(ADA, "POST", path, json={"command": ["true"], **fields})
        assert refused.status_code == status, refused.text
        assert words in refused.json()["detail"]
    header = await tenants.submit(ADA, headers={"X-GPU-Platform-User": "bob"})
    assert header.status_code == 403
    assert jobs.list_jobs(tenants.store)[0][0].id == ADAS


async def test_namespace_and_user_come_from_the_token(temporal: str, sqlite_store: Store) -> None:
    async with recording(temporal), in_process(application(sqlite_store, temporal)) as http:
        Cluster(sqlite_store).host("a", gpus=1)
        sign_in(sqlite_store, ADA, "ada", {"team-a": Role.USER})
        sign_in(sqlite_store, BOB, "bob", {"team-b": Role.OPERATOR, "team-c": Role.USER, "team-d": Role.VIEWER})
        tenants = Tenants(http, sqlite_store)
        made = (await tenants.submit(ADA)).json()["spec"]
        assert (made["namespace"], made["user"]) == ("team-a", "ada")
        unclear = await tenants.submit(BOB)
        assert unclear.status_code == 422
        assert "team-b, team-c" in unclear.json()["detail"]
        made = (await tenants.submit(BOB, namespace="team-b", user="carl")).json()
        assert made["spec"]["user"] == "carl"
        submitted = [event for event in events.read_events(sqlite_store, 0) if event.job_id == made["id"]]
        assert submitted[0].actor == "bob"
        assert (await tenants.submit(BOB, namespace="team-b", priority=1000)).status_code == 201
        assert (await tenants.submit(BOB, namespace="team-c", priority=1000)).status_code == 403


async def test_an_unknown_namespace_is_refused_unless_the_configuration_opens_it(
    temporal: str, sqlite_store: Store
) -> None:
    closed = Settings().access.model_copy(update={"namespaces": ["research"]})
    app = application(sqlite_store, temporal, access=closed)
    Cluster(sqlite_store).host("a", gpus=1)
    async with recording(temporal), in_process(app) as http:
        refused = await http.post("/v1/jobs", json={"command": ["true"], "namespace": "nowhere"})
        assert refused.status_code == 422
        assert "default, research" in refused.json()["detail"]
        for known in ("research", "default"):
            made = await http.post("/v1/jobs", json={"command": ["true"], "namespace": known})
            assert made.status_code == 201, made.text


async def test_idempotency_keys_belong_to_their_principal(temporal: str, sqlite_store: Store) -> None:
    async with recording(temporal), in_process(application(sqlite_store, temporal)) as http:
        Cluster(sqlite_store).host("a", gpus=1)
        sign_in(sqlite_store, ADA, "ada", {"team-a": Role.USER})
        sign_in(sqlite_store, BOB, "bob", {"team-b": Role.USER})
        tenants, same = Tenants(http, sqlite_store), {"Idempotency-Key": "nightly"}
        first = await tenants.submit(ADA, headers=same, name="hers")
        other = await tenants.submit(BOB, headers=same, name="his")
        again = await tenants.submit(ADA, headers=same, name="hers")
        assert (first.status_code, other.status_code, again.status_code) == (201, 201, 200)
        assert first.json()["id"] == again.json()["id"] != other.json()["id"]
        assert (await tenants.submit(ADA, headers=same, name="another")).status_code == 409


async def test_a_revoked_or_expired_token_is_refused_at_once(tenants: Tenants) -> None:
    info = tokens.find_token(tenants.store, ADA)
    assert info is not None
    assert (await tenants.ask(ADA, "GET", f"/v1/jobs/{ADAS}")).status_code == 200
    tokens.revoke_token(tenants.store, info.id, actor="root", now=datetime.now(UTC))  # as another process does it
    refused = await tenants.ask(ADA, "GET", f"/v1/jobs/{ADAS}")
    assert refused.status_code == 401
    assert "was revoked" in refused.json()["detail"]
    past = datetime.now(UTC) - timedelta(seconds=1)
    sign_in(tenants.store, "gpt_" + "old" * 14, "ada", {"team-a": Role.USER}, expires_at=past)
    assert (await tenants.ask("gpt_" + "old" * 14, "GET", "/v1/whoami")).status_code == 401


async def test_a_stream_of_a_revoked_token_ends_within_seconds(sqlite_store: Store) -> None:
    app = application(sqlite_store, NOWHERE)
    info = sign_in(sqlite_store, ADA, "ada", {"team-a": Role.USER})
    async with served(app) as url, httpx.AsyncClient(headers=bearer(ADA), timeout=20) as http:
        async with aconnect_sse(http, "GET", f"{url}/v1/events") as source:
            assert source.response.status_code == 200
            tokens.revoke_token(sqlite_store, info.id, actor="root", now=datetime.now(UTC))
            async with asyncio.timeout(8):  # keep-alives come for ever
                ends = [sse async for sse in source.aiter_sse()]
        assert [sse.event for sse in ends] == ["problem"]
        assert json.loads(ends[0].data)["code"] == "not_signed_in"
        assert (await http.get(f"{url}/v1/jobs/j-x", params={"wait_s": 1})).status_code == 401


async def test_a_request_that_lasts_goes_on_with_a_valid_token(sqlite_store: Store) -> None:
    jobs.submit_job(sqlite_store, ADAS, JobSpec(command=["true"]), actor="ada", now=NOW, idempotency_key=None)
    async with served(application(sqlite_store, NOWHERE)) as url, AsyncClient(url) as client:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            await client.wait(ADAS, timeout_s=5)
        assert time.monotonic() - began > 4.5


async def test_an_operator_reads_output_of_others_only_with_a_reason_that_is_recorded(tenants: Tenants) -> None:
    operator = "gpt_" + "oper" * 10
    sign_in(tenants.store, operator, "olga", {CLUSTER: Role.OPERATOR})
    path = f"/v1/jobs/{ADAS}/logs"
    refused = await tenants.ask(operator, "GET", path)
    assert refused.status_code == 403
    assert "X-GPU-Platform-Break-Glass" in refused.json()["detail"]
    allowed = await tenants.ask(operator, "GET", path, headers={"X-GPU-Platform-Break-Glass": "incident 7"})
    assert allowed.status_code not in (401, 403)  # the host does not answer: the gate let it through
    [broke] = [event for event in events.read_events(tenants.store, 0) if event.kind == "access.broke_glass"]
    assert (broke.actor, broke.job_id, broke.data["reason"]) == ("olga", ADAS, "incident 7")
    assert (await tenants.ask(BOB, "GET", path, headers={"X-GPU-Platform-Break-Glass": "please"})).status_code == 404


async def test_a_command_beside_a_rank_is_for_who_started_it(tenants: Tenants) -> None:
    admin, session = "gpt_" + "tadm" * 10, f"1.0.{'0' * 32}"
    sign_in(tenants.store, admin, "tess", {"team-a": Role.ADMIN})
    sessions.add_session(tenants.store, session, ADAS, "person/ada", datetime.now(UTC))
    path = f"/v1/jobs/{ADAS}/exec/{session}"
    for method, below in (("GET", ""), ("POST", "/input"), ("DELETE", "")):
        assert (await tenants.ask(admin, method, path + below)).status_code == 404
        through = await tenants.ask(ADA, method, path + below)
        assert through.json()["code"] == "host_unavailable" if method != "GET" else through.status_code == 200
    assert (await tenants.ask(ADA, "DELETE", f"/v1/jobs/{ADAS}/exec/1.0.{'1' * 32}")).status_code == 404


async def test_an_operator_of_the_cluster_may_act_for_others_and_that_is_recorded(tenants: Tenants) -> None:
    operator = "gpt_" + "oper" * 10
    sign_in(tenants.store, operator, "olga", {CLUSTER: Role.OPERATOR})
    headers = {"X-GPU-Platform-User": "ada"}
    assert (await tenants.ask(operator, "POST", "/v1/hosts/a/drain", headers=headers)).status_code == 200
    found = {event.kind: event for event in events.read_events(tenants.store, 0)}
    assert found["access.acted_for"].actor == "olga"
    assert found["access.acted_for"].data["as"] == "ada"


async def test_two_credentials_are_none(tenants: Tenants) -> None:
    """A proxy in front of the service may have checked the other header."""
    for first, second in ((ADA, BOB), (BOB, ADA), (ADA, "x")):
        headers = [("Authorization", f"Bearer {token}") for token in (first, second)]
        answer = await tenants.http.request("GET", f"/v1/jobs/{ADAS}", headers=headers)
        assert answer.status_code == 401, (first, second)
    for name in ("X-Forwarded-User", "X-Remote-User", "X-Forwarded-For", "Forwarded"):
        answer = await tenants.ask(BOB, "GET", f"/v1/jobs/{ADAS}", headers={name: "ada"})
        assert answer.status_code == 404, name
    for query in ("access_token", "token", "authorization"):
        answer = await tenants.http.get("/v1/whoami", params={query: ADA}, headers={"Authorization": ""})
        assert answer.status_code == 401, query


async def test_streams_of_one_caller_leave_the_service_to_others(sqlite_store: Store) -> None:
    """Each holds a connection; without a limit one caller takes all that the process has, and no host is heard."""
    limits = RateLimitSettings(at_once=3)
    app = application(sqlite_store, NOWHERE, service=ServiceSettings(rate_limits=limits))
    sign_in(sqlite_store, ADA, "ada", {"team-a": Role.USER})
    sign_in(sqlite_store, BOB, "bob", {"team-b": Role.USER})
    async with served(app) as url, httpx.AsyncClient(base_url=url) as http, AsyncExitStack() as open_streams:
        for _ in range(3):
            stream = http.stream("GET", "/v1/events", headers=bearer(ADA))
            assert (await open_streams.enter_async_context(stream)).status_code == 200
        refused = await http.get("/v1/whoami", headers=bearer(ADA))
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "1"
        assert (await http.get("/v1/whoami", headers=bearer(BOB))).status_code == 200
        await open_streams.aclose()

        async def is_served() -> bool:
            return (await http.get("/v1/whoami", headers=bearer(ADA))).status_code == 200

        await eventually(is_served, "an end of the streams")


async def test_many_wrong_tokens_at_once_change_nothing(tenants: Tenants) -> None:
    guesses = [tenants.ask(f"gpt_{os.urandom(24).hex()}", "GET", "/v1/jobs") for _ in range(50)]
    assert {answer.status_code for answer in await asyncio.gather(*guesses)} == {401}
