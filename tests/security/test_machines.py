"""Machines prove who they are: forged reports, other hosts' certificates, addresses that lead elsewhere."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import trustme
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from temporalio.service import TLSConfig
from typer.testing import CliRunner

from activities.temporal_tls import tls_of
from gpu_platform.client import AsyncClient
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import CannotStart
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.hosts.agent import HostAgent
from gpu_platform.hosts.processes.exec_sessions import ExecSessions
from gpu_platform.hosts.system.ports import free_port
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import (
    Certificate,
    CertificateFiles,
    TlsContexts,
    make_key_and_request,
)
from gpu_platform.identity.dates import issued_at_s
from gpu_platform.identity.enrolment import JoinToken, enroll, renew
from gpu_platform.identity.settings import TlsSettings
from gpu_platform.private_files import write_file
from gpu_platform.settings import NodeSettings, Settings, TemporalSettings
from gpu_platform.store import Store
from gpu_platform.store.engines import postgresql_engine
from gpu_platform.store.hosts import hosts, identities
from service.app import create_app
from service.cli.app import app as cli
from service.server import Server, check_address
from tests.store_cluster import Cluster, inventory
from tests.unit.service.api_server import (
    ADMIN,
    LogFiles,
    application,
    bearer,
    in_process,
    node_headers,
    settings_for,
    sign_in,
)
from tests.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec
from workers.node.http import NodeHttp
from workers.node.identity import NodeIdentity
from workers.node.peer_votes import votes_route

NO_TEMPORAL = "127.0.0.1:1"
PEER_URL = "https://127.0.0.1:1"


def report(host: str, agent_url: str = "http://127.0.0.1:1", **fields: Any) -> dict[str, Any]:
    inside = inventory(host, 1).model_dump(mode="json")
    whole = {"name": host, "session": "s", "address": "127.0.0.1", "agent_url": agent_url, "inventory": inside}
    return {**whole, **fields}


# -- without TLS, on the loopback ----------------------------------------------------------------


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
async def test_an_agent_url_that_leads_elsewhere_is_refused(http: httpx.AsyncClient, tmp_path: Path, url: str) -> None:
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


@asynccontextmanager
async def plain(app: Starlette, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """A server that an attacker runs on a host."""
    options: dict[str, Any] = {} if tls is None else {"ssl_context_factory": lambda config, default: tls}
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None, lifespan="off", **options))
    task = asyncio.create_task(server.serve())
    await eventually(lambda: server.started, "the server to start")
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await task


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
async def test_an_answer_of_an_agent_cannot_fill_or_steer_the_service(
    sqlite_store: Store, tmp_path: Path, handler: Any
) -> None:
    global SENT
    SENT = 0
    agent = Starlette(routes=[Route("/{path:path}", handler, methods=["GET", "POST"])])
    async with plain(agent) as address, in_process(application(sqlite_store, NO_TEMPORAL, state_dir=tmp_path)) as http:
        cluster = Cluster(sqlite_store).host("a", gpus=1, agent_url=f"http://service:x@{address}")
        cluster.running("j-1", {"a": [0]})
        uuid = cluster.uuid("a", 0)
        assert (await http.get(f"/v1/gpus/{uuid}/health")).status_code == 503
        if handler is not endless:  # a log may be long
            assert (await http.get("/v1/jobs/j-1/logs")).status_code == 503
    assert SENT < 32 << 20


# -- with TLS -----------------------------------------------------------------------------------------


class TlsCluster:
    """A service and a node worker's HTTP server, both with TLS, in this process."""

    def __init__(self, store: Store, directory: Path, **tls: Any) -> None:
        self.store, self.directory = store, directory
        self.ca = CertificateAuthority.init(directory / "identity" / "ca")
        self.settings = settings_for(NO_TEMPORAL, state_dir=directory, tls=TlsSettings(enabled=True, **tls))
        self.port = free_port()
        self.url = f"https://127.0.0.1:{self.port}"

    def contexts(self, path: str, ca: CertificateAuthority | None = None, **signing: Any) -> TlsContexts:
        """A certificate of ``path``, signed by ``ca`` (default: the cluster's)."""
        own = self.directory / f"{len(list(self.directory.iterdir()))}-{path.replace('/', '-')}"
        own.mkdir()
        files = CertificateFiles(own / "own.pem", own / "own.pem", own / "ca.pem")
        self.write(files, path, ca, **signing)
        return TlsContexts(files)

    def write(self, files: CertificateFiles, path: str, ca: CertificateAuthority | None = None, **signing: Any) -> None:
        key, request = make_key_and_request()
        files.write(key, (ca or self.ca).sign(request, path, **signing), self.ca.bundle())

    def client(self, path: str | None, ca: CertificateAuthority | None = None, **signing: Any) -> httpx.AsyncClient:
        """A client that shows the certificate of ``path``. None: an administrator, without a certificate."""
        if path is None:
            bundle = self.directory / "bundle.pem"
            write_file(bundle, self.ca.bundle())
            context = ssl.create_default_context(cafile=bundle)
        else:
            context = self.contexts(path, ca, **signing).client()
        headers = {} if path else bearer()
        return httpx.AsyncClient(base_url=self.url, verify=context, trust_env=False, headers=headers)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[TlsContexts]:
        """The service. Yields its certificate."""
        contexts = self.contexts("service", addresses=["127.0.0.1"])
        sign_in(self.store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
        app = create_app(self.settings, self.store, tls=contexts)
        server = Server(app, "127.0.0.1", self.port, contexts)
        task = asyncio.create_task(server.serve())
        await eventually(lambda: server.started, "the service to start")
        try:
            yield contexts
        finally:
            server.should_exit = True
            await task

    @asynccontextmanager
    async def agent(
        self, name: str, logs: LogFiles, metrics: str = "certificate", revoked: Callable[[], dict[str, float]] = dict
    ) -> AsyncIterator[str]:
        """A node worker's HTTP server with the certificate of its host."""
        sessions = ExecSessions(self.directory, name, jailed=False)
        tls = TlsSettings(enabled=True, metrics=cast(Any, metrics))
        routes = [votes_route(lambda: {name: 1.0})]
        contexts = self.contexts(f"node/{name}")
        server = NodeHttp(cast(HostAgent, logs), sessions, NodeSettings(name=name), routes, tls, contexts, revoked)
        task = asyncio.create_task(server.run())
        try:
            yield server.url
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            sessions.close()


@pytest.fixture
def cluster(sqlite_store: Store, tmp_path: Path) -> TlsCluster:
    return TlsCluster(sqlite_store, tmp_path)


async def test_only_the_certificate_of_a_host_reports_for_it(cluster: TlsCluster) -> None:
    async with cluster.serving():
        for path, status in ((None, 401), ("node/b", 403), ("service", 403), ("scraper", 403), ("node/a", 200)):
            async with cluster.client(path) as http:
                answer = await http.post("/v1/hosts/a/report", json=report("a", PEER_URL))
                assert answer.status_code == status, (path, answer.text)
        async with cluster.client("node/a") as http:  # TLS does not count the token of the loopback
            headers = node_headers("b", cluster.directory)
            assert (
                await http.post("/v1/hosts/b/report", json=report("b", PEER_URL), headers=headers)
            ).status_code == 403
            assert (await http.post("/v1/hosts/a/report", json=report("a", "http://127.0.0.1:1"))).status_code == 422
        async with cluster.client(None) as http:
            headers = node_headers("b", cluster.directory)
            assert (
                await http.post("/v1/hosts/b/report", json=report("b", PEER_URL), headers=headers)
            ).status_code == 401
    assert [host.name for host in hosts.list_hosts(cluster.store, datetime.now(UTC))] == ["a"]


async def test_certificates_that_prove_nothing_end_the_handshake(cluster: TlsCluster, tmp_path: Path) -> None:
    foreign = CertificateAuthority.init(tmp_path / "foreign")
    yesterday = datetime.now(UTC) - timedelta(days=1)
    async with cluster.serving():
        for ca, signing in ((foreign, {}), (None, {"now": yesterday, "life": timedelta(hours=1)})):
            async with cluster.client("node/a", ca, **signing) as http:
                with pytest.raises(httpx.TransportError):
                    await http.post("/v1/hosts/a/report", json=report("a", PEER_URL))
        # Signed by the CA of somebody else, made by another program, with our SPIFFE name as a DNS name.
        other = trustme.CA()
        context = ssl.create_default_context(cafile=str(tmp_path / "identity" / "ca" / "ca.pem"))
        other.issue_cert("a.node.gpu-platform.internal").configure_cert(context)
        async with httpx.AsyncClient(base_url=cluster.url, verify=context, trust_env=False) as http:
            with pytest.raises(httpx.TransportError):
                await http.post("/v1/hosts/a/report", json=report("a", PEER_URL))


async def test_a_certificate_that_expires_on_an_open_connection_is_not_believed(cluster: TlsCluster) -> None:
    async with cluster.serving(), cluster.client("node/a", life=timedelta(seconds=1.5)) as http:
        assert (await http.post("/v1/hosts/a/report", json=report("a", PEER_URL))).status_code == 200
        for _ in range(100):
            status = (await http.post("/v1/hosts/a/report", json=report("a", PEER_URL))).status_code
            if status != 200:
                break
            await asyncio.sleep(0.05)
        assert status == 401


async def test_an_agent_answers_the_service_and_to_other_hosts_one_question(cluster: TlsCluster) -> None:
    logs = LogFiles()
    logs.write("j-1", 1, 0, b"secret")
    log, votes, metrics = "/logs/j-1/1/0", "/lease/votes", "/metrics"
    may = {
        "service": {log: 200, votes: 200, metrics: 200, "/exec/j-1/1/0/x": 422},
        "node/b": {log: 403, votes: 200, metrics: 403, "/exec/j-1/1/0/x": 403},
        "scraper": {log: 403, votes: 403, metrics: 200, "/exec/j-1/1/0/x": 403},
        "control": {log: 403, votes: 403, metrics: 403},
        None: {log: 403, votes: 403, metrics: 403},
    }
    name = {"sni_hostname": "a.node.gpu-platform.internal"}
    async with cluster.agent("a", logs) as url:
        for path, wanted in may.items():
            async with cluster.client(path) as http:
                for route, status in wanted.items():
                    answer = await http.get(url + route, extensions=name)
                    expected = status if status != 422 else answer.status_code
                    assert answer.status_code == expected != 403 or status == 403 == answer.status_code, (path, route)
    async with cluster.agent("a", logs, metrics="open") as url, cluster.client(None) as http:
        assert (await http.get(url + metrics, extensions=name)).status_code == 200
        assert (await http.get(url + votes, extensions=name)).status_code == 403


async def test_the_service_speaks_only_to_the_agent_that_it_means(cluster: TlsCluster) -> None:
    """Host b reports the address at which host a's agent is, and gets none of a's commands or logs."""
    logs = LogFiles()
    async with cluster.agent("a", logs) as url, cluster.serving(), cluster.client(None) as http:
        known = Cluster(cluster.store).host("a", gpus=1, agent_url=url).host("b", gpus=1, agent_url=url)
        known.running("j-a", {"a": [0]})
        known.running("j-b", {"b": [0]})
        logs.written[AttemptKey(job_id="j-a", attempt=1), 0] = b"of a"
        logs.written[AttemptKey(job_id="j-b", attempt=1), 0] = b"of b, which is not there"
        assert (await http.get("/v1/jobs/j-a/logs")).text == "of a"
        for _ in range(2):
            assert (await http.get("/v1/jobs/j-b/logs")).status_code == 503
            assert (await http.get("/v1/jobs/j-a/logs")).text == "of a"


async def test_a_certificate_is_renewed_while_requests_run(cluster: TlsCluster) -> None:
    """No request fails, and the new certificate is used, without a restart of either side."""
    logs = LogFiles()
    logs.write("j-1", 1, 0, b"x" * 1000)
    async with cluster.serving() as service, cluster.agent("a", logs) as url, cluster.client(None) as http:
        Cluster(cluster.store).host("a", gpus=1, agent_url=url).running("j-1", {"a": [0]})
        serials = set()
        for _ in range(5):
            for _ in range(5):
                answer = await http.get("/v1/jobs/j-1/logs", headers={"Connection": "close"})
                assert answer.status_code == 200
                tls = answer.extensions["network_stream"].get_extra_info("ssl_object")
                serials.add(tls.getpeercert()["serialNumber"])
            cluster.write(service.files, "service", addresses=["127.0.0.1"])
        assert len(serials) == 5


async def test_a_join_token_is_worth_one_certificate_of_one_name(cluster: TlsCluster) -> None:
    async with cluster.serving(), cluster.client(None) as http:
        made = (await http.post("/v1/hosts/a/enroll", json={})).json()
        token = JoinToken.parse(made["join_token"])
        _, request = make_key_and_request()
        with pytest.raises(CannotStart, match="another name"):
            await enroll([cluster.url], token, "node/b", request)
        for path in ("service", "node/../service", "root"):
            with pytest.raises(CannotStart):
                await enroll([cluster.url], token, path, request)
        with pytest.raises(CannotStart, match="certificate request"):
            await enroll([cluster.url], token, "node/a", b"nothing")
        issued = await enroll([cluster.url], token, "node/a", request)
        assert issued.certificate.startswith("-----BEGIN CERTIFICATE")
        with pytest.raises(CannotStart, match="was used"):
            await enroll([cluster.url], token, "node/a", request)
        late = JoinToken.make(cluster.ca.fingerprint)
        now = datetime.now(UTC)
        identities.add_join_token(
            cluster.store, late.secret, "node/a", address=None, actor="t", expires_at=now, now=now
        )
        with pytest.raises(CannotStart, match="has expired"):
            await enroll([cluster.url], late, "node/a", request)
        with pytest.raises(CannotStart):
            await enroll([cluster.url], JoinToken.make(cluster.ca.fingerprint), "node/a", request)
    stored = cluster.store.url.database
    assert stored is not None
    assert token.secret.encode() not in Path(stored).read_bytes()


async def test_who_passes_for_the_service_gets_no_join_token(cluster: TlsCluster, tmp_path: Path) -> None:
    """The impostor has a certificate for the address, of an authority that the machine may even trust otherwise."""
    impostor, seen = CertificateAuthority.init(tmp_path / "impostor"), []

    async def answer(request: Request) -> Response:
        seen.append((request.url.path, await request.body()))
        bundle = impostor.bundle() + (cluster.ca.bundle() if len(seen) > 1 else b"")
        return Response(json.dumps({"authorities": bundle.decode()}), media_type="application/json")

    tls = cluster.contexts("service", impostor, addresses=["127.0.0.1"]).server()
    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    async with plain(app, tls) as address:
        token = JoinToken.make(cluster.ca.fingerprint)
        for _ in range(2):  # the second time it shows the right authority, but has no certificate of it
            with pytest.raises(Exception, match=r"another authority|no service answers"):
                await enroll([f"https://{address}"], token, "node/a", make_key_and_request()[1])
    assert all(token.secret.encode() not in body for _, body in seen)


async def test_only_a_valid_certificate_is_renewed_and_a_revoked_one_is_not(cluster: TlsCluster) -> None:
    async with cluster.serving(), cluster.client(None) as http:
        token = JoinToken.parse((await http.post("/v1/hosts/a/enroll", json={})).json()["join_token"])
        key, request = make_key_and_request()
        issued = await enroll([cluster.url], token, "node/a", request)
        files = CertificateFiles(*[cluster.directory / name for name in ("a.pem", "a.pem", "a-ca.pem")])
        files.write(key, issued.certificate.encode(), issued.authorities.encode())
        contexts = TlsContexts(files)
        again = await renew([cluster.url], contexts.client(), make_key_and_request()[1])
        assert again.certificate != issued.certificate
        assert (await http.post("/v1/identity/renew", json={"request": request.decode()})).status_code == 401
        async with httpx.AsyncClient(base_url=cluster.url, verify=contexts.client(), trust_env=False) as node:
            assert (await node.post("/v1/hosts/a/report", json=report("a", PEER_URL))).status_code == 200
            ends_at = datetime.fromisoformat((await http.get("/v1/hosts/a")).json()["certificate_ends_at"])
            assert ends_at == Certificate.parse(again.certificate.encode()).not_after
            assert (await http.delete("/v1/hosts/a/identity")).status_code == 204
            for _ in range(100):
                if (await node.post("/v1/hosts/a/report", json=report("a", PEER_URL))).status_code == 403:
                    break
                await asyncio.sleep(0.05)
            else:
                pytest.fail("a revoked host still reports")
        with pytest.raises(CannotStart, match="revoked"):
            await renew([cluster.url], contexts.client(), request)
        # The host comes back with a new certificate. What a thief has of the old one is worth nothing.
        token = JoinToken.parse((await http.post("/v1/hosts/a/enroll", json={})).json()["join_token"])
        key, request = make_key_and_request()
        issued = await enroll([cluster.url], token, "node/a", request)
        stolen = contexts.client()
        files.write(key, issued.certificate.encode(), issued.authorities.encode())
        for context, status in ((stolen, 403), (contexts.client(), 200)):
            async with httpx.AsyncClient(base_url=cluster.url, verify=context, trust_env=False) as node:
                answer = await node.post("/v1/hosts/a/report", json=report("a", PEER_URL))
                assert answer.status_code == status
        assert answer.json()["revoked"].keys() == {"node/a"}, "agents learn it with the answer to their report"
        with pytest.raises(CannotStart, match="revoked"):
            await renew([cluster.url], stolen, request)


async def test_an_agent_does_not_believe_a_revoked_host(cluster: TlsCluster) -> None:
    name, revoked = {"sni_hostname": "a.node.gpu-platform.internal"}, dict[str, float]()
    now = datetime.now(UTC)
    async with (
        cluster.agent("a", LogFiles(), revoked=lambda: revoked) as url,
        cluster.client("node/b", now=now - timedelta(seconds=5)) as stolen,
        cluster.client("node/b", now=now + timedelta(seconds=2)) as newer,
        cluster.client("node/c") as other,
    ):
        assert (await stolen.get(f"{url}/lease/votes", extensions=name)).status_code == 200
        revoked["node/b"] = now.timestamp()
        for client, status in ((stolen, 403), (newer, 200), (other, 200)):
            assert (await client.get(f"{url}/lease/votes", extensions=name)).status_code == status


@pytest.mark.parametrize("hours", [3 / 3600, 0.5, 24.0, 2160.0])
def test_a_certificate_says_when_it_was_signed(cluster: TlsCluster, hours: float) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    signed = cluster.ca.sign(make_key_and_request()[1], "node/a", life=timedelta(hours=hours), now=now)
    found = Certificate.parse(signed)
    issued = issued_at_s(found.not_before.timestamp(), found.not_after.timestamp())
    assert issued == pytest.approx(now.timestamp(), abs=1)


async def test_a_node_worker_renews_its_certificate_by_itself(cluster: TlsCluster) -> None:
    """With a life of six seconds it has several certificates in a few seconds, and every report is accepted."""
    cluster.settings.tls.certificate_hours = 6 / 3600
    async with cluster.serving(), cluster.client(None) as http:
        token = (await http.post("/v1/hosts/a/enroll", json={})).json()["join_token"]
        state_dir = cluster.directory / "host-a"
        settings = Settings(
            state_dir=state_dir,
            api_url=cluster.url,
            tls=TlsSettings(enabled=True),
            node=NodeSettings(name="a", join_token=token),
        )
        identity = await NodeIdentity.begin(settings)
        assert identity.contexts is not None
        own = identity.contexts.files
        assert own.certificate.stat().st_mode & 0o777 == 0o600
        keeping = asyncio.create_task(identity.keep())
        serials = set()
        async with identity.client(5.0) as node:
            until = time.monotonic() + 60
            while len(serials) < 3 and time.monotonic() < until:
                answer = await node.post(f"{cluster.url}/v1/hosts/a/report", json=report("a", PEER_URL))
                assert answer.status_code == 200, answer.text
                found = own.read()
                assert found is not None
                serials.add(found.serial)
                await asyncio.sleep(0.1)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        assert len(serials) >= 3
        # A second start needs no token, as long as the certificate is valid.
        settings.node.join_token = None
        await NodeIdentity.begin(settings)


async def test_a_revoked_host_comes_back_with_a_new_join_token(cluster: TlsCluster) -> None:
    """Its certificate is valid by date and believed by nobody. The new token gives another one, and is asked once."""
    async with cluster.serving(), cluster.client(None) as http:

        async def start(token: str | None) -> str:
            node = NodeSettings(name="a", join_token=token)
            tls = TlsSettings(enabled=True)
            state_dir = cluster.directory / "host-a"
            identity = await NodeIdentity.begin(Settings(state_dir=state_dir, api_url=cluster.url, tls=tls, node=node))
            assert identity.contexts is not None
            found = identity.contexts.files.read()
            assert found is not None
            return found.serial

        async def token() -> str:
            return (await http.post("/v1/hosts/a/enroll", json={})).json()["join_token"]

        used = await token()
        first = await start(used)
        assert await start(used) == first
        assert (await http.delete("/v1/hosts/a/identity")).status_code == 204
        new = await token()
        second = await start(new)
        assert second != first
        assert await start(new) == second
        assert await start(used) == second, "a token that does not work changes nothing"
        assert await start("no token") == second
        assert await start(None) == second


async def test_a_machine_without_token_and_certificate_is_told_what_to_do(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, tls=TlsSettings(enabled=True), node=NodeSettings(name="a"))
    with pytest.raises(CannotStart, match="gpu-platform hosts enroll a"):
        await NodeIdentity.begin(settings)


async def test_a_job_runs_in_a_cluster_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes: two node workers join with their tokens, a job runs on both, and nothing speaks plain HTTP."""
    nodes = (NodeSpec("a", "l40s-4x-dual-socket"), NodeSpec("b", "l40s-4x-dual-socket"))
    config = ClusterConfig(state_dir=tmp_path, nodes=nodes, ui=False, schedulers=1, tls=True)
    async with LocalCluster(config) as cluster:
        monkeypatch.setenv("GPU_PLATFORM_CA_FILE", str(cluster.ca_file))
        assert cluster.api_url.startswith("https://")
        async with AsyncClient(cluster.api_url) as client:
            spec = JobSpec(command=["sh", "-c", "echo rank $RANK"], gpus=ResourceRequest(gpus_per_host=1, hosts=2))
            job = await client.wait((await client.submit(spec)).id, timeout_s=60)
            assert job.state is JobState.COMPLETED
            assert await client.logs(job.id, rank=1) == "rank 1\n"
        store = Store(cluster.database_url)
        try:
            ends = identities.certificate_ends(store)
            assert sorted(ends) == ["node/a", "node/b"]
            urls = [hosts.agent_url(store, name) for name in ("a", "b")]
        finally:
            store.close()
        for url in urls:
            assert url.startswith("https://127.0.0.1:")
            with pytest.raises(httpx.TransportError):
                async with httpx.AsyncClient(trust_env=False) as plain_http:
                    await plain_http.get(url.replace("https", "http") + "/lease/votes")


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
