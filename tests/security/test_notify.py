"""Nobody is told what is not theirs, and no user makes the platform write to an address of their choice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gpu_platform.domain.access.principal import Principal, PrincipalKind
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.notify import NotifyRule
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.notifications import OpenTargets
from gpu_platform.settings import AccessSettings, Settings
from gpu_platform.settings.access import OidcSettings
from gpu_platform.store import Store
from gpu_platform.store.jobs import notices
from service.access import oidc
from service.access.gate import Access
from service.operations.job_defaults import accepted
from tests.security.identity_provider import Provider
from tests.support.api_server import ADMIN, application, bearer, served

NOWHERE = "127.0.0.1:1"
SETTINGS = Settings(access=AccessSettings(open_namespaces=True))
OPENED = OpenTargets.model_validate(
    {
        "targets": [
            {"name": "team-a", "kind": "slack", "namespaces": ["team-a"]},
            {"name": "team-b", "kind": "slack", "namespaces": ["team-b"]},
            {"name": "mail", "kind": "mailtos", "namespaces": ["*"], "personal": True, "domains": ["lab.example"]},
            {
                "name": "local",
                "kind": "mailtos",
                "namespaces": ["team-c"],
                "personal": True,
                "user_domain": "lab.example",
            },
        ],
        "defaults": [
            {"namespaces": ["team-a"], "events": ["fail"], "target": "team-a"},
            {"namespaces": ["*"], "events": ["end"], "target": "mail"},
        ],
    }
)


@pytest.fixture
def store(sqlite_store: Store) -> Store:
    notices.begin(sqlite_store, OPENED)
    return sqlite_store


def ann(**more: Any) -> Access:
    roles = {"team-a": Role.USER, "team-c": Role.USER}
    principal = Principal(PrincipalKind.PERSON, "ann", roles=roles, **more)
    return Access(SETTINGS.access, "POST /v1/jobs", principal)


def rules(store: Store, access: Access, *asked: dict[str, Any] | None, **fields: Any) -> tuple[NotifyRule, ...]:
    """What becomes of ``notify``. No rules at all: the field is left out; None: it is empty."""
    given = {} if not asked else {"notify": [one for one in asked if one is not None]}
    spec = JobSpec.model_validate({"namespace": "team-a", "command": ["x"], **given, **fields})
    return accepted(SETTINGS, store, access, spec)[0].notify


def refusal(store: Store, access: Access, rule: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(InvalidRequest) as error:
        rules(store, access, {"events": ["end"], **rule}, **fields)
    return error.value.message


def test_a_channel_of_another_team_looks_like_one_that_is_not_there(store: Store) -> None:
    there = refusal(store, ann(), {"target": "team-b"})
    none = refusal(store, ann(), {"target": "nothing"})
    assert there.replace("team-b", "nothing") == none
    assert none == "there is no target 'nothing' for jobs of namespace team-a; there are: team-a, mail"


def test_an_address_is_ones_own_or_of_a_domain_that_the_operator_allows(store: Store) -> None:
    own = ann(mail="ann@home.example")
    [rule] = rules(store, own, {"events": ["end"], "target": "mail"})
    assert rule.address == "ann@home.example"
    [rule] = rules(store, ann(), {"events": ["end"], "address": "Boss@LAB.example"})
    assert (rule.target, rule.address) == ("mail", "Boss@lab.example")
    said = refusal(store, own, {"target": "mail", "address": "victim@other.example"})
    assert said == (
        "target mail was asked to send to victim@other.example; allowed: addresses of lab.example (ann@home.example)"
    )
    assert "sub.lab.example" in refusal(store, own, {"target": "mail", "address": "x@sub.lab.example"})
    assert "nobody told that of ann" in refusal(store, ann(), {"target": "mail"})
    assert "its own recipients" in refusal(store, own, {"target": "team-a", "address": "x@lab.example"})


def test_an_operator_who_submits_for_others_does_not_get_their_mail(store: Store) -> None:
    principal = Principal(PrincipalKind.PERSON, "op", roles={CLUSTER: Role.ADMIN}, mail="op@home.example")
    access = Access(SETTINGS.access, "POST /v1/jobs", principal)
    assert "nobody told that of" in refusal(store, access, {"target": "mail"}, user="op2")
    [rule] = rules(store, access, {"events": ["end"], "target": "local"}, namespace="team-c", user="op2")
    assert rule.address == "op2@lab.example"
    job = Principal(PrincipalKind.JOB, "j-1", roles={"team-a": Role.USER}, user="ann", mail="ann@home.example")
    assert "nobody told" in refusal(store, Access(SETTINGS.access, "", job), {"target": "mail"})


def test_defaults_count_where_a_job_says_nothing_and_none_turns_them_off(store: Store) -> None:
    assert [rule.target for rule in rules(store, ann())] == ["team-a"], "nobody knows an address of hers"
    assert [rule.address for rule in rules(store, ann(mail="a@b.example"))] == [None, "a@b.example"]
    assert rules(store, ann(), None) == ()
    assert "more than one target" in refusal(store, ann(), {})


def test_without_an_open_target_a_job_that_names_none_is_as_before(sqlite_store: Store) -> None:
    assert rules(sqlite_store, ann()) == ()
    assert "there is none: an operator opens one" in refusal(sqlite_store, ann(), {"target": "mail"})


@pytest.fixture
async def world(store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, Provider]]:
    monkeypatch.setattr(oidc, "FETCH_AT_MOST_S", 0.0)
    provider = Provider()
    async with served(provider.application()) as there:
        provider.url = there
        known = OidcSettings(issuer=there, roles={"ml": {"team-a": Role.USER}})
        async with served(application(store, NOWHERE, access=AccessSettings(oidc=known))) as url:
            yield url, provider


async def test_the_address_is_that_of_the_identity_provider_if_it_is_verified(world: tuple[str, Provider]) -> None:
    url, provider = world

    async def listed(token: str) -> dict[str, Any]:
        async with httpx.AsyncClient(base_url=url, headers=bearer(token)) as http:
            return {one["name"]: one for one in (await http.get("/v1/notifications")).json()["items"]}

    found = await listed(provider.token(email="ada@home.example"))
    assert {name: one["address"] for name, one in found.items()} == {"team-a": None, "mail": "ada@home.example"}
    wrong: list[dict[str, Any]] = [
        {"email": "boss@lab.example", "email_verified": False},
        {"email": "a@b\nBcc:x@y"},
        {"email": ["x"]},
    ]
    for claims in wrong:
        assert (await listed(provider.token(**claims)))["mail"]["address"] is None
    assert [*await listed(ADMIN)] == ["team-a", "team-b", "mail", "local"]
    async with httpx.AsyncClient(base_url=url, headers=bearer(provider.token())) as http:
        for asked in ("target=team-b", "target=mail&address=x@other.example", "target=mail"):
            answer = await http.post(f"/v1/notifications:test?{asked}")
            assert answer.status_code == 422, answer.text
