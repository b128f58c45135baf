"""Machines prove who they are by certificates: those of others, expired, revoked and forged ones are worth nothing."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gpu_platform.client import AsyncClient
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import CannotStart, Unavailable
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.identity import enrolment
from gpu_platform.identity.ca import CertificateAuthority
from gpu_platform.identity.certificates import (
    Certificate,
    CertificateFiles,
    TlsContexts,
    make_key_and_request,
)
from gpu_platform.identity.dates import issued_at_s
from gpu_platform.identity.enrolment import JoinToken, enroll, renew
from gpu_platform.settings import NodeSettings, Settings, TlsSettings
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts, identities
from service.operations.identities import Issuer
from tests.security.tls_cluster import PEER_URL, TlsCluster, plain, report
from tests.support.api_server import (
    LogFiles,
    node_headers,
)
from tests.support.store_cluster import Cluster
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec
from workers.node.identity import NodeIdentity


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


async def test_a_node_worker_answers_the_service_and_to_other_hosts_one_question(cluster: TlsCluster) -> None:
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
    async with cluster.worker("a", logs) as url:
        for path, wanted in may.items():
            async with cluster.client(path) as http:
                for route, status in wanted.items():
                    answer = await http.get(url + route, extensions=name)
                    expected = status if status != 422 else answer.status_code
                    assert answer.status_code == expected != 403 or status == 403 == answer.status_code, (path, route)
    async with cluster.worker("a", logs, metrics="open") as url, cluster.client(None) as http:
        assert (await http.get(url + metrics, extensions=name)).status_code == 200
        assert (await http.get(url + votes, extensions=name)).status_code == 403


async def test_the_service_speaks_only_to_the_node_worker_that_it_means(cluster: TlsCluster) -> None:
    """Host b reports the address at which host a's node worker is, and gets none of a's commands or logs."""
    logs = LogFiles()
    async with cluster.worker("a", logs) as url, cluster.serving(), cluster.client(None) as http:
        known = Cluster(cluster.store).host("a", gpus=1, url=url).host("b", gpus=1, url=url)
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
    async with cluster.serving() as service, cluster.worker("a", logs) as url, cluster.client(None) as http:
        Cluster(cluster.store).host("a", gpus=1, url=url).running("j-1", {"a": [0]})
        serials: set[str] = set()

        async def shows_another() -> bool:
            known = len(serials)
            answer = await http.get("/v1/jobs/j-1/logs", headers={"Connection": "close"})
            assert answer.status_code == 200
            tls = answer.extensions["network_stream"].get_extra_info("ssl_object")
            serials.add(tls.getpeercert()["serialNumber"])
            return len(serials) > known

        for _ in range(5):  # the service looks at its file ten times a second
            await eventually(shows_another, "a new certificate")
            cluster.write(service.files, "service", addresses=["127.0.0.1"])


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


async def test_nothing_is_signed_and_nothing_waits_for_a_wrong_join_token(
    cluster: TlsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers ask there: each request must cost no more than a look into the database."""
    signed: list[str] = []
    really = CertificateAuthority.sign

    def sign(ca: CertificateAuthority, request: bytes, path: str, **options: Any) -> bytes:
        signed.append(path)
        return really(ca, request, path, **options)

    waited: list[str] = []
    after_revocation = Issuer._after_revocation

    def wait(issuer: Issuer, path: str, now: datetime) -> datetime:
        waited.append(path)
        return after_revocation(issuer, path, now)

    async with cluster.serving(), cluster.client(None) as http:
        token = JoinToken.parse((await http.post("/v1/hosts/a/enroll", json={})).json()["join_token"])
        _, request = make_key_and_request()
        monkeypatch.setattr(CertificateAuthority, "sign", sign)
        monkeypatch.setattr(Issuer, "_after_revocation", wait)
        wrong = {
            "made up": ("0" * 32, "node/a"),
            "empty": ("", "node/a"),
            "a part": (token.secret[:-1], "node/a"),
            "longer": (f"{token.secret}0", "node/a"),
            "another name": (token.secret, "node/b"),
            "the service": (token.secret, "service"),
        }
        said = set[str]()
        for secret, path in wrong.values():
            body = {"identity": path, "secret": secret, "request": request.decode()}
            answer = await http.post("/v1/identity/enroll", json=body)
            assert answer.status_code == 403, answer.text
            said.add(answer.json()["detail"].replace(path, "PATH"))
        assert len(said) == 1
        assert (signed, waited) == ([], [])
        await enroll([cluster.url], token, "node/a", request)
        assert signed == ["node/a"]
        with pytest.raises(CannotStart):
            await enroll([cluster.url], token, "node/a", request)
        assert signed == ["node/a"]


async def test_an_impostor_whose_answer_never_ends_holds_up_no_machine(
    cluster: TlsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked before anybody knows who it is."""
    monkeypatch.setattr(enrolment, "_WHOLE_ANSWER_S", 0.5)

    async def drip() -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.1)

    app = Starlette(routes=[Route("/v1/identity/authorities", lambda _: StreamingResponse(drip()))])
    token = JoinToken.make(cluster.ca.fingerprint)
    async with plain(app, cluster.contexts("service").server()) as address:
        with pytest.raises(Unavailable, match="did not answer within"):
            await asyncio.wait_for(enroll([f"https://{address}"], token, "node/a", make_key_and_request()[1]), 10)


async def test_without_tls_nobody_gets_a_join_token_or_gives_a_certificate(cluster: TlsCluster, tmp_path: Path) -> None:
    """A slip in ``api_url``: over plain HTTP anybody shows the right authority, which is public, or gives another."""
    seen: list[bytes] = []
    evil = CertificateAuthority.init(tmp_path / "evil")

    async def answer(request: Request) -> Response:
        seen.append(await request.body())
        bundle = cluster.ca.bundle().decode()
        if request.method == "GET":
            return JSONResponse({"authorities": bundle})
        signed = evil.sign(make_key_and_request()[1], "node/a").decode()
        return JSONResponse({"certificate": signed, "authorities": evil.bundle().decode()})

    app = Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])
    token = JoinToken.make(cluster.ca.fingerprint)
    async with plain(app) as address:
        for scheme in ("http", "HTTP"):
            with pytest.raises(CannotStart, match="no https address"):
                await enroll([f"{scheme}://{address}"], token, "node/a", make_key_and_request()[1])
            with pytest.raises(CannotStart, match="no https address"):
                await renew([f"{scheme}://{address}"], cluster.contexts("node/a").client(), make_key_and_request()[1])
        settings = cluster.settings.model_copy(
            update={"api_url": cluster.url, "api_urls": [f"http://{address}"], "node": NodeSettings(name="a")}
        )  # the CA is on this machine: the certificate comes without a service
        with pytest.raises(CannotStart, match="this host would believe them"):
            await NodeIdentity.begin(settings)
    assert seen == []


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
        await eventually(lambda: contexts.client() is not stolen, "the new certificate to be used", within_s=5)
        for context, status in ((stolen, 403), (contexts.client(), 200)):
            async with httpx.AsyncClient(base_url=cluster.url, verify=context, trust_env=False) as node:
                answer = await node.post("/v1/hosts/a/report", json=report("a", PEER_URL))
                assert answer.status_code == status
        assert answer.json()["revoked"].keys() == {"node/a"}, "node workers learn it with the answer to their report"
        with pytest.raises(CannotStart, match="revoked"):
            await renew([cluster.url], stolen, request)


async def test_a_node_worker_does_not_believe_a_revoked_host(cluster: TlsCluster) -> None:
    name, revoked = {"sni_hostname": "a.node.gpu-platform.internal"}, dict[str, float]()
    now = datetime.now(UTC)
    async with (
        cluster.worker("a", LogFiles(), revoked=lambda: revoked) as url,
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
            ends = {host.name: host.certificate_ends_at for host in hosts.list_hosts(store, datetime.now(UTC))}
            assert ends.keys() == {"a", "b"}
            assert None not in ends.values()
            urls = [hosts.addresses(store, name).url for name in ("a", "b")]
        finally:
            store.close()
        for url in urls:
            assert url.startswith("https://127.0.0.1:")
            with pytest.raises(httpx.TransportError):
                async with httpx.AsyncClient(trust_env=False) as plain_http:
                    await plain_http.get(url.replace("https", "http") + "/lease/votes")
