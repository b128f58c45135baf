"""Tokens and headers that nobody should send, over a real connection: each is answered with 4xx, counted, and written
into the audit log. ``make test`` has a short run, always with the same requests; ``make test-fuzz`` a long one.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gpu_platform.domain.access.roles import Role
from gpu_platform.settings import AccessSettings, ServiceSettings
from gpu_platform.settings.access import OidcSettings
from gpu_platform.settings.service import RateLimitSettings
from gpu_platform.store import Store, audit
from gpu_platform.store.access import job_tokens
from service.access import authentication
from service.access.code_flow import CodeFlow
from service.access.oidc import OidcVerifier
from service.operations.identities import Issuer
from tests.security.identity_provider import Provider, new_key
from tests.support.api_server import application, served
from tests.support.waiting import eventually

LONG_S = int(os.environ.get("GPU_PLATFORM_FUZZ_SECONDS", "120"))
SHORT = 400
NOWHERE = "127.0.0.1:1"
STRANGER = new_key("first")
NEEDS_SOMEBODY = ("GET /v1/whoami", "GET /v1/jobs", "POST /v1/jobs", "GET /docs", "GET /metrics")
OF_NODES = ("POST /v1/hosts/a/heartbeat", "POST /v1/hosts/a/report", "GET /v1/hosts/a/attempts/j-1/1/upload")
OF_ANYBODY = (
    *("POST /sign-in/begin", "POST /sign-in/code", "POST /sign-in/refresh", "POST /sign-in/end"),
    *("POST /v1/identity/enroll", "POST /v1/identity/renew", "GET /v1/login", "GET /v1/identity/authorities"),
)
PEM = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"
BODIES: dict[str, dict[str, Any]] = {
    "POST /sign-in/begin": {"state": "s" * 22, "challenge": "c" * 43},
    "POST /sign-in/code": {"code": "c", "verifier": "v" * 43},
    "POST /sign-in/refresh": {"refresh_token": "r"},
    "POST /sign-in/end": {},
    "POST /v1/identity/enroll": {"identity": "node/a", "secret": "s" * 43, "request": PEM},
    "POST /v1/identity/renew": {"request": PEM},
}
"""What is well-formed, for routes that anybody may use."""
ODD_BYTES = (b"\0", b"\xff\xfe", "\u2603".encode(), b"\x7f", b"\t", b" ", b"\r", b",", b'"', b"=", b";", b"\xc0\x80")
ALGORITHMS = (
    "none",
    "None",
    "HS256",
    "RS256",
    "ES256",
    "RS999",
    "Ed25519",
    "PBES2-HS256+A128KW",
    "dir",
    "",
    None,
    7,
    [],
)
KIDS: tuple[Any, ...] = (
    *("first", "../../etc/passwd", "' OR 1=1 --", "http://127.0.0.1:1/k", "\0", "\ud800", "k" * 9000, "", None, 7),
    *([], {}, ["first"], {"first": 1}, True, 1e400),
)


@dataclass
class World:
    """A real service with a real identity provider."""

    url: str
    provider: Provider
    store: Store


@pytest.fixture
async def world(sqlite_store: Store, tmp_path: Path) -> AsyncIterator[World]:
    provider = Provider()
    async with served(provider.application()) as there:
        provider.url = there
        access = AccessSettings(oidc=OidcSettings(issuer=there, roles={"ml": {"team-a": Role.USER}}))
        limits = ServiceSettings(rate_limits=RateLimitSettings(requests=None, planning=None, bad_tokens=None))
        async with served(application(sqlite_store, NOWHERE, access=access, service=limits)) as url:
            yield World(url, provider, sqlite_store)


def part(value: bytes) -> bytes:
    return base64.urlsafe_b64encode(value).rstrip(b"=")


class Guesser:
    """Makes requests of somebody who has no valid token."""

    def __init__(self, seed: int, provider: Provider) -> None:
        self.some = random.Random(seed)
        self.provider = provider
        self.stranger = STRANGER
        self.makers: tuple[Callable[[], bytes], ...] = (
            self.nested,
            self.odd_base64,
            self.odd_header,
            self.odd_claims,
            self.stolen_parts,
            self.api_token,
            self.huge,
        )

    def nested(self) -> bytes:
        """JSON that is too deep for a parser, in one of the parts."""
        deep = self.some.choice((10, 990, 3000, 9000))
        opened, value = self.some.choice(((b"[", b""), (b'{"a":', b""), (b'[{"kid":', b""), (b"[", b"1" + b"]" * deep)))
        parts = [part(b'{"alg":"RS256","kid":"first"}'), part(b"{}"), b"x"]
        parts[self.some.randrange(3)] = part((opened * deep + value)[:9000])
        return b".".join(parts)

    def odd_base64(self) -> bytes:
        good = self.provider.token().encode()
        at = self.some.randrange(len(good))
        return good[:at] + self.some.choice((*ODD_BYTES, b"=", b"==", b"+/", b".", b"")) + good[at + 1 :]

    def odd_header(self) -> bytes:
        said: dict[str, Any] = {"alg": self.some.choice(ALGORITHMS), "kid": self.some.choice(KIDS)}
        said |= self.some.choice(
            (
                *({}, {"crit": ["b64"], "b64": False}, {"crit": "exp"}, {"crit": [[]]}, {"zip": "DEF"}, {"typ": 1}),
                *({"jku": self.provider.url}, {"x5u": "file:///etc/passwd"}, {"x5c": ["AAAA"]}, {"enc": "A256GCM"}),
                *({"jwk": self.stranger.as_dict(private=False)}, {"p2c": 2**31, "p2s": "AA"}, {"epk": {"kty": "EC"}}),
            )
        )
        body, signature = self.provider.token().encode().split(b".")[1:]
        return b".".join((part(json.dumps(said).encode()), body, self.some.choice((signature, b"", b"AAAA"))))

    def odd_claims(self) -> bytes:
        """Signed by nobody whom the service believes, or by the provider and wrong."""
        odd = {
            "exp": (-1, 0, "never", [], {}, None),
            "nbf": (2**70, "soon", []),
            "aud": ("another", [], {}, True, None, 1e400),
            "iss": ("https://evil.example", [], {}, True, None, 7),
            "sub": ("\0", "a" * 5000, [], {}, True, None, "../a", "a\nb"),
        }
        claim = self.some.choice([*odd])
        value = self.some.choice(odd[claim])
        key = self.some.choice((None, self.stranger))
        return self.provider.token(key, **{claim: value}).encode()

    def stolen_parts(self) -> bytes:
        parts = self.provider.token().encode().split(b".")
        self.some.shuffle(parts)
        return b".".join([*parts[:2], self.some.choice((b"", b"AAAA", parts[0]))])

    def api_token(self) -> bytes:
        prefix = self.some.choice((b"gpt_", b"gpj_", b"gpt_" * 500, b""))
        return prefix + self.some.choice((*ODD_BYTES, b"x")) * self.some.choice((1, 39, 500)) + b"x"

    def huge(self) -> bytes:
        size = self.some.choice((4095, 16_000, 16_384))
        return self.some.choice((b"." * size, b"a." * (size // 2), b"a.b." + b"c" * size, b"9" * size))

    def headers(self) -> list[bytes]:
        """The lines of one request, without a valid token."""
        token = self.some.choice(self.makers)().replace(b"\r", b"").replace(b"\n", b"")
        scheme = self.some.choice((b"Bearer ", b"bearer  ", b"Basic ", b"Digest ", b"Bearer\t", b"", b"Bearer Bearer "))
        found = [b"Authorization: " + scheme + token]
        if self.some.random() < 0.2:
            found *= 2
        if self.some.random() < 0.1:
            found = [b"Authorization: Basic " + base64.b64encode(b"x:" + token)]
        if self.some.random() < 0.3:
            odd = self.some.choice((*ODD_BYTES, b"a:" + b"f" * 64, "a\u00e9:\u2603".encode(), b":", b"x" * 3000))
            names = (b"X-GPU-Platform-Node", b"X-GPU-Platform-User", b"X-Forwarded-For", b"Cookie", b"traceparent")
            names += (b"X-GPU-Platform-Break-Glass", b"Origin", b"Range", b"Last-Event-ID", b"Content-Type", b"Accept")
            found.append(self.some.choice(names) + b": " + odd.replace(b"\r", b""))
        return found

    def body(self) -> bytes:
        """What somebody sends to a route that anybody may use."""
        odd: tuple[Any, ...] = ("", "\0", "\ud800", "x" * 5000, None, 7, [], {}, [[]] * 50, 1e400, True)
        said = dict(self.some.choice([*BODIES.values()]))
        for name in self.some.sample([*said], self.some.randrange(len(said) + 1)):
            said[name] = self.some.choice((*odd, PEM * 50))
        return self.some.choice(
            (
                *(json.dumps(said).encode(),) * 5,
                *(b"[" * 5000, b'{"a":' * 3000, b"\xff", b"", b"9" * 5000, b'"' + b"\\ud800" * 9 + b'"'),
            )
        )


async def ask(url: str, route: str, headers: list[bytes], body: bytes) -> int:
    """The status of the answer, 0 if the server closed the connection without one."""
    there = urlsplit(url)
    reader, writer = await asyncio.open_connection(there.hostname, there.port)
    try:
        method, path = route.split(" ", 1)
        lines = [f"{method} {path} HTTP/1.1".encode(), f"Host: {there.netloc}".encode(), *headers]
        if not any(one.lower().startswith(b"content-type") for one in lines):
            lines.append(b"Content-Type: application/json")
        if not any(one.lower().startswith(b"origin") for one in lines):
            lines.append(f"Origin: {url}".encode())
        lines += [f"Content-Length: {len(body)}".encode(), b"Connection: close", b"", body]
        writer.write(b"\r\n".join(lines))
        async with asyncio.timeout(20):
            first = await reader.readline()
        return int(first.split()[1]) if first else 0
    except ConnectionError:
        return 0
    finally:
        writer.close()


async def guess(world: World, seed: int) -> int:
    """Returns 1 if the token was looked at, and refused."""
    guesser = Guesser(seed, world.provider)
    route = guesser.some.choice(guesser.some.choice((NEEDS_SOMEBODY, OF_NODES, OF_ANYBODY)))
    headers, body = guesser.headers(), guesser.body() if route.startswith("POST") else b""
    status = await ask(world.url, route, headers, body)
    said = f"seed {seed}: {status} to {route} with {b' | '.join(headers)[:300]!r} and {body[:200]!r}"
    if route in OF_ANYBODY:
        assert status == 0 or 200 <= status < 500 or (status == 503 and route.startswith("POST /sign-in")), said
    else:
        assert 400 <= status < 500, said
    return status == 401


def refused(store: Store) -> int:
    return sum(one.decoded().verdict == "not_signed_in" for one in audit.read_records(store, 0, 100_000))


async def run(world: World, goes_on: Callable[[], bool], first: int) -> int:
    """How many requests were sent. Each that was refused is in the audit log."""
    seed, expected = first, refused(world.store)
    while goes_on():
        expected += sum(await asyncio.gather(*(guess(world, seed + number) for number in range(8))))
        seed += 8
    await eventually(lambda: refused(world.store) == expected, f"{expected} refusals in the audit log")
    return seed - first


@pytest.mark.timeout(120)
async def test_a_short_run_of_wrong_tokens_is_refused_counted_and_written_down(world: World) -> None:
    left = iter(range(SHORT // 8))
    await run(world, lambda: next(left, None) is not None, 0)
    before = refused(world.store)
    for deep in (b"[" * 3000, b'{"a":' * 2000):
        token = part(deep) + b".a.b"
        for route in (*NEEDS_SOMEBODY, "GET /readyz"):
            status = await ask(world.url, route, [b"Authorization: Bearer " + token], b"")
            assert status == 401 or (route == "GET /readyz" and status in (200, 503)), (route, status)
    expected = before + 2 * (len(NEEDS_SOMEBODY) + 1)
    await eventually(lambda: refused(world.store) == expected, f"{expected} refusals in the audit log")


@pytest.mark.parametrize(
    ("place", "name", "route", "token"),
    [
        (authentication, "credential_of", "GET /v1/whoami", b"gpt_x"),
        (authentication, "check_token", "GET /v1/whoami", b"gpt_x"),
        (authentication, "job_principal", "GET /v1/whoami", job_tokens.PREFIX.encode()),
        (authentication, "node_principal", "POST /v1/hosts/a/report", b"x"),
        (OidcVerifier, "principal", "GET /v1/whoami", b"a.b.c"),
        (CodeFlow, "address", "POST /sign-in/begin", b"x"),
        (CodeFlow, "exchange", "POST /sign-in/code", b"x"),
        (CodeFlow, "refresh", "POST /sign-in/refresh", b"x"),
        (CodeFlow, "revoke", "POST /sign-in/end", b"x"),
        (Issuer, "authorities", "GET /v1/identity/authorities", b"x"),
        (Issuer, "first", "POST /v1/identity/enroll", b"x"),
        (Issuer, "next", "POST /v1/identity/renew", b"x"),
    ],
)
async def test_whatever_a_stranger_makes_fail_is_a_4xx_counted_and_written_down(
    world: World, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, route: str, token: bytes
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LookupError("planted")

    monkeypatch.setattr(place, name, broken)
    body = json.dumps(BODIES[route]).encode() if route in BODIES else b""
    before = refused(world.store)
    status = await ask(world.url, route, [b"Authorization: Bearer " + token], body)
    assert status in (401, 422), status
    await eventually(lambda: refused(world.store) == before + 1, "a refusal in the audit log")


@pytest.mark.scale
@pytest.mark.timeout(2 * LONG_S + 600)
async def test_a_long_run_of_wrong_tokens_is_refused(world: World) -> None:
    until, first = time.monotonic() + LONG_S, random.SystemRandom().randrange(1 << 40)
    tried = await run(world, lambda: time.monotonic() < until, first)
    print(f"{tried} requests from seed {first}")
