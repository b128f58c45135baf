"""Every route of the running service, asked by everybody: who gets through, and who does not.

The table below is written by hand. A route that it does not name, or a role that it forgets, fails.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import yaml
from fastapi import FastAPI
from sqlalchemy import select, update

from gpu_platform.domain.access.roles import CLUSTER, Permission, Role
from gpu_platform.domain.errors import CannotStart
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.schedule import ScheduleRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.pipelines.pipeline import PipelineSpec, Step
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from gpu_platform.store.access import job_tokens
from gpu_platform.store.jobs import arrays, pipelines, schedules
from gpu_platform.store.models import job, job_array
from service.access.routes import ROUTES, TABLE, routes_of
from service.app import create_app
from service.routers.dashboard import site
from tests.support.api_server import application, bearer, in_process, sign_in
from tests.support.store_cluster import NOW, Cluster

NOWHERE = "127.0.0.1:1"
JOB = "j-0000000000000a1"
ARRAY = "a-0000000000000a1"
SCHEDULE, PIPELINE = "s-0000000000000a1", "p-0000000000000a1"

ROLES: dict[str, dict[str, Role]] = {
    "nobody": {},
    "stranger": {"team-b": Role.ADMIN},
    "viewer": {"team-a": Role.VIEWER},
    "user": {"team-a": Role.USER},
    "owner": {"team-a": Role.USER},
    "operator": {"team-a": Role.OPERATOR},
    "admin": {"team-a": Role.ADMIN},
    "auditor": {CLUSTER: Role.VIEWER},
    "cluster-operator": {CLUSTER: Role.OPERATOR},
    "cluster-admin": {CLUSTER: Role.ADMIN},
    "job": {"team-a": Role.USER},
}
"""Who asks. The job is in team-a, and ``owner`` is its user. ``job`` is a rank of it, with its job token."""

EVERYBODY = frozenset(ROLES)
SIGNED_IN = EVERYBODY - {"nobody", "job"}
TEAM = SIGNED_IN - {"stranger"}
MAY_SUBMIT_SOMEWHERE = SIGNED_IN - {"viewer", "auditor"}
TEAM_USERS = MAY_SUBMIT_SOMEWHERE - {"stranger"}
ABOVE_OWNER = frozenset({"operator", "admin", "cluster-operator", "cluster-admin"})
OWNER_OR_ADMIN = frozenset({"owner", "admin", "cluster-admin"})
CLUSTER_WIDE = frozenset({"auditor", "cluster-operator", "cluster-admin"})
OPERATORS = frozenset({"cluster-operator", "cluster-admin"})
NOBODY: frozenset[str] = frozenset()

MAY: dict[str, frozenset[str]] = {
    "GET /healthz": EVERYBODY,
    "GET /readyz": EVERYBODY,
    "GET /metrics": CLUSTER_WIDE,
    "GET /": EVERYBODY,
    "GET /sign-in": EVERYBODY,
    "POST /sign-in/begin": EVERYBODY,
    "POST /sign-in/code": EVERYBODY,
    "POST /sign-in/refresh": EVERYBODY,
    "POST /sign-in/end": EVERYBODY,
    "GET /hosts/{name}": EVERYBODY,
    "GET /jobs": EVERYBODY,
    "GET /jobs/{job}": EVERYBODY,
    "GET /arrays": EVERYBODY,
    "GET /arrays/{array}": EVERYBODY,
    "GET /pipelines": EVERYBODY,
    "GET /pipelines/{pipeline}": EVERYBODY,
    "GET /schedules": EVERYBODY,
    "GET /schedules/{schedule}": EVERYBODY,
    "GET /queue": EVERYBODY,
    "GET /what-if": EVERYBODY,
    "GET /submit": EVERYBODY,
    "GET /usage": EVERYBODY,
    "GET /dashboard/{release}/{path:path}": EVERYBODY,
    "GET /docs": SIGNED_IN,
    "GET /docs/start.js": SIGNED_IN,
    "GET /docs/{asset}": SIGNED_IN,
    "GET /openapi.json": SIGNED_IN,
    "GET /v1/login": EVERYBODY,
    "GET /v1/whoami": SIGNED_IN | {"job"},
    "GET /v1/tokens": SIGNED_IN,
    "POST /v1/tokens": SIGNED_IN,
    "DELETE /v1/tokens/{token_id}": SIGNED_IN,
    "GET /v1/secrets": MAY_SUBMIT_SOMEWHERE,
    "PUT /v1/secrets/{namespace}/{secret}": TEAM_USERS,
    "GET /v1/uploads/{namespace}/{sha256}": TEAM_USERS,
    "PUT /v1/uploads/{namespace}/{sha256}": TEAM_USERS,
    "DELETE /v1/secrets/{namespace}/{secret}": TEAM_USERS,
    "POST /v1/jobs": MAY_SUBMIT_SOMEWHERE | {"job"},
    "POST /v1/jobs:dry-run": MAY_SUBMIT_SOMEWHERE | {"job"},
    "GET /v1/jobs": SIGNED_IN,
    "GET /v1/jobs/{job_id}": TEAM | {"job"},
    "PATCH /v1/jobs/{job_id}": ABOVE_OWNER | {"owner"},
    "GET /v1/jobs/{job_id}/reason": TEAM | {"job"},
    "GET /v1/jobs/{job_id}/events": TEAM | {"job"},
    "GET /v1/jobs/{job_id}/usage": TEAM | {"job"},
    "GET /v1/jobs/{job_id}/metrics": TEAM | {"job"},
    "GET /v1/jobs/{job_id}/checkpoints": ABOVE_OWNER | {"owner", "job"},
    "GET /v1/jobs/{job_id}/logs": OWNER_OR_ADMIN,
    "POST /v1/jobs/{job_id}/cancel": ABOVE_OWNER | {"owner", "job"},
    "POST /v1/jobs/{job_id}/kill": ABOVE_OWNER | {"owner"},
    "POST /v1/jobs/{job_id}/retry": ABOVE_OWNER | {"owner"},
    "POST /v1/jobs/{job_id}/hold": ABOVE_OWNER | {"owner"},
    "POST /v1/jobs/{job_id}/release": ABOVE_OWNER | {"owner"},
    "POST /v1/jobs/{job_id}/preempt": ABOVE_OWNER | {"owner", "job"},
    "POST /v1/jobs/{job_id}/checkpoints": ABOVE_OWNER | {"owner"},
    "POST /v1/jobs/{job_id}/exec": OWNER_OR_ADMIN,
    "GET /v1/jobs/{job_id}/exec": OWNER_OR_ADMIN,
    "GET /v1/jobs/{job_id}/exec/{session_id}": NOBODY,
    "POST /v1/jobs/{job_id}/exec/{session_id}/attach": NOBODY,
    "POST /v1/jobs/{job_id}/exec/{session_id}/connections": NOBODY,
    "POST /v1/jobs/{job_id}/exec/{session_id}/input": NOBODY,
    "POST /v1/jobs/{job_id}/exec/{session_id}/size": NOBODY,
    "DELETE /v1/jobs/{job_id}/exec/{session_id}": NOBODY,
    "POST /v1/arrays": MAY_SUBMIT_SOMEWHERE | {"job"},
    "GET /v1/arrays": SIGNED_IN,
    "GET /v1/arrays/{array_id}": TEAM,
    "PATCH /v1/arrays/{array_id}": ABOVE_OWNER | {"owner"},
    "POST /v1/arrays/{array_id}/cancel": ABOVE_OWNER | {"owner"},
    "POST /v1/arrays/{array_id}/kill": ABOVE_OWNER | {"owner"},
    "POST /v1/arrays/{array_id}/hold": ABOVE_OWNER | {"owner"},
    "POST /v1/arrays/{array_id}/release": ABOVE_OWNER | {"owner"},
    "POST /v1/arrays/{array_id}/retry": ABOVE_OWNER | {"owner"},
    "GET /v1/reservations": SIGNED_IN,
    "POST /v1/reservations": OPERATORS,
    "GET /v1/reservations/{reservation}": SIGNED_IN,
    "PATCH /v1/reservations/{reservation}": OPERATORS,
    "DELETE /v1/reservations/{reservation}": OPERATORS,
    "POST /v1/schedules": MAY_SUBMIT_SOMEWHERE,
    "GET /v1/schedules": SIGNED_IN,
    "GET /v1/schedules/{schedule_id}": TEAM,
    "POST /v1/schedules/{schedule_id}/pause": ABOVE_OWNER | {"owner"},
    "POST /v1/schedules/{schedule_id}/resume": ABOVE_OWNER | {"owner"},
    "POST /v1/schedules/{schedule_id}/trigger": ABOVE_OWNER | {"owner"},
    "POST /v1/schedules/{schedule_id}/backfill": ABOVE_OWNER | {"owner"},
    "DELETE /v1/schedules/{schedule_id}": ABOVE_OWNER | {"owner"},
    "POST /v1/pipelines": MAY_SUBMIT_SOMEWHERE,
    "GET /v1/pipelines": SIGNED_IN,
    "GET /v1/pipelines/{pipeline_id}": TEAM,
    "POST /v1/pipelines/{pipeline_id}/cancel": ABOVE_OWNER | {"owner"},
    "POST /v1/pipelines/{pipeline_id}/retry": ABOVE_OWNER | {"owner"},
    "GET /v1/quotas": SIGNED_IN,
    "GET /v1/queue": SIGNED_IN,
    "GET /v1/usage": SIGNED_IN,
    "GET /v1/events": SIGNED_IN,
    "GET /v1/snapshot": CLUSTER_WIDE,
    "POST /v1/snapshot:what-if": OPERATORS,
    "GET /v1/report": CLUSTER_WIDE,
    "GET /v1/audit": OPERATORS,
    "POST /v1/alertmanager/api/v2/alerts": OPERATORS,
    "POST /v1/alerts:test": OPERATORS,
    "GET /v1/notifications": SIGNED_IN,
    "POST /v1/notifications:test": MAY_SUBMIT_SOMEWHERE,
    "POST /v1/temporal/decode": OPERATORS,
    "POST /v1/checkpoint-roots:check": OPERATORS,
    "GET /v1/clocks": OPERATORS,
    "GET /v1/cluster": SIGNED_IN,
    "GET /v1/hosts": SIGNED_IN,
    "GET /v1/hosts/{name}": SIGNED_IN,
    "POST /v1/hosts/{name}/drain": OPERATORS,
    "POST /v1/hosts/{name}/offline": OPERATORS,
    "POST /v1/hosts/{name}/online": OPERATORS,
    "POST /v1/hosts/{name}/declare-lost": OPERATORS,
    "DELETE /v1/hosts/{name}": OPERATORS,
    "POST /v1/hosts/{name}/enroll": frozenset({"cluster-admin"}),
    "DELETE /v1/hosts/{name}/identity": OPERATORS,
    "GET /v1/hosts/{name}/metrics": CLUSTER_WIDE,
    "GET /v1/gpus": SIGNED_IN,
    "GET /v1/gpus/{gpu_id}": SIGNED_IN,
    "GET /v1/gpus/{gpu_id}/health": SIGNED_IN,
    "GET /v1/gpus/{gpu_id}/events": CLUSTER_WIDE,
    "GET /v1/gpus/{gpu_id}/metrics": CLUSTER_WIDE,
    "GET /v1/gpus/{gpu_id}/remediation": CLUSTER_WIDE,
    "GET /v1/gpus/{gpu_id}/service-case": CLUSTER_WIDE,
    "POST /v1/gpus/{gpu_id}/drain": OPERATORS,
    "POST /v1/gpus/{gpu_id}/offline": OPERATORS,
    "POST /v1/gpus/{gpu_id}/online": OPERATORS,
    "POST /v1/gpus/{gpu_id}/remediation/approve": OPERATORS,
    "POST /v1/gpus/{gpu_id}/remediation/veto": OPERATORS,
}
"""Route -> who gets through. Nobody has started a command beside a rank, so nobody reads from one."""
IF_SHARED = {"GET /v1/jobs/{job_id}/logs": TEAM, "GET /v1/jobs/{job_id}/checkpoints": TEAM | {"job"}}
"""Route -> who gets through if the job says `readable_by: namespace`. Every other route is as it is without."""
WITH_A_JOB: dict[str, Callable[[dict[str, Any]], Any]] = {
    "POST /v1/jobs": lambda job: job,
    "POST /v1/jobs:dry-run": lambda job: job,
    "POST /v1/arrays": lambda job: {"job": job, "array": {"indices": "0-1"}},
    "POST /v1/schedules": lambda job: {"every_s": 3600, "job": job},
    "POST /v1/pipelines": lambda job: {
        "file": yaml.safe_dump({"namespace": job.pop("namespace"), "steps": {"one": job}})
    },
}
"""Routes that take a job, and how it stands in the body."""
MAY_RESUME = {"owner", "admin", "cluster-admin"}
"""Who begins a job with the checkpoints of the owner's job, of those who may submit to its namespace."""
OF_NODES = {
    "POST /v1/hosts/{name}/report",
    "POST /v1/hosts/{name}/heartbeat",
    "POST /v1/hosts/{name}/attempts/{job_id}/{attempt}/secrets",
    "GET /v1/hosts/{name}/attempts/{job_id}/{attempt}/upload",
}
"""Only for the node worker of that host: see ``test_machines``, ``test_secrets`` and ``test_uploads``."""
OF_MACHINES = {"GET /v1/identity/authorities", "POST /v1/identity/enroll", "POST /v1/identity/renew"}
"""For machines that have no certificate yet, or renew theirs: the handler checks the join token or the certificate."""


def token_of(who: str) -> str:
    return f"{job_tokens.PREFIX if who == 'job' else 'gpt_'}{who}".ljust(47, "0")


@dataclass
class Asked:
    """What the gate let through, instead of the handlers."""

    through: list[str] = field(default_factory=list)


@pytest.fixture
async def service(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    cluster = Cluster(sqlite_store).host("a", gpus=1)
    cluster.queued(JOB, namespace="team-a", user="owner")
    held = cluster.reserve(JOB, {"a": [0]})
    spec = JobSpec(command=["true"], namespace="team-a", user="owner")
    array = ArraySpec(indices="0-9")
    arrays.submit_array(sqlite_store, ARRAY, spec, array, actor="owner", now=NOW, idempotency_key=None)
    monkeypatch.setattr(job_tokens.secrets, "token_urlsafe", lambda _: token_of("job").removeprefix(job_tokens.PREFIX))
    assert job_tokens.issue(sqlite_store, held, "a", NOW) == token_of("job")
    often = ScheduleRequest(every_s=60, job=JobSpec(command=["true"], namespace="team-a", user="owner"))
    schedules.create(sqlite_store, SCHEDULE, often, actor="owner", now=NOW)
    step = Step(name="one", job=often.job)
    spec = PipelineSpec(name="p", namespace="team-a", user="owner", steps=(step,))
    pipelines.create(sqlite_store, PIPELINE, spec, actor="owner", uses_cache=True, now=NOW)
    monkeypatch.setattr(schedules, "remove", lambda *_, **__: None)  # everybody asks to delete the same one
    app = application(sqlite_store, NOWHERE)
    for who, roles in ROLES.items():
        if roles and who != "job":
            sign_in(sqlite_store, token_of(who), who, roles)
    async with in_process(app) as http:
        http.headers.pop("Authorization")
        yield http


def address(path: str) -> str:
    values = {
        "job_id": JOB,
        "array_id": ARRAY,
        "session_id": f"1.0.{'0' * 32}",
        "name": "a",
        "gpu_id": "nothing",
        "token_id": "t-none",
        "release": "0",
        "path:path": "app.js",
    }
    values["reservation"] = "none"
    values |= {"namespace": "team-a", "secret": "nothing", "schedule_id": SCHEDULE, "pipeline_id": PIPELINE}
    for name, value in values.items():
        path = path.replace(f"{{{name}}}", value)
    return path


def share(store: Store) -> None:
    """Let the owner's jobs say that their namespace may read what they leave behind."""
    for table in (job, job_array):
        with store.write() as session:
            for row in session.execute(select(table.c.id, table.c.spec)).all():
                said = json.dumps({**json.loads(row.spec), "readable_by": "namespace"})
                session.execute(update(table).where(table.c.id == row.id).values(spec=said))


async def got_through(http: httpx.AsyncClient, route: str, who: str) -> bool:
    """Was it the handler that answered? What it answers does not matter here: the gate refuses before it."""
    method, path = route.split(" ", 1)
    headers = bearer(token_of(who)) if ROLES[who] else {}
    # No handler does anything: its parameters are wrong, or what it names is not there.
    answer = await http.request(
        method,
        address(path),
        headers={**headers, "Content-Type": "application/json"},
        content=b"[]" if method == "POST" else None,
        params={"follow": "false", "limit": "1"},
    )
    problem = answer.json() if answer.headers["content-type"] == "application/problem+json" else {}
    if who == "nobody" and "nobody" not in MAY[route]:
        assert answer.status_code == 401, (route, answer.text)
        assert answer.headers["WWW-Authenticate"].endswith('realm="gpu-platform"')
        return False
    if problem.get("code") == "forbidden":
        assert "needs" in problem["details"]
        return False
    return not (answer.status_code == 404 and problem["detail"] in NOT_THERE)


NOT_THERE = (
    f"there is no job '{JOB}'",
    f"there is no array '{ARRAY}'",
    f"there is no schedule '{SCHEDULE}'",
    f"there is no pipeline '{PIPELINE}'",
    "there is no such command beside a rank, or somebody else started it",
)


def test_this_table_names_every_route_of_the_service(sqlite_store: Store) -> None:
    routes = set(routes_of(create_app(Settings(), sqlite_store)))
    assert routes == MAY.keys() | OF_NODES | OF_MACHINES
    assert routes == ROUTES.keys()
    assert len(routes) > 50


@pytest.mark.parametrize("route", sorted(MAY))
async def test_each_route_lets_through_whom_it_must_and_nobody_else(service: httpx.AsyncClient, route: str) -> None:
    through = {who for who in ROLES if await got_through(service, route, who)}
    assert through == MAY[route]


@pytest.mark.parametrize("route", sorted(route for route in MAY if "{job_id}" in route or "{array_id}" in route))
async def test_what_is_shared_opens_output_and_checkpoints_to_the_namespace_and_nothing_else(
    service: httpx.AsyncClient, sqlite_store: Store, route: str
) -> None:
    share(sqlite_store)
    through = {who for who in ROLES if await got_through(service, route, who)}
    assert through == IF_SHARED.get(route, MAY[route])


def test_every_route_that_takes_a_job_is_tried_with_checkpoints_of_others() -> None:
    takes = {route for route, rule in ROUTES.items() if rule.permission is Permission.JOBS_SUBMIT}
    ids = ("{job_id}", "{array_id}", "{schedule_id}", "{pipeline_id}", "{sha256}")
    others = {"POST /v1/notifications:test"}
    assert {route for route in takes if not any(one in route for one in ids)} - others == WITH_A_JOB.keys()


@pytest.mark.parametrize("shared", [False, True], ids=["not shared", "shared"])
@pytest.mark.parametrize("route", sorted(WITH_A_JOB))
async def test_a_job_begins_with_checkpoints_of_its_own_user_or_shared_ones(
    service: httpx.AsyncClient, sqlite_store: Store, route: str, shared: bool
) -> None:
    if shared:
        share(sqlite_store)
    for who in sorted(MAY_SUBMIT_SOMEWHERE | {"viewer", "auditor"}):
        said = {"command": ["true"], "namespace": "team-a", "checkpoint": {"resume_from": f"{JOB}:1/step-3"}}
        method, path = route.split(" ", 1)
        answer = await service.request(method, path, headers=bearer(token_of(who)), json=WITH_A_JOB[route](said))
        may = who in TEAM_USERS and (shared or who in MAY_RESUME)
        assert (answer.status_code == 403) is not may, (who, answer.status_code, answer.text)
        assert not may or answer.status_code in (200, 201, 202, 503), "Temporal is nowhere"


async def test_checkpoints_of_another_namespace_are_not_there_and_sharing_changes_nothing(
    service: httpx.AsyncClient, sqlite_store: Store
) -> None:
    share(sqlite_store)
    said = {"command": ["true"], "namespace": "team-b", "checkpoint": {"resume_from": JOB}}
    for who in ("stranger", "cluster-admin", "cluster-operator"):
        answer = await service.post("/v1/jobs", headers=bearer(token_of(who)), json=said)
        assert answer.status_code in (403, 422), answer.text


def test_a_service_with_a_route_that_the_table_does_not_name_does_not_start() -> None:
    app = FastAPI(openapi_url=None)

    @app.get("/v1/new")
    def _new() -> None: ...

    with pytest.raises(CannotStart, match="GET /v1/new"):
        TABLE.check(app)


async def test_a_route_that_was_added_later_is_not_served(sqlite_store: Store) -> None:
    app = application(sqlite_store, NOWHERE)

    @app.get("/v1/new")
    def _new() -> None: ...

    async with in_process(app) as http:
        assert (await http.get("/v1/new")).status_code == 404
        assert (await http.get("/v1/jobs/../new")).status_code == 404
        assert (await http.get("/v1/whoami")).status_code == 200


@pytest.mark.parametrize("path", ["//v1/jobs", "/v1//jobs", "/V1/jobs", "/v1/jobs/", "/v1/jobs%2f", "/v1/%6aobs"])
async def test_a_path_written_in_another_way_is_no_way_in(service: httpx.AsyncClient, path: str) -> None:
    answer = await service.get(path)
    # What the client takes for the name of a host leaves the address of a page, which has no data in it.
    assert answer.status_code in (401, 404) or answer.text == site().page


@pytest.mark.parametrize(
    "header",
    [
        "gpt_x", "Bearer", "Bearer ", "Basic YTpi", "Bearer gpt_" + "0" * 43, "Bearer a.b.c",
        "Bearer eyJhbGciOiJub25lIn0.e30.",
        "bearer " + "x" * 20_000,
    ],
)  # fmt: skip
async def test_a_wrong_header_is_a_401_that_says_what_to_do(service: httpx.AsyncClient, header: str) -> None:
    answer = await service.get("/v1/jobs", headers={"Authorization": header})
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="gpu-platform"'
    assert answer.json()["code"] == "not_signed_in"
    assert "GPU_PLATFORM_TOKEN" in answer.json()["detail"]


async def test_a_refusal_says_what_it_takes_and_who_has_it(service: httpx.AsyncClient) -> None:
    answer = await service.post("/v1/hosts/a/drain", headers=bearer(token_of("operator")))
    assert answer.status_code == 403
    detail = answer.json()["detail"]
    for words in ("operator (operator in team-a)", "POST /v1/hosts/{name}/drain", "role operator in the cluster"):
        assert words in detail
    assert "cluster-operator" in detail


async def test_a_browser_gets_a_question_for_the_password_only_where_pages_are(service: httpx.AsyncClient) -> None:
    assert (await service.get("/docs")).headers["WWW-Authenticate"].startswith("Basic")
    signed_in = httpx.BasicAuth("whoever", token_of("viewer"))
    assert (await service.get("/docs", auth=signed_in)).status_code == 200
    assert (await service.get("/openapi.json", auth=signed_in)).status_code == 200
    assert (await service.get("/v1/jobs", auth=signed_in)).status_code == 401
