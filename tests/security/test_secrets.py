"""Secrets of namespaces, asked from outside: who may write them, that nobody reads them, and which host gets them."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import CannotOpen, CannotStart
from gpu_platform.domain.states import JobState
from gpu_platform.identity import key_ring
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.settings import Settings
from gpu_platform.store import Store
from gpu_platform.store.access import secrets
from gpu_platform.store.database import writing
from gpu_platform.store.leadership import leases
from gpu_platform.store.models import secret
from gpu_platform.store.reservations import attempts
from tests.support.api_server import application, bearer, in_process, node_headers, sign_in
from tests.support.store_cluster import LATER, NOW, Cluster, expire_leases
from tests.support.waiting import eventually
from workers import keys_in_use

NOWHERE = "127.0.0.1:1"
VALUE = "hunter2-rosebud"
JOB = "j-0000000000000aa"
ROLES = {
    "ada": {"team-a": Role.USER},
    "eve": {"team-a": Role.USER},
    "adm": {"team-a": Role.ADMIN},
    "vic": {"team-a": Role.VIEWER},
    "bob": {"team-b": Role.ADMIN},
}


def token_of(who: str) -> str:
    return f"gpt_{who}".ljust(47, "0")


@dataclass
class Desk:
    http: httpx.AsyncClient
    store: Store
    state: Path
    cluster: Cluster

    async def ask(self, who: str, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.http.request(method, path, headers=bearer(token_of(who)), **options)

    async def set(self, who: str, name: str, value: str = VALUE, namespace: str = "team-a", **body: Any) -> int:
        answer = await self.ask(who, "PUT", f"/v1/secrets/{namespace}/{name}", json={"value": value, **body})
        assert value not in answer.text
        return answer.status_code

    async def fetch(self, host: str, job_id: str = JOB, attempt: int = 1, of: str | None = None) -> httpx.Response:
        """What the node worker of ``host`` gets, asked as that of ``of``."""
        path = f"/v1/hosts/{host}/attempts/{job_id}/{attempt}/secrets"
        return await self.http.post(path, json={}, headers=node_headers(of or host, self.state))

    def runs(self, host: str = "a", **fields: Any) -> AttemptKey:
        """A job of ada that holds the GPU of a host."""
        self.cluster.queued(JOB, namespace="team-a", user="ada", **fields)
        return self.cluster.reserve(JOB, {host: [0]})


@pytest.fixture
async def desk(store: Store, tmp_path: Path) -> AsyncIterator[Desk]:
    cluster = Cluster(store).host("a", gpus=1).host("b", gpus=1)
    ring = tmp_path / "keys" / "ring.json"
    key_ring.create(ring)
    node_headers("a", tmp_path)
    app = application(store, NOWHERE, state_dir=tmp_path, key_ring=ring)
    for who, roles in ROLES.items():
        sign_in(store, token_of(who), who, roles)
    async with in_process(app) as http:
        yield Desk(http, store, tmp_path, cluster)


def ring_of(desk: Desk) -> KeyRing:
    return KeyRing.load(desk.state / "keys" / "ring.json").scoped(secrets.SCOPE)


async def test_a_value_goes_in_and_never_comes_out(desk: Desk) -> None:
    assert await desk.set("ada", "wandb") == 200
    for who in ("ada", "eve", "adm"):
        for path in ("/v1/secrets", "/v1/secrets?namespace=team-a", "/v1/events?follow=false", "/v1/whoami"):
            assert VALUE not in (await desk.ask(who, "GET", path)).text
    [found] = (await desk.ask("ada", "GET", "/v1/secrets")).json()["items"]
    assert (found["namespace"], found["name"], found["created_by"]) == ("team-a", "wandb", "ada")
    assert (await desk.ask("ada", "GET", "/v1/secrets/team-a/wandb")).status_code == 405
    assert (await desk.ask("vic", "GET", "/v1/secrets")).status_code == 403
    assert (await desk.ask("bob", "GET", "/v1/secrets")).json()["items"] == []


async def test_users_make_secrets_and_only_the_maker_or_an_admin_replaces_them(desk: Desk) -> None:
    assert await desk.set("ada", "s3") == 200
    assert await desk.set("eve", "s3", "mine-now") == 403
    assert (await desk.ask("eve", "DELETE", "/v1/secrets/team-a/s3")).status_code == 403
    assert await desk.set("ada", "s3", "second-value") == 200
    assert await desk.set("adm", "s3", "third-value") == 200
    assert await desk.set("vic", "s4") == 403
    assert await desk.set("bob", "s4") == 403
    assert await desk.set("bob", "s4", namespace="team-b") == 200
    [info] = secrets.list_secrets(desk.store, ["team-a"])
    assert (info.created_by, info.updated_by) == ("ada", "adm")
    assert (await desk.ask("ada", "DELETE", "/v1/secrets/team-a/s3")).status_code == 204
    assert (await desk.ask("ada", "DELETE", "/v1/secrets/team-a/s3")).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {"valeu": VALUE},
        {"value": [VALUE]},
        {"value": {"a": VALUE}},
        {"value": VALUE, "encoding": VALUE},
        {"value": VALUE + "!", "encoding": "base64"},
        {"value": VALUE * 10_000},
        [VALUE],
        VALUE,
    ],
)
async def test_a_mistake_does_not_echo_the_value(desk: Desk, body: Any) -> None:
    answer = await desk.ask("ada", "PUT", "/v1/secrets/team-a/key", json=body)
    assert answer.status_code == 422
    assert VALUE not in answer.text


async def test_broken_json_does_not_echo_the_value(desk: Desk) -> None:
    for kind in ("application/json", "text/plain"):
        body = f'{{"value": "{VALUE}'.encode()
        headers = {**bearer(token_of("ada")), "Content-Type": kind}
        answer = await desk.http.put("/v1/secrets/team-a/key", content=body, headers=headers)
        assert answer.status_code in (400, 415, 422)
        assert VALUE not in answer.text


async def test_the_database_has_only_sealed_values_which_open_in_no_other_row(desk: Desk) -> None:
    await desk.set("ada", "one")
    await desk.set("ada", "two", "another-value")
    for path in desk.state.glob("platform.db*"):
        assert VALUE.encode() not in path.read_bytes()
    ring = ring_of(desk)
    assert secrets.open_secrets(desk.store, ring, "team-a", {"one"}) == {"one": VALUE.encode()}

    @writing
    def swap(session: Any) -> None:
        sealed = session.scalar(secret.select().with_only_columns(secret.c.sealed).where(secret.c.name == "one"))
        session.execute(secret.update().where(secret.c.name == "two").values(sealed=sealed))

    swap(desk.store)
    with pytest.raises(CannotOpen):
        secrets.open_secrets(desk.store, ring, "team-a", {"two"})
    with pytest.raises(CannotOpen):
        KeyRing.load(desk.state / "keys" / "ring.json").scoped("node-a").open(b"\1\x08" + b"0" * 60)


async def test_after_a_rotation_values_are_sealed_again_and_the_old_key_is_free(desk: Desk) -> None:
    await desk.set("ada", "one")
    path = desk.state / "keys" / "ring.json"
    [(old, _)] = key_ring.list_keys(path)
    assert secrets.keys_in_use(desk.store) == {old}
    address = desk.store.url.render_as_string(hide_password=False)
    settings = Settings(state_dir=desk.state, database_url=address)
    assert keys_in_use.sealed_secrets(settings, old) == ["the secret one of namespace team-a"]
    new = key_ring.rotate(path, after_s=0)
    await eventually(lambda: time.time() >= new.use_from, "the new key to seal")
    ring = ring_of(desk)
    assert secrets.open_secrets(desk.store, ring, "team-a", {"one"}) == {"one": VALUE.encode()}
    assert secrets.reseal(desk.store, ring) == 1
    assert secrets.reseal(desk.store, ring) == 0
    assert secrets.keys_in_use(desk.store) == {new.id}
    assert keys_in_use.sealed_secrets(settings, old) == []
    key_ring.remove(path, old)
    assert secrets.open_secrets(desk.store, ring_of(desk), "team-a", {"one"}) == {"one": VALUE.encode()}


async def test_a_job_names_secrets_that_its_namespace_has(desk: Desk) -> None:
    await desk.set("ada", "key")
    await desk.set("bob", "other", namespace="team-b")
    raw = base64.b64encode(b"\xff\0raw").decode()
    await desk.set("ada", "raw", raw, encoding="base64")
    wrong = {
        "other": ({"name": "other", "env": "KEY"}, "team-a does not have (there are key, raw)"),
        "raw": ({"name": "raw", "env": "RAW"}, "--secret-file raw"),
        "dash": ({"name": "key", "env": "my-key"}, "not the name of a variable"),
        "ours": ({"name": "key", "env": "GPU_PLATFORM_JOB_ID"}, "the platform sets"),
        "both": ({"name": "key", "env": "KEY", "file": "key"}, "either env or file"),
        "path": ({"name": "key", "file": "../key"}, "is not a name"),
        "twice": ({"name": "key", "env": "PATHS"}, "is in env and is a secret"),
    }
    for use, says in wrong.values():
        job = {"command": ["true"], "namespace": "team-a", "secrets": [use], "env": {"PATHS": "x"}}
        submitted = await desk.ask("ada", "POST", "/v1/jobs", json=job)
        assert submitted.status_code == 422, use
        assert says in submitted.json()["detail"]
        tried = await desk.ask("ada", "POST", "/v1/jobs:dry-run", json=job)
        assert says in (tried.json()["message"] if tried.status_code == 200 else tried.json()["detail"])
    job["secrets"] = [{"name": "raw", "file": "raw"}, {"name": "key", "env": "KEY"}]
    assert (await desk.ask("ada", "POST", "/v1/jobs:dry-run", json=job)).json()["accepted"]


USES = ({"name": "key", "env": "KEY"}, {"name": "key", "file": "key.txt"})


async def test_only_the_host_that_holds_the_attempt_gets_its_values(desk: Desk) -> None:
    await desk.set("ada", "key")
    desk.runs(secrets=USES)
    given = await desk.fetch("a")
    assert given.status_code == 200
    assert given.headers["Cache-Control"] == "no-store"
    values = given.json()
    assert values == {
        "environ": {"KEY": VALUE},
        "files": {"key.txt": base64.b64encode(VALUE.encode()).decode()},
        "token": None,
    }
    refused = [
        await desk.fetch("b"),  # holds nothing of it
        await desk.fetch("a", of="b"),  # another host's identity
        await desk.fetch("a", attempt=2),
        await desk.fetch("a", job_id="j-0000000000000bb"),
        await desk.ask("adm", "POST", f"/v1/hosts/a/attempts/{JOB}/1/secrets", json={}),
        await desk.http.post(f"/v1/hosts/a/attempts/{JOB}/1/secrets", json={}),
        await desk.fetch("a", attempt=int("9" * 30)),
    ]
    for answer in refused:
        assert answer.status_code in (401, 403), answer.text
        assert VALUE not in answer.text


@pytest.mark.parametrize("ending", ["ended", "lost"])
async def test_an_attempt_that_has_ended_gets_nothing(desk: Desk, ending: str) -> None:
    await desk.set("ada", "key")
    key = desk.runs(secrets=USES)
    assert (await desk.fetch("a")).status_code == 200
    if ending == "ended":
        attempts.end_attempt(desk.store, key, [JobState.QUEUED], now=NOW, actor="test")
    else:
        expire_leases(desk.store, LATER)
        assert leases.read_leases(desk.store, 10.0).stamps == {}
    answer = await desk.fetch("a")
    assert answer.status_code == 403
    assert "holds nothing on host a, or has ended" in answer.json()["detail"]


async def test_a_secret_that_was_deleted_meanwhile_is_named(desk: Desk) -> None:
    await desk.set("ada", "key")
    desk.runs(secrets=USES)
    await desk.ask("ada", "DELETE", "/v1/secrets/team-a/key")
    answer = await desk.fetch("a")
    assert answer.status_code == 404
    assert "namespace team-a has no secret 'key' any more: set it again" in answer.json()["detail"]


async def test_every_time_that_a_host_asks_is_in_the_audit_log(desk: Desk) -> None:
    await desk.set("ada", "key")
    desk.runs(secrets=USES)
    await desk.fetch("a")
    await desk.fetch("b")
    texts: list[str] = []

    async def asked() -> list[tuple[str, str]] | None:
        """Refusals are written a little later than they are answered."""
        items = (await desk.http.get("/v1/audit")).json()["items"]
        texts[:] = [one["entry"] for one in items]
        found = [json.loads(text) for text in texts]
        hosts = [(one["actor"], one["verdict"]) for one in found if one["action"].endswith("/secrets")]
        return hosts if len(hosts) == 2 else None

    assert await eventually(asked, "both records") == [("node/a", "allowed"), ("node/b", "forbidden")]
    assert any("PUT /v1/secrets" in text and "/v1/secrets/team-a/key" in text for text in texts)
    assert not any(VALUE in text for text in texts)


async def test_a_service_without_a_key_ring_says_how_to_get_one(sqlite_store: Store) -> None:
    async with in_process(application(sqlite_store, NOWHERE)) as http:
        answer = await http.put("/v1/secrets/default/key", json={"value": VALUE})
    assert answer.status_code == 422
    assert "gpu-platform keys create" in answer.json()["detail"]
    assert VALUE not in json.dumps(answer.json())


def test_the_key_file_of_a_node_opens_no_secret(tmp_path: Path) -> None:
    ring = tmp_path / "ring.json"
    key_ring.create(ring)
    KeyRing.load(ring).scoped("node-a").export(tmp_path / "node-a.json")
    with pytest.raises(CannotStart, match="has the keys of node-a only"):
        KeyRing.load(tmp_path / "node-a.json").scoped(secrets.SCOPE)
