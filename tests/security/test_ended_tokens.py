"""What is open while its token ends: streams, terminals and copies go on with a newer token, and end without one."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import aconnect_sse
from sqlalchemy import text
from structlog.testing import capture_logs

from gpu_platform.client import AsyncClient, Client, credentials, sign_in
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.errors import NotSignedIn, Unavailable
from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.exec import ExecRequest
from gpu_platform.rpc.channels import PORT_VARIABLE
from gpu_platform.store import Store
from gpu_platform.store.access import tokens
from service import audit_log
from service.access import middleware, oidc
from tests.integration.test_exec_api import Platform, platform  # noqa: F401  # a fixture
from tests.integration.test_forwarding import ONE, serving
from tests.security.test_oidc import World, world  # noqa: F401  # a fixture
from tests.support.api_server import application, bearer, served
from tests.support.api_server import sign_in as has_token
from tests.support.command_line import run
from tests.support.grpc_server import running_with
from tests.support.store_cluster import Cluster
from tests.support.terminal_user import TerminalUser
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:1"
FIRST, SECOND = "gpt_" + "first" * 9, "gpt_" + "second" * 7


@pytest.fixture(autouse=True)
def _looked_at_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "LOOK_AGAIN_S", 0.1)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which clients find their token."""
    monkeypatch.setenv("GPU_PLATFORM_TOKEN_FILE", str(tmp_path / "my-token"))
    (tmp_path / "my-token").write_text(FIRST)
    return tmp_path / "my-token"


def exchanged(store: Store, file: Path) -> None:
    """Somebody puts another token into the file, and revokes the one that was there."""
    first = tokens.find_token(store, FIRST)
    assert first is not None
    has_token(store, SECOND, "eve", {CLUSTER: Role.ADMIN})
    file.write_text(SECOND)
    tokens.revoke_token(store, first.id, actor="eve", now=datetime.now(UTC))


# -- clients ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["rest", "grpc"])
async def test_a_stream_goes_on_with_the_token_that_has_come_into_its_file(
    sqlite_store: Store, file: Path, transport: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_token(sqlite_store, FIRST, "eve", {CLUSTER: Role.VIEWER})
    async with running_with(sqlite_store) as running:
        monkeypatch.setenv(PORT_VARIABLE, str(running.grpc.port))
        port = running.server.servers[0].sockets[0].getsockname()[1]
        async with AsyncClient(f"http://127.0.0.1:{port}", transport=transport) as client, asyncio.timeout(30):
            seen: list[int] = []

            async def follow() -> None:
                async for event in client.events(after=0, follow=True):
                    seen.append(event.seq)
                    if event.host == "late":
                        return

            following = asyncio.create_task(follow())
            await eventually(lambda: seen, "the stream to begin")
            exchanged(sqlite_store, file)
            await eventually(lambda: following.done() or _has_used(sqlite_store, SECOND), "the newer token to be used")
            Cluster(sqlite_store).host("late")
            await following
    assert seen == [*range(1, len(seen) + 1)], "nothing is missing, and nothing comes twice"


def _has_used(store: Store, token: str) -> bool:
    found = tokens.find_token(store, token)
    return found is not None and found.last_used_at is not None


async def test_a_stream_without_a_newer_token_ends_and_says_what_to_do(sqlite_store: Store, file: Path) -> None:
    info = has_token(sqlite_store, FIRST, "eve", {CLUSTER: Role.VIEWER})
    async with served(application(sqlite_store, NOWHERE)) as url, AsyncClient(url) as client:
        following = client.events(after=0, follow=True)
        await anext(following)
        tokens.revoke_token(sqlite_store, info.id, actor="eve", now=datetime.now(UTC))
        with pytest.raises(NotSignedIn, match="sign in again"):
            await asyncio.wait_for(_to_its_end(following), 20)


async def _to_its_end(following: AsyncIterator[Event]) -> None:
    async for _ in following:
        pass


@pytest.mark.long
async def test_a_terminal_goes_on_with_a_newer_token_and_nobody_writes_on_its_screen(
    platform: Platform,  # noqa: F811
    file: Path,
) -> None:
    platform.running("j-1")
    has_token(platform.store, FIRST, "ada", {CLUSTER: Role.ADMIN})
    user = TerminalUser("jobs", "exec", "j-1", "-t", "--", "sh", url=platform.url)
    with closing(user):
        user.type("echo $((6*7)) here\n")
        await user.sees("42 here")
        exchanged_for_ada(platform.store, file)
        await eventually(lambda: _has_used(platform.store, SECOND), "the newer token to be used")
        user.type("echo $((7*7)) still; exit 3\n")
        shown = await user.sees(r"(?s)(.*)49 still")
        assert "connection is lost" not in shown[1]
        assert await user.ends() == 3


def exchanged_for_ada(store: Store, file: Path) -> None:
    has_token(store, SECOND, "ada", {CLUSTER: Role.ADMIN})
    exchanged(store, file)


async def test_a_forwarded_answer_is_whole_though_its_reader_is_slow_and_its_token_is_exchanged(
    platform: Platform,  # noqa: F811
    file: Path,
) -> None:
    """What was on its way from the host when the stream ended comes again."""
    has_token(platform.store, FIRST, "ada", {CLUSTER: Role.ADMIN})
    flood = ONE + "for n in range(30): link.sendall(b'%09d\\n' % n * 10_000)\nlink.close()\ntime.sleep(1000)"
    there = await serving(platform, "j-1", server=flood)
    async with AsyncClient(platform.url) as client:
        connection = await client.exec_connect(await client.exec("j-1", ExecRequest(port=there)))
        [(_, held)] = platform.sessions._connections.values()
        output = client.exec_output(connection)
        read = [(await anext(output)).data]
        await eventually(lambda: held._paused, "the program to wait for its reader")
        exchanged_for_ada(platform.store, file)
        await eventually(lambda: held._followers == 0, "the stream to end")
        async for chunk in output:
            read.append(chunk.data)
            if chunk.stream == "eof":
                await client.exec_input(connection, b"", offset=0, eof=True)
    assert b"".join(read) == b"".join(b"%09d\n" % n * 10_000 for n in range(30))


# -- the service -----------------------------------------------------------------------------------


@pytest.mark.long
async def test_a_stream_ends_with_its_token_though_the_provider_is_away(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody can verify the token again. It was good when the stream began, and says itself when it ends."""
    monkeypatch.setattr(oidc, "KEPT_S", 0.0)
    short = world.provider.token(exp=int(time.time()) - oidc.LEEWAY_S + 4)
    async with httpx.AsyncClient(headers=bearer(short), timeout=50) as http:
        async with aconnect_sse(http, "GET", f"{world.url}/v1/events") as source:
            assert source.response.status_code == 200
            world.provider.keys_away = True
            asked = world.provider.asked_for_keys
            await eventually(lambda: world.provider.asked_for_keys > asked + 2, "the service to look in vain")
            async with asyncio.timeout(30):
                assert [sse.event async for sse in source.aiter_sse()] == []
        assert (await http.get(f"{world.url}/v1/events")).status_code == 503


async def test_a_stream_ends_with_its_token_though_its_end_cannot_be_recorded(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database takes no writes, and the audit log has no room."""
    monkeypatch.setattr(audit_log, "MAX_WAITING", 1)
    app = application(sqlite_store, NOWHERE)
    soon = datetime.now(UTC) + timedelta(seconds=3)
    has_token(sqlite_store, FIRST, "eve", {CLUSTER: Role.VIEWER}, expires_at=soon)
    async with served(app) as url, httpx.AsyncClient(base_url=url, headers=bearer(FIRST), timeout=50) as http:
        async with aconnect_sse(http, "GET", "/v1/events") as source:
            assert source.response.status_code == 200
            with closing(sqlite3.connect(sqlite_store.url.database or "", isolation_level=None)) as holder:
                holder.execute("BEGIN IMMEDIATE")
                while (await http.get("/v1/whoami")).status_code == 200:
                    pass  # until the audit log is full
                async with asyncio.timeout(20):
                    ends = [sse.event async for sse in source.aiter_sse()]
        assert ends == ["problem"]


@pytest.mark.parametrize("store_url", ["postgresql"], indirect=True)
async def test_a_stream_is_judged_again_after_a_look_that_failed(store: Store) -> None:
    """As when somebody changes the tables of PostgreSQL: the error is none that the platform knows."""
    info = has_token(store, FIRST, "eve", {CLUSTER: Role.VIEWER})
    async with (
        served(application(store, NOWHERE)) as url,
        httpx.AsyncClient(headers=bearer(FIRST), timeout=50) as http,
        aconnect_sse(http, "GET", f"{url}/v1/events") as source,
    ):
        assert source.response.status_code == 200
        with capture_logs() as logs:
            with store.write() as session:
                session.execute(text("ALTER TABLE api_token RENAME TO elsewhere"))
            failed = lambda: any(one["event"] == "request.not_judged_again" for one in logs)  # noqa: E731
            await eventually(failed, "a look that fails")
            with store.write() as session:
                session.execute(text("ALTER TABLE elsewhere RENAME TO api_token"))
        tokens.revoke_token(store, info.id, actor="eve", now=datetime.now(UTC))
        async with asyncio.timeout(20):
            assert [sse.event async for sse in source.aiter_sse()][-1] == "problem"


# -- tokens of the provider, as `login` keeps them -------------------------------------------------


def signed_in(world: World, *, ended: bool = True) -> None:  # noqa: F811
    provider = world.provider
    provider.refresh_tokens.add("r-1")
    note = {"access_token": provider.token(exp=1) if ended else provider.token(), "refresh_token": "r-1"}
    note |= {"expires_at": 0.0 if ended else time.time() + 300, "issuer": provider.url}
    note |= {"token_endpoint": f"{provider.url}/token", "client_id": "gpu-platform"}
    credentials.write_note(world.url, note)


async def test_while_the_provider_is_away_clients_try_again_and_do_not_ask_to_sign_in(
    world: World,  # noqa: F811
) -> None:
    signed_in(world)
    world.provider.away = True

    def ask(patience_s: float) -> str:
        with Client(world.url, retry_for_s=patience_s) as client:
            return client.who_am_i().name

    with pytest.raises(Unavailable, match="your sign-in cannot be renewed now: the identity provider answered 503"):
        await asyncio.to_thread(ask, 0.0)
    asking = asyncio.create_task(asyncio.to_thread(ask, 60.0))
    asked = len(world.provider.asked_for_tokens)
    await eventually(lambda: len(world.provider.asked_for_tokens) > asked + 1, "it tries again")
    world.provider.away = False
    assert await asyncio.wait_for(asking, 30) == "ada"


async def test_a_token_that_the_service_refuses_is_renewed_whatever_its_date(world: World) -> None:  # noqa: F811
    """The provider has changed its keys: the old token is worth nothing, and what renews it is."""
    signed_in(world, ended=False)
    world.provider.rotate()
    async with AsyncClient(world.url) as client:
        assert (await client.who_am_i()).name == "ada"


async def test_who_signs_out_is_not_signed_in_again_by_a_command_that_renews(world: World) -> None:  # noqa: F811
    signed_in(world)
    world.provider.hold.clear()
    renewing = asyncio.create_task(asyncio.to_thread(sign_in.fresh_token, world.url))
    await eventually(lambda: world.provider.asked_for_tokens, "the provider to be asked")
    leaving = asyncio.create_task(asyncio.to_thread(sign_in.sign_out, world.url))
    later = asyncio.create_task(asyncio.to_thread(sign_in.fresh_token, world.url))
    await asyncio.wait({leaving}, timeout=0.5)  # it has to wait for the one that renews
    world.provider.hold.set()
    assert await renewing is not None
    assert await leaving is True
    await later
    assert credentials.read_note(world.url) == {}
    assert world.provider.refresh_tokens == set()


@pytest.mark.long
async def test_signing_out_ends_what_renews_the_token_at_the_provider(world: World) -> None:  # noqa: F811
    signed_in(world, ended=False)
    left = await run("logout", url=world.url)
    assert (left.code, f"signed out of {world.url}" in left.err) == (0, True)
    assert world.provider.revoked == ["r-1"]
    assert credentials.read_note(world.url) == {}
    again = await run("logout", url=world.url)
    assert "keeps no token" in again.err
