"""People who sign in at an identity provider: a real one with real keys, and every wrong token."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import re
import stat
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from httpx_sse import aconnect_sse
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from pydantic import ValidationError

from gpu_platform.client import AsyncClient, Client, credentials, sign_in
from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.errors import InvalidRequest, NotSignedIn, Unavailable
from gpu_platform.settings import AccessSettings
from gpu_platform.settings.access import OidcSettings
from gpu_platform.store import Store
from service.access import middleware, oidc
from tests.security.identity_provider import AUDIENCE, Provider, new_key
from tests.support.api_server import ADMIN, application, bearer, served
from tests.support.store_cluster import Cluster
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:1"
ROLES = {"ml": {"team-a": Role.USER}, "ops": {"*": Role.OPERATOR}, "admins": {"*": Role.ADMIN}}


@dataclass
class World:
    url: str
    provider: Provider

    async def ask(self, token: str, path: str = "/v1/whoami") -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, headers=bearer(token)) as http:
            return await http.get(path)


@pytest.fixture
async def world(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(oidc, "FETCH_AT_MOST_S", 0.0)
    provider = Provider()
    Cluster(sqlite_store).host("a", gpus=1)
    async with served(provider.application()) as there:
        provider.url = there
        known = OidcSettings(issuer=there, roles=ROLES)
        async with served(application(sqlite_store, NOWHERE, access=AccessSettings(oidc=known))) as url:
            credentials.forget_note(url)
            yield World(url, provider)


async def test_who_signed_in_there_is_known_here_with_the_roles_of_their_groups(world: World) -> None:
    found = (await world.ask(world.provider.token())).json()
    assert (found["name"], found["roles"], found["signed_in_by"]) == ("ada", {"team-a": "user"}, world.provider.url)
    both = (await world.ask(world.provider.token(groups=["ml", "ops", "others"]))).json()
    assert both["roles"] == {"team-a": "user", "*": "operator"}
    assert (await world.ask(world.provider.token(groups=[]), "/v1/jobs")).status_code == 403
    assert (await world.ask(world.provider.token(groups="ml"), "/v1/jobs")).status_code == 200
    assert (await world.ask(world.provider.token(aud=["other", AUDIENCE]))).status_code == 200


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": 1},
        {"exp": None},
        {"exp": "never"},
        {"aud": "another-service"},
        {"aud": None},
        {"iss": "https://evil.example"},
        {"iss": None},
        {"sub": None},
        {"sub": "ada lovelace"},
        {"sub": ["ada"]},
        {"nbf": 2**40},
        {"exp": True},
        {"exp": float("nan")},
        {"exp": float("inf")},
        {"exp": -1},
        {"exp": str(2**40)},
        {"exp": [2**40]},
        {"exp": 10**400},
        {"nbf": True},
        {"nbf": float("nan")},
        {"nbf": "0"},
        {"nbf": 10**400},
        {"iat": float("nan")},
        {"iat": 2**40},
        {"aud": []},
        {"aud": [[AUDIENCE]]},
        {"aud": {AUDIENCE: 1}},
        {"aud": AUDIENCE.upper()},
        {"iss": ["http://127.0.0.1"]},
        {"sub": ""},
        {"sub": 7},
    ],
    ids=lambda claims: str(claims)[:40],
)
async def test_a_token_with_wrong_claims_is_refused(world: World, claims: dict[str, Any]) -> None:
    refused = await world.ask(world.provider.token(**claims))
    assert refused.status_code == 401, refused.text
    assert refused.json()["code"] == "not_signed_in"


async def test_a_token_with_another_signature_is_refused(world: World) -> None:
    good = world.provider.token()
    head, body, signature = good.split(".")
    stranger = new_key("first")  # the same name, another key
    public = world.provider.keys[0].as_pem(private=False)
    said = json.loads(base64.urlsafe_b64decode(body + "=="))

    def part(value: dict[str, Any] | bytes) -> str:
        content = value if isinstance(value, bytes) else json.dumps(value).encode()
        return base64.urlsafe_b64encode(content).rstrip(b"=").decode()

    # The public key as the secret of a symmetric signature: a library that takes any algorithm believes it.
    signed = f"{part({'alg': 'HS256', 'kid': 'first'})}.{body}"
    as_secret = f"{signed}.{part(hmac.digest(public, signed.encode(), 'sha256'))}"
    more = part({**said, "groups": ["ops"]})
    for token in (
        world.provider.token(stranger),
        f"{part({'alg': 'none'})}.{body}.",
        f"{part({'alg': 'none', 'kid': 'first'})}.{body}.{signature}",
        as_secret,
        f"{head}.{more}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}.{signature[:-4]}AAAA",
        f"{part({'alg': 'RS256', 'kid': 'unknown'})}.{body}.{signature}",
        f"{part({'alg': 'RS256', 'kid': 7})}.{body}.{signature}",
        f"{part({'alg': 'RS256', 'jwk': stranger.as_dict(private=False)})}.{body}.{signature}",
        "..",
        "a.b.c",
    ):
        assert (await world.ask(token)).status_code == 401, token
    assert (await world.ask(good)).status_code == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ({"typ": "JWT"}, 200),
        ({"typ": "at+jwt"}, 200),
        ({"typ": "application/at+JWT"}, 200),
        ({"typ": "logout+jwt"}, 401),
        ({"typ": "dpop+jwt"}, 401),
        ({"typ": "secevent+jwt"}, 401),
        ({"typ": ""}, 401),
        ({"crit": ["exp"], "exp": 1}, 401),
        ({"crit": ["b64"], "b64": False}, 401),
        ({"zip": "DEF"}, 401),
        ({"jku": "http://127.0.0.1:1/keys"}, 200),  # nobody asks there: the signature is of the provider's own key
        ({"kid": ""}, 401),
        ({"kid": "../first"}, 401),
    ],
    ids=str,
)
async def test_what_the_header_of_a_token_may_say(world: World, header: dict[str, Any], status: int) -> None:
    """A provider signs more than tokens that say who asks, with the same keys."""
    key = world.provider.keys[0].private_key
    assert key is not None
    now = int(time.time())
    claims = {"iss": world.provider.url, "aud": AUDIENCE, "sub": "ada", "exp": now + 60}
    whole = {"alg": "RS256", "kid": "first", **header}
    content = ".".join(
        base64.urlsafe_b64encode(json.dumps(one).encode()).rstrip(b"=").decode() for one in (whole, claims)
    )
    signed = key.sign(content.encode(), padding.PKCS1v15(), hashes.SHA256())
    token = f"{content}.{base64.urlsafe_b64encode(signed).rstrip(b'=').decode()}"
    assert (await world.ask(token)).status_code == status


async def test_an_id_token_of_another_client_is_refused(sqlite_store: Store) -> None:
    provider = Provider()
    async with served(provider.application()) as there:
        provider.url = there
        known = OidcSettings(issuer=there, use_id_token=True)
        async with served(application(sqlite_store, NOWHERE, access=AccessSettings(oidc=known))) as url:
            world = World(url, provider)
            both = {"aud": ["evil", AUDIENCE]}
            tried: list[tuple[dict[str, Any], int]] = [
                ({}, 200),
                ({"azp": "gpu-platform"}, 200),
                ({**both, "azp": "gpu-platform"}, 200),
                ({"azp": "evil"}, 401),
                ({**both, "azp": "evil"}, 401),
                ({"azp": None}, 200),
                ({"azp": ["gpu-platform"]}, 401),
            ]
            for claims, status in tried:
                assert (await world.ask(provider.token(**claims))).status_code == status, claims


async def test_who_stole_a_short_token_makes_none_that_lasts_for_ever(world: World) -> None:
    async def made(groups: list[str], **request: Any) -> httpx.Response:
        headers = bearer(world.provider.token(groups=groups))
        async with httpx.AsyncClient(base_url=world.url, headers=headers) as http:
            return await http.post("/v1/tokens", json=request)

    at = datetime.now(UTC)
    for request in ({}, {"expires_at": (at + timedelta(days=90)).isoformat()}):
        info = (await made(["ml"], **request)).json()["info"]
        assert datetime.fromisoformat(info["expires_at"]) <= at + timedelta(days=91)
    refused = await made(["ml"], expires_at=(at + timedelta(days=365)).isoformat())
    assert refused.status_code == 422
    assert "access.oidc.token_days" in refused.json()["detail"]
    soon = (at + timedelta(days=1)).isoformat()
    assert datetime.fromisoformat((await made(["ml"], expires_at=soon)).json()["info"]["expires_at"]) < at + timedelta(
        2
    )
    assert (await made(["admins"])).json()["info"]["expires_at"] is None


async def test_keys_may_change_at_any_time(world: World) -> None:
    old = world.provider.token()
    assert (await world.ask(old)).status_code == 200
    world.provider.rotate()
    assert (await world.ask(world.provider.token())).status_code == 200
    assert (await world.ask(old)).status_code == 401


async def test_a_name_of_a_key_may_get_another_key(world: World) -> None:
    old = world.provider.token()
    assert (await world.ask(old)).status_code == 200
    world.provider.keys = [new_key("first")]
    assert (await world.ask(world.provider.token())).status_code == 200
    assert (await world.ask(old)).status_code == 401


_X = "hSDwCYkwp1R0i33ctD73Wg2_Og0mOBr066SpjqqbTmo"
NO_KEYS: list[Any] = [
    {"kty": "NEW", "kid": "x"},
    {"kid": "x"},
    "x",
    7,
    None,
    [],
    {"kty": ["RSA"], "kid": "x"},
    {"kty": "OKP", "crv": "X25519", "x": _X, "kid": "first"},
    {"kty": "OKP", "crv": "Ed999", "x": _X, "kid": "x"},
    {"kty": "EC", "crv": "P-999", "x": "AAAA", "y": "AAAA", "kid": "x"},
    {"kty": "EC", "crv": "P-256", "x": "AAAA", "y": "AAAA", "kid": "x"},
    {"kty": "RSA", "e": "AQAB", "kid": "x"},
    {"kty": "RSA", "e": "AQAB", "n": "!!", "kid": "x"},
    {"kty": "RSA", "e": "AQ", "n": "w" * 342, "kid": "x"},
    {"kty": "RSA", "e": "AQAB", "n": "_" * 80_000, "kid": "first"},
    {"kty": "oct", "k": "c2VjcmV0", "kid": "first"},
    {"kty": "RSA", "e": "AQAB", "n": "w" * 342, "kid": 7},
    {"kty": "RSA", "e": "AQAB", "n": "w" * 342, "kid": "first", "use": "enc"},
    {"kty": "RSA", "e": "AQAB", "n": "w" * 342, "kid": "first", "key_ops": ["encrypt"]},
    {"kty": "RSA", "e": "AQAB", "n": "w" * 342, "kid": "first", "alg": "RSA-OAEP"},
]


@pytest.mark.parametrize("more", NO_KEYS, ids=lambda one: str(one)[:50])
async def test_a_key_that_is_none_keeps_no_other_from_being_used(world: World, more: Any) -> None:
    """Providers add keys of new kinds, and keys for other uses, beside those that sign."""
    world.provider.more_keys = [more]
    assert (await world.ask(world.provider.token())).status_code == 200


@pytest.mark.filterwarnings("ignore:Key size")
async def test_keys_that_are_short_for_other_uses_or_private_to_both_sides_sign_nothing(world: World) -> None:
    short = RSAKey.generate_key(1024, {"kid": "short"})
    enc = RSAKey.generate_key(2048, {"kid": "enc", "use": "enc"})
    ops = RSAKey.generate_key(2048, {"kid": "ops", "key_ops": ["sign", "verify"]})
    other = new_key("rs384")
    world.provider.more_keys = [
        short.as_dict(private=False),
        enc.as_dict(private=False),
        {**ops.as_dict(private=False), "key_ops": ["verify"]},
        {**other.as_dict(private=False), "alg": "RS384"},
    ]
    tried = (("short", short, 401), ("enc", enc, 401), ("ops", ops, 200), ("rs384", other, 401))
    for kid, key, status in tried:
        signing = RSAKey.import_key(key.raw_value, {"kid": kid})
        header = {"alg": "RS256", "kid": kid}
        assert (await world.ask(world.provider.token(signing, header=header))).status_code == status, kid


async def test_of_two_keys_with_one_name_the_kind_says_which_and_else_none_is_taken(world: World) -> None:
    curve = ECKey.generate_key("P-256", {"kid": "first", "use": "sig"})
    world.provider.more_keys = [curve.as_dict(private=False)]
    assert (await world.ask(world.provider.token())).status_code == 200
    signed = jwt.encode(
        {"alg": "ES256", "kid": "first"}, jwt.decode(world.provider.token(), world.provider.keys[0]).claims, curve
    )
    assert (await world.ask(signed)).status_code == 200
    for wrong in ("ES256", "RS256"):  # each signature with the name of the other algorithm
        head = base64.urlsafe_b64encode(json.dumps({"alg": wrong, "kid": "first"}).encode()).rstrip(b"=").decode()
        token = (world.provider.token() if wrong == "ES256" else signed).split(".", 1)[1]
        assert (await world.ask(f"{head}.{token}")).status_code == 401
    world.provider.more_keys = [new_key("first").as_dict(private=False)]
    world.provider.rotate()
    world.provider.keys.append(new_key("first"))
    assert (await world.ask(world.provider.token(world.provider.keys[0]))).status_code == 200
    assert (await world.ask(world.provider.token())).status_code == 401


async def test_a_flood_of_signatures_of_others_asks_the_provider_as_rarely_as_unknown_names(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await world.ask(world.provider.token())).status_code == 200
    monkeypatch.setattr(oidc, "FETCH_AT_MOST_S", 60.0)
    before, stranger = world.provider.asked_for_keys, new_key("first")
    for number in range(20):
        assert (await world.ask(world.provider.token(stranger, jti=str(number)))).status_code == 401
    assert world.provider.asked_for_keys <= before + 1
    assert (await world.ask(world.provider.token())).status_code == 200


@pytest.mark.long
async def test_nobody_makes_the_service_ask_the_provider_all_the_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await world.ask(world.provider.token())).status_code == 200
    monkeypatch.setattr(oidc, "FETCH_AT_MOST_S", 60.0)
    before = world.provider.asked_for_keys
    for number in range(20):
        token = world.provider.token(new_key("x"), header={"alg": "RS256", "kid": f"made-up-{number}"})
        assert (await world.ask(token)).status_code == 401
    assert world.provider.asked_for_keys <= before + 1


@pytest.mark.some(1)
@pytest.mark.parametrize(("trickle", "every_s"), [(b" ", 0.2), (b" " * 65_536, 0.0)], ids=["drips", "never ends"])
async def test_a_provider_whose_answer_does_not_end_holds_up_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, trickle: bytes, every_s: float
) -> None:
    """Strangers name keys that nobody has, so the provider is asked; whoever it knows goes on meanwhile."""
    good = world.provider.token()
    assert (await world.ask(good)).status_code == 200
    monkeypatch.setattr(sign_in, "_TIMEOUT_S", 3.0)
    monkeypatch.setattr(oidc, "WAIT_S", 2.0)
    world.provider.keys_trickle, world.provider.trickle_s = trickle, every_s
    unknown = [world.provider.token(new_key(f"made-up-{number}")) for number in range(30)]
    guesses = [asyncio.create_task(world.ask(token)) for token in unknown]
    await asyncio.sleep(0.3)
    began = time.monotonic()
    assert (await world.ask(good)).status_code == 200
    assert (await world.ask(ADMIN)).status_code == 200
    assert time.monotonic() - began < 2.0
    assert {answer.status_code for answer in await asyncio.gather(*guesses)} <= {401, 429}
    world.provider.keys_trickle = b""
    world.provider.rotate()
    new = world.provider.token()

    async def taken() -> bool:
        return (await world.ask(new)).status_code == 200

    await eventually(taken, "the new key is read")


async def test_a_provider_that_is_away_is_a_503_and_known_keys_go_on(sqlite_store: Store) -> None:
    provider = Provider(url="http://127.0.0.1:1")
    access = AccessSettings(oidc=OidcSettings(issuer=provider.url))
    async with served(application(sqlite_store, NOWHERE, access=access)) as url:
        assert (await World(url, provider).ask(provider.token())).status_code == 503


def test_an_issuer_that_anybody_could_play_is_refused() -> None:
    with pytest.raises(ValidationError, match="https"):
        OidcSettings(issuer="http://login.example.com")


async def test_login_confirms_a_code_keeps_the_tokens_and_refreshes_them(world: World) -> None:
    provider, shown = world.provider, list[tuple[str, str]]()
    provider.lives_s = sign_in.EARLY_S + 1.5

    def show(address: str, code: str) -> None:
        shown.append((address, code))
        threading.Timer(0.5, provider.confirmed.add, [code]).start()

    def work() -> tuple[str, str]:
        with Client(world.url) as client:
            with pytest.raises(NotSignedIn, match="gpu-platform login"):
                client.who_am_i()
            sign_in.sign_in(world.url, client.how_to_sign_in(), show)
            first = client.who_am_i().name
            before = credentials.read_note(world.url)["access_token"]
            time.sleep(2.0)  # it is soon too old
            second = client.who_am_i().name
            assert credentials.read_note(world.url)["access_token"] != before
            return first, second

    assert await asyncio.to_thread(work) == ("ada", "ada")
    assert shown[0][0] == f"{provider.url}/activate"
    assert provider.asked_for_tokens.count("refresh_token") == 1
    assert stat.S_IMODE(credentials.note_path(world.url).stat().st_mode) == 0o600
    async with AsyncClient(world.url) as client:
        assert (await client.who_am_i()).name == "ada"


async def test_many_commands_at_once_refresh_once(world: World) -> None:
    provider = world.provider
    provider.refresh_tokens.add("r-1")
    note = {"access_token": provider.token(exp=1), "refresh_token": "r-1", "expires_at": 0.0}
    note |= {"token_endpoint": f"{provider.url}/token", "client_id": "gpu-platform"}
    credentials.write_note(world.url, note)

    def ask() -> str:
        with Client(world.url) as client:
            return client.who_am_i().name

    assert set(await asyncio.gather(*(asyncio.to_thread(ask) for _ in range(6)))) == {"ada"}
    assert provider.asked_for_tokens == ["refresh_token"]


async def test_login_says_when_it_cannot_be(world: World, sqlite_store: Store) -> None:
    def not_confirmed(address: str, code: str) -> None:
        world.provider.codes.clear()

    async with AsyncClient(world.url) as client:
        info = await client.how_to_sign_in()
    with pytest.raises(NotSignedIn, match="invalid_grant"):
        await asyncio.to_thread(sign_in.sign_in, world.url, info, not_confirmed)
    for update, kind, words in (
        ({"client_id": "another"}, NotSignedIn, "invalid_client"),
        ({"issuer": f"{world.provider.url}/"}, InvalidRequest, "is not what the identity provider calls itself"),
        ({"issuer": None}, InvalidRequest, "access.oidc.issuer is not set"),
    ):
        other = info.model_copy(update=update)
        with pytest.raises(kind, match=re.escape(words)):
            await asyncio.to_thread(sign_in.sign_in, world.url, other, not_confirmed)


@pytest.mark.parametrize(
    "said",
    [
        {"interval": -1},
        {"interval": "NaN"},
        {"interval": [1]},
        {"expires_in": float("-inf")},
        {"expires_in": "soon", "interval": 0},
        {"verification_uri": "javascript:alert(1)"},
        {"verification_uri": None},
        {"user_code": None},
        {"device_code": None},
    ],
    ids=str,
)
async def test_login_says_what_is_wrong_with_what_the_provider_says(world: World, said: dict[str, Any]) -> None:
    """No trace, no wait without an end, and no address that a browser would obey."""
    async with AsyncClient(world.url) as client:
        info = await client.how_to_sign_in()
    world.provider.device_says = said

    def show(address: str, code: str) -> None:
        assert address.startswith("http")
        world.provider.codes.clear()

    with pytest.raises((NotSignedIn, Unavailable)):
        await asyncio.wait_for(asyncio.to_thread(sign_in.sign_in, world.url, info, show), 8)


@pytest.mark.parametrize("lives", ["soon", float("nan"), float("inf"), -5, 10**400, True, [1], None], ids=str)
async def test_a_token_lives_as_long_as_a_number_says(world: World, lives: Any) -> None:
    world.provider.returns_to.add(f"{world.url}/sign-in")
    world.provider.tokens_live = lives
    async with httpx.AsyncClient(base_url=world.url, headers={"Origin": world.url}, trust_env=False) as http:
        address = (await http.post("/sign-in/begin", json=BEGINNING)).raise_for_status().json()["address"]
        mine = {"code": await code_at(address), "verifier": VERIFIER}
        found = (await http.post("/sign-in/code", json=mine)).raise_for_status().json()
    assert 0 <= found["expires_in_s"] <= 366 * 86_400


async def test_a_stream_breaks_off_when_its_token_ends_so_that_the_client_comes_with_a_new_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(middleware, "LOOK_AGAIN_S", 0.2)
    short = world.provider.token(exp=int(time.time()) - oidc.LEEWAY_S + 6)
    async with httpx.AsyncClient(headers=bearer(short), timeout=50) as http:
        async with aconnect_sse(http, "GET", f"{world.url}/v1/events") as source:
            assert source.response.status_code == 200
            assert [sse.event async for sse in source.aiter_sse()] == []
        assert (await http.get(f"{world.url}/v1/events")).status_code == 401


# ---- on the page of the dashboard ----

VERIFIER = "v" * 43
_DIGEST = hashlib.sha256(VERIFIER.encode()).digest()
BEGINNING = {"state": "s" * 22, "challenge": base64.urlsafe_b64encode(_DIGEST).rstrip(b"=").decode()}


async def code_at(address: str) -> str:
    """What the provider sends the browser back with, once the person has gone on."""
    async with httpx.AsyncClient(trust_env=False) as http:
        page = (await http.get(address)).raise_for_status().text
    [code] = re.findall(r"code=([0-9a-f]+)", page)
    return code


async def test_a_page_signs_in_with_a_code_that_nobody_else_can_use(world: World) -> None:
    world.provider.returns_to.add(f"{world.url}/sign-in")
    async with httpx.AsyncClient(base_url=world.url, headers={"Origin": world.url}, trust_env=False) as http:
        address = (await http.post("/sign-in/begin", json=BEGINNING)).raise_for_status().json()["address"]
        stolen = {"code": await code_at(address), "verifier": "w" * 43}
        assert (await http.post("/sign-in/code", json=stolen)).status_code == 401
        mine = {"code": await code_at(address), "verifier": VERIFIER}
        found = (await http.post("/sign-in/code", json=mine)).raise_for_status().json()
        assert (await world.ask(found["token"])).json()["name"] == "ada"
        assert (await http.post("/sign-in/code", json=mine)).status_code == 401, "a code is of use once"
        old = {"refresh_token": found["refresh_token"]}
        fresh = (await http.post("/sign-in/refresh", json=old)).raise_for_status().json()
        assert (await http.post("/sign-in/refresh", json=old)).status_code == 401
        left = {"refresh_token": fresh["refresh_token"]}
        ended = (await http.post("/sign-in/end", json=left)).raise_for_status().json()
        assert ended["address"].startswith(f"{world.provider.url}/logout")
        assert (await http.post("/sign-in/refresh", json=left)).status_code == 401
        world.provider.away = True
        away = await http.post("/sign-in/refresh", json=left)
        assert (away.status_code, away.json()["retryable"]) == (503, True)


@pytest.mark.parametrize(("methods", "status"), [(["plain"], 422), ([], 422), (["plain", "S256"], 200), (None, 200)])
async def test_a_provider_that_says_it_checks_no_challenge_signs_nobody_in_on_a_page(
    world: World, methods: list[str] | None, status: int
) -> None:
    world.provider.says = {"code_challenge_methods_supported": methods}
    async with httpx.AsyncClient(base_url=world.url, headers={"Origin": world.url}, trust_env=False) as http:
        assert (await http.post("/sign-in/begin", json=BEGINNING)).status_code == status


async def test_the_service_carries_only_sign_ins_of_its_own_pages(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.url, trust_env=False) as http:
        for origin in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {}):
            answer = await http.post("/sign-in/begin", json=BEGINNING, headers=origin)
            assert answer.status_code in (403, 422), answer.text
        for body in (
            {**BEGINNING, "redirect_uri": "https://evil.example"},
            {**BEGINNING, "challenge": "plain"},
            {**BEGINNING, "state": "a&redirect_uri=https://evil.example"},
            {**BEGINNING, "state": ""},
        ):
            answer = await http.post("/sign-in/begin", json=body, headers={"Origin": world.url})
            assert answer.status_code == 422, answer.text


async def test_without_a_provider_and_with_one_that_is_away_the_page_is_told_so(sqlite_store: Store) -> None:
    nobody = OidcSettings(issuer="http://127.0.0.1:1")
    for known, status, said in ((OidcSettings(), 422, "access.oidc.issuer"), (nobody, 503, "does not answer")):
        app = application(sqlite_store, NOWHERE, access=AccessSettings(oidc=known))
        async with served(app) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            answer = await http.post("/sign-in/begin", json=BEGINNING, headers={"Origin": url})
            assert answer.status_code == status, answer.text
            assert said in answer.json()["detail"]
