"""Machines without certificates: forged reports, addresses that lead elsewhere, hostile answers; settings of TLS."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from temporalio.service import TLSConfig
from typer.testing import CliRunner

from gpu_platform.cli.app import app as cli
from gpu_platform.domain.errors import CannotStart
from gpu_platform.identity.certificates import (
    Certificate,
)
from gpu_platform.settings import TemporalSettings
from gpu_platform.store import Store
from gpu_platform.store.engines import postgresql_engine
from gpu_platform.temporal.tls import tls_of
from service.server import check_address
from tests.security.tls_cluster import NO_TEMPORAL, plain, report
from tests.support.api_server import (
    application,
    in_process,
    node_headers,
)
from tests.support.store_cluster import Cluster, inventory

# -- reports, on the loopback ---------------------------------------------------------------------


@pytest.fixture
async def http(sqlite_store: Store, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with in_process(application(sqlite_store, NO_TEMPORAL, state_dir=tmp_path)) as http:
        yield http


async def test_an_anonymous_report_makes_no_host(http: httpx.AsyncClient, sqlite_store: Store, tmp_path: Path) -> None:
    answer = await http.post("/v1/hosts/fake/report", json=report("fake"))
    assert (answer.status_code, answer.json()["code"]) == (401, "not_signed_in")
    assert "gpu-platform hosts enroll fake" in answer.json()["detail"]
    wrong = [
        {"X-GPU-Platform-Node": "fake:"},
        {"X-GPU-Platform-Node": "fake:" + "0" * 64},
        {"X-GPU-Platform-Node": node_headers("fake", tmp_path / "other")["X-GPU-Platform-Node"]},
    ]
    node_headers("fake", tmp_path)  # now there is a secret
    for headers in wrong:
        assert (await http.post("/v1/hosts/fake/report", json=report("fake"), headers=headers)).status_code == 401
    assert (await http.get("/v1/hosts")).json()["items"] == []


async def test_one_hosts_token_reports_for_no_other(http: httpx.AsyncClient, tmp_path: Path) -> None:
    ours = node_headers("a", tmp_path)
    assert (await http.post("/v1/hosts/a/report", json=report("a"), headers=ours)).status_code == 200
    stolen = {"X-GPU-Platform-Node": ours["X-GPU-Platform-Node"].replace("a:", "b:", 1)}
    assert (await http.post("/v1/hosts/b/report", json=report("b"), headers=ours)).status_code == 403
    assert (await http.post("/v1/hosts/b/report", json=report("b"), headers=stolen)).status_code == 401
    # An empty list of GPUs took those of a real host OFFLINE.
    empty = report("a", inventory={"machine": "m", "gpus": []})
    for headers in ({}, node_headers("b", tmp_path)):
        assert (await http.post("/v1/hosts/a/report", json=empty, headers=headers)).status_code in (401, 403)
    [gpu] = (await http.get("/v1/gpus")).json()["items"]
    assert gpu["state"] == "AVAILABLE"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254:80",
        "http://10.0.0.1:7233",
        "http://127.0.0.1:7233/admin",
        "http://127.0.0.1:1?x=1",
        "http://127.0.0.1:1#x",
        "http://127.0.0.1@evil.example:80",
        "http://evil.example:80",
        "http://evil@127.0.0.1:80",
        "https://127.0.0.1:1",
        "ftp://127.0.0.1:1",
        "file:///etc/passwd",
        "http://127.0.0.1",
        "http://127.0.0.1:99999",
        "http://[::1",
        "http://127.0.0.1\\@evil.example:80",
        "",
    ],
)
async def test_a_url_of_a_host_that_leads_elsewhere_is_refused(
    http: httpx.AsyncClient, tmp_path: Path, url: str
) -> None:
    answer = await http.post("/v1/hosts/a/report", json=report("a", url), headers=node_headers("a", tmp_path))
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    assert (await http.get("/v1/hosts")).json()["items"] == []


async def test_an_operator_says_where_a_host_is_reached(http: httpx.AsyncClient, tmp_path: Path) -> None:
    moved = report("a", "http://service:x@proxy.example:8701")
    assert (await http.post("/v1/hosts/a/report", json=moved, headers=node_headers("a", tmp_path))).status_code == 422
    enrolled = await http.post("/v1/hosts/a/enroll", json={"address": "proxy.example"})
    assert enrolled.status_code == 200
    token = enrolled.json()["node_token"]
    headers = {"X-GPU-Platform-Node": f"a:{token}"}
    assert (await http.post("/v1/hosts/a/report", json=moved, headers=headers)).status_code == 200


STRANGE = [
    ("inventory.cpus", -5),
    ("inventory.cpus", 10**25),
    ("inventory.ram_mib", -1),
    ("inventory.machine", "\ud800"),
    ("inventory.machine", "\x1b[2J"),
    ("inventory.machine", "\x00"),
    ("inventory.labels", {"row": "\ud800"}),
    ("inventory.labels", {"\ud800": "7"}),
    ("inventory.gpus[0].index", 10**30),
    ("inventory.gpus[0].memory_mib", -1),
    ("inventory.gpus[0].uuid", ""),
    ("inventory.gpus[0].uuid", "\n"),
    ("inventory.gpus", [{**inventory("a", 1).gpus[0].model_dump(), "uuid": f"G{n}", "index": n} for n in range(2000)]),
    ("inventory.gpus", [inventory("a", 1).gpus[0].model_dump()] * 2),
    ("inventory.missing_guarantees", ["x"] * 2000),
    ("inventory.source", "\x00"),
    ("session", "\ud800"),
    ("address", "x" * 600),
    ("degraded", {"GPU-a-0": "\ud800"}),
    ("telemetry", [{"uuid": "GPU-a-0", "power_w": -1}]),
    ("attempts", [{"job_id": "j", "attempt": 10**30}]),
    ("attempts", [{"job_id": "\ud800", "attempt": 1}]),
    ("seq", 2**70),
    ("round", 2**70),
    ("members_version", 10**30),
    ("leaf", "\ud800"),
    ("boot_id", "\ud800"),
    ("checkpoint_root", "\ud800"),
]


@pytest.mark.parametrize(("field", "value"), STRANGE, ids=[f"{field}-{n}" for n, (field, _) in enumerate(STRANGE)])
async def test_a_strange_inventory_is_refused_by_its_field(
    http: httpx.AsyncClient, tmp_path: Path, field: str, value: Any
) -> None:
    whole = report("a")
    *outer, last = field.replace("[0]", ".0").split(".")
    inner: Any = whole
    for part in outer:
        inner = inner[int(part)] if part.isdigit() else inner[part]
    inner[last] = value
    headers = {**node_headers("a", tmp_path), "Content-Type": "application/json"}
    answer = await http.post("/v1/hosts/a/report", content=json.dumps(whole), headers=headers)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid_request"), answer.text[:500]
    assert problem["errors"][0]["field"].startswith(field.split("[")[0].split(".")[0])
    assert (await http.get("/v1/hosts")).json()["items"] == []


async def test_a_name_that_is_none_is_refused(http: httpx.AsyncClient, tmp_path: Path) -> None:
    for name in ("[/oops]", "a b", "..", "-", "x" * 300):
        headers = node_headers("n", tmp_path)
        answer = await http.post("/v1/hosts/n/report", json=report("n", name=name), headers=headers)
        assert answer.status_code == 422


# -- what a host answers is not trusted ------------------------------------------------------------


SENT = 0


async def endless(request: Request) -> Response:
    async def body() -> AsyncIterator[bytes]:
        global SENT
        for _ in range(400):
            if await request.is_disconnected():
                return
            SENT += 1 << 20
            yield b"x" * (1 << 20)

    return StreamingResponse(body(), headers={"X-Log-Offset": "0", "X-Log-Size": "99999999999"})


async def elsewhere(_: Request) -> Response:
    return RedirectResponse("http://169.254.169.254/latest")


async def bomb(_: Request) -> Response:
    return Response(b"\x1f\x8b", headers={"content-encoding": "gzip", "X-Log-Offset": "0", "X-Log-Size": "9"})


async def nonsense(_: Request) -> Response:
    return Response(b"", headers={"X-Log-Offset": "-1", "X-Log-Size": "many"})


@pytest.mark.parametrize("handler", [endless, elsewhere, bomb, nonsense])
async def test_an_answer_of_a_node_worker_cannot_fill_or_steer_the_service(
    sqlite_store: Store, tmp_path: Path, handler: Any
) -> None:
    global SENT
    SENT = 0
    worker = Starlette(routes=[Route("/{path:path}", handler, methods=["GET", "POST"])])
    async with plain(worker) as address, in_process(application(sqlite_store, NO_TEMPORAL, state_dir=tmp_path)) as http:
        cluster = Cluster(sqlite_store).host("a", gpus=1, url=f"http://service:x@{address}")
        cluster.running("j-1", {"a": [0]})
        uuid = cluster.uuid("a", 0)
        assert (await http.get(f"/v1/gpus/{uuid}/health")).status_code == 503
        if handler is not endless:  # a log may be long
            assert (await http.get("/v1/jobs/j-1/logs")).status_code == 503
    assert SENT < 32 << 20


# -- settings of TLS ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "gpu-control.example", ""])
def test_nothing_listens_outside_the_loopback_without_tls(host: str) -> None:
    with pytest.raises(CannotStart, match=r"tls\.enabled"):
        check_address(host, "service", tls=False, insecure=False)
    check_address(host, "service", tls=True, insecure=False)
    check_address(host, "service", tls=False, insecure=True)
    for loopback in ("127.0.0.1", "::1", "localhost"):
        check_address(loopback, "service", tls=False, insecure=False)


def test_the_ca_is_made_shown_and_used_by_the_command_line(tmp_path: Path) -> None:
    def run(*arguments: str, code: int = 0) -> str:
        ran = CliRunner().invoke(cli, ["ca", *arguments, "--dir", str(tmp_path / "ca")])
        assert ran.exit_code == code, ran.output
        return ran.stdout

    run("init")
    assert run("show").count("BEGIN CERTIFICATE") == 1
    issued = run("issue", "scraper", "--hours", "1")
    assert Certificate.parse(issued.encode()).uri == "spiffe://gpu-platform.internal/scraper"
    run("rotate", "trust")
    assert run("show").count("BEGIN CERTIFICATE") == 2
    run("issue", "root", code=1)


def test_the_options_of_tls_of_and_postgresql_reach_the_drivers(tmp_path: Path) -> None:
    for name in ("ca", "cert"):
        (tmp_path / name).write_bytes(name.encode())
    given = TemporalSettings(tls=True, tls_ca=tmp_path / "ca", tls_cert=tmp_path / "cert", tls_server_name="temporal")
    options = tls_of(given)
    assert isinstance(options, TLSConfig)
    assert (options.server_root_ca_cert, options.client_cert, options.client_private_key) == (b"ca", b"cert", b"cert")
    assert options.domain == "temporal"
    assert tls_of(TemporalSettings()) is False
    store = Store("postgresql://platform@127.0.0.1:1/x?sslmode=verify-full&sslrootcert=/ca.pem")
    _, connect = postgresql_engine(store.url).dialect.create_connect_args(store.url)
    assert (connect["sslmode"], connect["sslrootcert"]) == ("verify-full", "/ca.pem")
    store.close()
