"""API tokens: who makes which, what they may do, and that of ``up``."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.client import AsyncClient, credentials
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.errors import Forbidden, InvalidRequest, NotFound, NotSignedIn
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.settings import AccessSettings, NodeSettings
from gpu_platform.settings.access import OidcSettings
from gpu_platform.store import Store
from gpu_platform.store.access import tokens
from gpu_platform.store.jobs import jobs
from tests.security.tenants import ADA, ADAS, BOB, NOWHERE, Tenants
from tests.support.api_server import (
    ADMIN,
    application,
    in_process,
    served,
    sign_in,
)
from tests.support.store_cluster import NOW
from workers import first_admin
from workers.local.token import local_token


class TestTokens:
    """Who makes which tokens, and how they are kept."""

    async def made(self, tenants: Tenants, token: str, **request: Any) -> httpx.Response:
        return await tenants.ask(token, "POST", "/v1/tokens", json=request)

    async def test_the_database_has_only_a_hash(self, tenants: Tenants, tmp_path: Path) -> None:
        sign_in(tenants.store, "gpt_" + "root" * 10, "root", {CLUSTER: Role.ADMIN})
        made = (await self.made(tenants, "gpt_" + "root" * 10, user="carl", roles={"team-a": "user"})).json()
        assert made["token"].startswith("gpt_")
        assert len(made["token"]) == 47
        assert (await tenants.ask(made["token"], "GET", "/v1/whoami")).json()["name"] == "carl"
        for path in tmp_path.rglob("*"):
            if path.is_file():
                assert made["token"].encode() not in path.read_bytes(), path

    @pytest.mark.parametrize(
        "request_",
        [
            {"user": "root", "roles": {"team-a": "user"}},
            {"roles": {"team-a": "admin"}},
            {"roles": {"*": "viewer"}},
            {"roles": {"team-b": "viewer"}},
            {"user": "bob"},
            {},
            {"roles": {"team-a": "user"}, "max_priority": 1000},
        ],
    )
    async def test_nobody_makes_a_token_that_may_more_than_they_do(
        self, tenants: Tenants, request_: dict[str, Any]
    ) -> None:
        before = len(tokens.list_tokens(tenants.store))
        assert (await self.made(tenants, ADA, **request_)).status_code == 403
        assert len(tokens.list_tokens(tenants.store)) == before

    async def test_an_admin_of_a_namespace_rules_only_there(self, tenants: Tenants) -> None:
        admin = "gpt_" + "tadm" * 10
        sign_in(tenants.store, admin, "tess", {"team-a": Role.ADMIN})
        assert (await self.made(tenants, admin, user="carl", roles={"team-a": "admin"})).status_code == 201
        assert (await self.made(tenants, admin, user="carl", roles={"team-b": "user"})).status_code == 403
        assert (await self.made(tenants, admin, user="carl", roles={"*": "viewer"})).status_code == 403
        listed = (await tenants.ask(admin, "GET", "/v1/tokens")).json()["items"]
        assert {token["user"] for token in listed} == {"ada", "carl", "tess"}
        bobs = tokens.find_token(tenants.store, BOB)
        adas = tokens.find_token(tenants.store, ADA)
        assert bobs is not None
        assert adas is not None
        assert (await tenants.ask(admin, "DELETE", f"/v1/tokens/{bobs.id}")).status_code == 404
        assert (await tenants.ask(admin, "DELETE", f"/v1/tokens/{adas.id}")).status_code == 200
        assert (await tenants.ask(ADA, "GET", "/v1/whoami")).status_code == 401

    async def test_nobody_who_rules_a_namespace_takes_the_name_of_somebody_known_elsewhere(
        self, tenants: Tenants
    ) -> None:
        """Hosts give names local accounts (node.users): a job in bob's name would read bob's files."""
        admin = "gpt_" + "tadm" * 10
        sign_in(tenants.store, admin, "tess", {"team-a": Role.ADMIN})
        spec = JobSpec(command=["x"], namespace="team-c", user="dora")
        jobs.submit_job(tenants.store, "j-0000000000000dd", spec, actor="dora", now=NOW, idempotency_key=None)
        for user in ("bob", "dora", "admin"):
            refused = await self.made(tenants, admin, user=user, roles={"team-a": "user"})
            assert refused.status_code == 403, user
            assert "outside of your namespaces" in refused.json()["detail"]
            refused = await tenants.submit(admin, namespace="team-a", user=user)
            assert refused.status_code == 403, user
        assert (await self.made(tenants, admin, user="ada", roles={"team-a": "user"})).status_code == 201

    async def test_nobody_who_rules_a_namespace_takes_the_name_of_a_local_account(self, sqlite_store: Store) -> None:
        admin = "gpt_" + "tadm" * 10
        fields: list[dict[str, Any]] = [
            {"node": NodeSettings(name="a", users={"carl": "carl"})},
            {"access": AccessSettings(oidc=OidcSettings(issuer="https://login.example.org"))},
        ]
        for field in fields:
            async with in_process(application(sqlite_store, NOWHERE, **field)) as http:
                sign_in(sqlite_store, admin, "tess", {"team-a": Role.ADMIN})
                tenants = Tenants(http, sqlite_store)
                assert (await self.made(tenants, admin, user="carl", roles={"team-a": "user"})).status_code == 403
                assert (await tenants.submit(admin, namespace="team-a", user="carl")).status_code == 403
                assert (await self.made(tenants, ADMIN, user="carl", roles={"team-a": "user"})).status_code == 201

    async def test_scopes_limit_a_token_and_what_it_makes(self, tenants: Tenants) -> None:
        scraper, narrow = "gpt_" + "prom" * 10, "gpt_" + "narr" * 10
        sign_in(tenants.store, scraper, "prometheus", {CLUSTER: Role.VIEWER}, scopes=["metrics:read"])
        assert (await tenants.ask(scraper, "GET", "/metrics")).status_code == 200
        assert (await tenants.ask(scraper, "GET", "/v1/jobs")).status_code == 403
        sign_in(tenants.store, narrow, "root", {CLUSTER: Role.ADMIN}, scopes=["tokens:manage", "jobs:read"])
        assert (await self.made(tenants, narrow)).status_code == 403
        assert (await self.made(tenants, narrow, scopes=["jobs:submit"])).status_code == 403
        assert (await self.made(tenants, narrow, scopes=["jobs:read"])).status_code == 201

    async def test_the_last_use_is_known(self, tenants: Tenants) -> None:
        await tenants.ask(ADA, "GET", "/v1/whoami")
        found = tokens.find_token(tenants.store, ADA)
        assert found is not None
        assert found.last_used_at is not None


class TestTheTokenOfUp:
    """``up`` makes a token as Jupyter does, and clients find it."""

    def test_it_is_in_a_file_of_its_user_alone_and_is_kept(self, sqlite_store: Store, tmp_path: Path) -> None:
        token = local_token(sqlite_store, tmp_path)
        file = tmp_path / "token"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert file.read_text() == token
        assert local_token(sqlite_store, tmp_path) == token
        found = tokens.find_token(sqlite_store, token)
        assert found is not None
        tokens.revoke_token(sqlite_store, found.id, actor="x", now=datetime.now(UTC))
        assert local_token(sqlite_store, tmp_path) != token

    def test_a_link_that_somebody_left_there_is_not_followed(self, sqlite_store: Store, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_text("precious")
        (tmp_path / "token").symlink_to(victim)
        local_token(sqlite_store, tmp_path)
        assert victim.read_text() == "precious"

    def test_a_token_that_lies_about_goes_only_to_this_machine(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / ".gpu-platform").mkdir()
        (tmp_path / ".gpu-platform" / "token").write_text("gpt_local")
        monkeypatch.chdir(tmp_path)
        assert credentials.find_token("http://127.0.0.1:8700") == "gpt_local"
        assert credentials.find_token("http://elsewhere.example:8700") is None
        monkeypatch.setenv("GPU_PLATFORM_TOKEN", "gpt_given")
        assert credentials.find_token("http://elsewhere.example:8700") == "gpt_given"

    async def test_a_client_that_lives_longer_than_its_token_finds_the_new_one(
        self, sqlite_store: Store, tmp_path: Path
    ) -> None:
        async with served(application(sqlite_store, NOWHERE)) as url:
            token = local_token(sqlite_store, tmp_path)
            credentials.write_note(url, {"token_file": str(tmp_path / "token")})
            async with AsyncClient(url) as client:
                await client.who_am_i()
                found = tokens.find_token(sqlite_store, token)
                assert found is not None
                tokens.revoke_token(sqlite_store, found.id, actor="x", now=datetime.now(UTC))
                with pytest.raises(NotSignedIn, match="gpu-platform up"):
                    await client.who_am_i()
                local_token(sqlite_store, tmp_path)
                assert (await client.who_am_i()).roles == {"*": "admin"}

    async def test_refusals_arrive_in_the_client_as_what_they_are(self, tenants: Tenants) -> None:
        app: Any = tenants.http._transport.app  # type: ignore[attr-defined]
        transport = httpx.ASGITransport(app)
        async with AsyncClient("http://localhost", token=BOB, mounts={"http://": transport}) as client:
            with pytest.raises(NotFound):
                await client.kill(ADAS)
            with pytest.raises(Forbidden, match="role operator"):
                await client.drain("a")
            with pytest.raises(Forbidden):
                await client.submit(JobSpec(command=["true"], namespace="team-a"))
        async with AsyncClient(
            "http://localhost", user="no such name!", token=ADA, mounts={"http://": transport}
        ) as client:
            with pytest.raises(InvalidRequest):
                await client.who_am_i()


def test_the_first_administrator_is_made_on_the_machine_of_the_database(
    sqlite_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPU_PLATFORM_DATABASE_URL", str(sqlite_store.url))
    assert first_admin.main(["ada"]) == 0
    token = capsys.readouterr().out.strip()
    found = tokens.find_token(sqlite_store, token)
    assert found is not None
    assert found.principal().has(Role.ADMIN, CLUSTER)
    assert first_admin.main(["no name!"]) == 1
