"""A web page of another site can do nothing here, not even to a service on its reader's own machine."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gpu_platform.client import AsyncClient
from gpu_platform.client.wire import Problem
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.hosts.gpu import Host
from gpu_platform.settings import ServiceSettings, Settings, TlsSettings
from gpu_platform.store import Store
from service.app import create_app
from service.http.browsers import BrowserRules, names_of_this_service
from tests.security.hostile_service import routes_of
from tests.support.api_server import ADMIN, bearer, node_headers, served, sign_in
from tests.support.store_cluster import Cluster

DRAIN = "/v1/hosts/a/drain"
JSON = {"Content-Type": "application/json"}
JOB = {"command": ["id"]}


@pytest.fixture
async def url(sqlite_store: Store) -> AsyncIterator[str]:
    """A real service with a host."""
    Cluster(sqlite_store).host("a")
    settings = Settings(
        api_url="http://control.cluster:8700",
        service=ServiceSettings(allowed_hosts=["gpu.example.org", ".lab.example"]),
    )
    sign_in(sqlite_store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
    async with served(create_app(settings, sqlite_store)) as url:
        yield url


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        yield http


def refused(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    assert Problem.model_validate_json(answer.content).code == code


def state_of(store: Store) -> str:
    from gpu_platform.store.hosts import hosts
    from tests.support.store_cluster import NOW

    return hosts.get_host(store, "a", NOW).state.value


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8700",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::1].evil",
        "gpu.example.org.evil.example",
        "xlab.example",
        "0x7f.1",
        "",
    ],
)
async def test_a_name_that_was_pointed_here_is_refused(http: httpx.AsyncClient, host: str) -> None:
    for answer in (
        await http.get("/v1/jobs", headers={"Host": host}),
        await http.post("/v1/jobs", headers={"Host": host}, json=JOB),
        await http.post(DRAIN, headers={"Host": host, **JSON}),
    ):
        refused(answer, 421, "unknown_host")
        assert "service.allowed_hosts" in answer.json()["detail"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8700",
        "127.0.0.1:8700",
        "[::1]:8700",
        "10.1.2.3",
        "control.cluster:8700",
        "gpu.example.org",
        "gpu.example.org.",
        "a.lab.example",
    ],
)
async def test_names_of_the_service_are_answered(http: httpx.AsyncClient, host: str) -> None:
    assert (await http.get("/healthz", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "https://127.0.0.1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
async def test_a_page_of_another_site_changes_nothing(
    http: httpx.AsyncClient, sqlite_store: Store, headers: dict[str, str]
) -> None:
    refused(await http.post(DRAIN, headers=headers | JSON), 403, "cross_site")
    refused(await http.delete("/v1/hosts/a", headers=headers), 403, "cross_site")
    assert state_of(sqlite_store) == "READY"


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "text/plain;x=application/json",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
    ],
)
async def test_what_a_form_can_send_changes_nothing(
    http: httpx.AsyncClient, sqlite_store: Store, kind: str | None
) -> None:
    """A form needs no answer, and an old browser names no origin."""
    given = {} if kind is None else {"Content-Type": kind}
    answer = await http.post(DRAIN, headers=given)
    refused(answer, 415, "unsupported_media_type")
    assert "-H 'Content-Type: application/json'" in answer.json()["detail"]
    assert state_of(sqlite_store) == "READY"


async def test_every_post_is_refused_to_a_form(http: httpx.AsyncClient, sqlite_store: Store) -> None:
    found = 0
    for route in routes_of(create_app(Settings(), sqlite_store)):
        if "POST" in route.methods:
            found += 1
            path = re.sub(r"{\w+}", "a", route.path)
            refused(await http.post(path, headers={"Content-Type": "text/plain"}), 415, "unsupported_media_type")
            refused(await http.post(path, headers={"Origin": "http://evil.example", **JSON}), 403, "cross_site")
    assert found > 10


async def test_our_clients_and_pages_of_this_service_work(http: httpx.AsyncClient, url: str) -> None:
    http.headers.update(bearer())
    assert (await http.post(DRAIN, headers={"Origin": url})).status_code == 200, "/docs sends no content type"
    assert (await http.post("/v1/hosts/a/online", headers=JSON)).status_code == 200
    async with AsyncClient(url) as client:
        assert isinstance(await client.drain("a"), Host)
        assert (await client.online("a")).state == "READY"
    behind_a_proxy = {"Host": "gpu.example.org", "Origin": "https://gpu.example.org", "Sec-Fetch-Site": "same-origin"}
    assert (await http.post(DRAIN, headers=behind_a_proxy)).status_code == 200


async def test_no_other_page_reads_an_answer(http: httpx.AsyncClient) -> None:
    asked = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    for answer in (
        await http.options("/v1/jobs", headers=asked),
        await http.get("/v1/jobs", headers=asked),
        await http.get("/v1/nothing", headers=asked),
        await http.get("/docs", headers=asked),
        await http.get("/v1/jobs", headers={"Host": "evil.example"}),
    ):
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers
    assert (await http.get("/v1/jobs")).headers["cache-control"] == "no-store"
    image = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    refused(await http.get("/v1/jobs", headers=image), 403, "cross_site")
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert (await http.get("/docs", headers=link | bearer())).status_code == 200


async def test_docs_has_no_foreign_script(http: httpx.AsyncClient) -> None:
    http.headers.update(bearer())
    page = await http.get("/docs")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "default-src 'none'" in policy
    assert "http://" not in page.text
    assert "https://" not in page.text
    assert not re.search(r"<script>|\bon\w+=", page.text), "the policy forbids scripts inside the page"
    for asset in re.findall(r'(?:src|href)="([^"]+)"', page.text):
        found = await http.get(f"/{asset}")
        assert found.status_code == 200
        assert len(found.content) > 100
        assert found.headers["content-type"].split(";")[0] in ("text/javascript", "text/css", "image/png")
    assert (await http.get("/docs/core.py")).status_code == 422
    assert (await http.get("/redoc")).status_code == 404


async def test_the_check_finds_a_service_without_the_rules(sqlite_store: Store, monkeypatch: Any) -> None:
    """The same attacks succeed where the rules are left out."""

    async def passes(self: BrowserRules, scope: Any, receive: Any, send: Any) -> None:
        await self._app(scope, receive, send)

    monkeypatch.setattr(BrowserRules, "__call__", passes)
    Cluster(sqlite_store).host("a")
    sign_in(sqlite_store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
    async with served(create_app(Settings(), sqlite_store)) as url, httpx.AsyncClient(base_url=url) as http:
        evil = {"Host": "evil.example", "Origin": "http://evil.example", **bearer()}
        assert (await http.post(DRAIN, headers=evil)).status_code == 200
    assert state_of(sqlite_store) in ("DRAINING", "DRAINED")


async def test_a_machine_may_call_the_service_by_any_name(sqlite_store: Store, tmp_path: Path) -> None:
    """No page of a browser can show a node token or a certificate of a machine."""
    report = {
        "name": "a",
        "session": "s",
        "address": "127.0.0.1",
        "url": "http://service:x@127.0.0.1:1",
        "inventory": {"machine": "m", "gpus": []},
    }
    async with (
        served(create_app(Settings(state_dir=tmp_path), sqlite_store)) as url,
        httpx.AsyncClient(base_url=url, headers={"Host": "gpu-service.lab:8700"}, trust_env=False) as http,
    ):
        proof = node_headers("a", tmp_path)
        assert (await http.post("/v1/hosts/a/report", json=report, headers=proof)).status_code == 200
        wrong = {name: value[:-1] + "x" for name, value in proof.items()}
        for headers in ({}, wrong):
            refused(await http.post("/v1/hosts/a/report", json=report, headers=headers), 421, "unknown_host")


def test_names_of_this_machine_and_of_the_settings_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "Box.lab.example")
    hosts_file = tmp_path / "hosts"
    lines = ["127.0.0.1 localhost", "# 10.1.1.1 box.lab.example evil", "10.1.2.3  box.lab.example gpu-box # mine"]
    hosts_file.write_text("\n".join([*lines, "10.1.2.4 other"]))
    settings = Settings(
        api_url="https://gpu.example.org:8700",
        api_urls=["http://second:8700"],
        service=ServiceSettings(host="service.internal", allowed_hosts=["Other.Example."]),
        tls=TlsSettings(names=["tls.example", "10.9.9.9"]),
    )
    names = names_of_this_service(settings, hosts_file)
    expected = {"localhost", "box", "box.lab.example", "gpu-box", "gpu.example.org", "second", "service.internal"}
    assert expected | {"other.example", "tls.example"} <= names
    assert not names & {"evil", "other", ""}
    assert "localhost" in names_of_this_service(settings, tmp_path / "missing")


def test_the_service_of_docker_compose_knows_its_name() -> None:
    """Other containers reach it by the name of its service."""
    compose = yaml.safe_load(Path("docker-compose.yml").read_text())
    environment = compose["services"]["service"]["environment"]
    settings = Settings(api_url=environment["GPU_PLATFORM_API_URL"])
    assert "service" in names_of_this_service(settings)


def test_the_example_configuration_names_its_service() -> None:
    """Whoever follows the example reaches the service by the name in it."""
    text = Path("deploy/gpu-platform.example.yaml").read_text()
    name = re.search(r"api_url: https?://([\w.-]+):", text)
    assert name is not None
    assert name[1] in names_of_this_service(Settings(api_url=f"http://{name[1]}:8700"))
