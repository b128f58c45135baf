"""Tokens that are not valid: whoever sends many is told to wait, and takes nothing from those whose tokens are."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.client.wire import Problem
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.settings import ServiceSettings, Settings
from gpu_platform.settings.service import RateLimit, RateLimitSettings
from gpu_platform.store import Store, audit
from gpu_platform.store.access import tokens
from service.app import create_app
from service.http.networks import network_of
from tests.support.api_server import ADMIN, bearer, node_headers, served, sign_in

FEW = RateLimit(per_s=0.5, burst=5)


@asynccontextmanager
async def service(store: Store, limit: RateLimit | None = FEW, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    section = ServiceSettings(rate_limits=RateLimitSettings(bad_tokens=limit), **settings.pop("service", {}))
    sign_in(store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
    async with (
        served(create_app(Settings(service=section, **settings), store)) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as http,
    ):
        yield http


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the database was asked about a token."""
    counted: Counter[str] = Counter()

    def counting(name: str) -> Any:
        really = getattr(tokens, name)

        def call(*given: Any) -> Any:
            counted[name] += 1
            return really(*given)

        return call

    for name in ("find_token", "valid_hashes"):
        monkeypatch.setattr(tokens, name, counting(name))
    return counted


def guess() -> dict[str, str]:
    return bearer(f"gpt_{os.urandom(24).hex()}")


async def test_many_bad_tokens_are_told_to_wait_and_cost_nothing(sqlite_store: Store, looks: Counter[str]) -> None:
    async with service(sqlite_store) as http:
        began = time.monotonic()
        answers = [await http.get("/v1/jobs", headers=guess()) for _ in range(60)]
        took_s = time.monotonic() - began
        codes = [answer.status_code for answer in answers]
        most = FEW.burst + 1 + FEW.per_s * took_s
        assert codes[:5] == [401] * 5
        assert set(codes) == {401, 429}
        assert codes.count(401) <= most
        while answers[-1].status_code != 429:  # on a slow machine there may be a token for the next
            answers.append(await http.get("/v1/jobs", headers=guess()))
        problem = Problem.model_validate_json(answers[-1].content)
        assert (problem.code, problem.retryable) == ("too_many_requests", True)
        assert "without a valid token from 127.0.0.1" in problem.detail
        assert 1 <= int(answers[-1].headers["retry-after"]) <= 2
        assert looks["find_token"] <= most + 2
        assert looks["valid_hashes"] <= 3 + took_s, "at most once a second"
        # Nobody else at this address is held up, also with a token that was made just now.
        assert (await http.get("/v1/jobs", headers=bearer())).status_code == 200
        without = [(await http.get("/v1/jobs")).status_code for _ in range(10)]
        assert 429 in without, "no token is as good as a bad one"
        assert (await http.get("/healthz")).status_code == 200
        sign_in(sqlite_store, "gpt_" + "new" * 14, "nina", {"team-a": Role.USER})
        await asyncio.sleep(1.05)  # the list of valid tokens is a second old at most
        assert (await http.get("/v1/jobs", headers=bearer("gpt_" + "new" * 14))).status_code == 200
    found = [record.decoded() for record in audit.read_records(sqlite_store, 0, 500)]
    entries = [one for one in found if one.verdict == "not_signed_in"]
    assert len(entries) <= most + 12, "the log does not grow with every guess"
    assert any("too many requests without a valid token" in (one.reason or "") for one in entries)


async def test_the_same_bad_token_is_looked_up_once(sqlite_store: Store, looks: Counter[str]) -> None:
    async with service(sqlite_store, limit=None) as http:
        one = guess()
        for _ in range(20):
            answer = await http.get("/v1/jobs", headers=one)
            assert (answer.status_code, "not known here" in answer.json()["detail"]) == (401, True)
        assert looks["find_token"] <= 2
        info = tokens.find_token(sqlite_store, ADMIN)
        assert info is not None
        assert (await http.get("/v1/jobs", headers=bearer())).status_code == 200
        tokens.revoke_token(sqlite_store, info.id, actor="root", now=datetime.now(UTC))
        assert (await http.get("/v1/jobs", headers=bearer())).status_code == 401, "a good token is looked up each time"


async def test_a_flood_of_bad_tokens_delays_no_report(sqlite_store: Store, tmp_path: Path, looks: Counter[str]) -> None:
    """Twenty connections send bad tokens without a pause, and a host reports meanwhile."""
    report = {"name": "a", "session": "s", "address": "127.0.0.1", "url": "http://service:x@127.0.0.1:1"}
    report |= {"inventory": {"machine": "m", "gpus": []}}  # type: ignore[dict-item]
    async with service(sqlite_store, limit=RateLimit(per_s=5.0, burst=10), state_dir=tmp_path) as http:
        over = asyncio.Event()
        codes: Counter[int] = Counter()

        async def flood() -> None:
            while not over.is_set():
                codes[(await http.get("/v1/jobs", headers=guess())).status_code] += 1

        floods = [asyncio.create_task(flood()) for _ in range(20)]
        slowest = 0.0
        until = time.monotonic() + 2.0
        number = 0
        while time.monotonic() < until or codes[429] <= codes[401]:  # a slow machine takes longer for a flood
            number += 1
            began = time.monotonic()
            answer = await http.post(
                "/v1/hosts/a/report", json=report | {"seq": number}, headers=node_headers("a", tmp_path)
            )
            assert answer.status_code in (200, 422), answer.text
            slowest = max(slowest, time.monotonic() - began)
            await asyncio.sleep(0.05)
        over.set()
        await asyncio.gather(*floods)
    assert set(codes) == {401, 429}
    # When one more is allowed, up to 20 that come at once are looked up before one of them has taken it.
    assert looks["find_token"] <= 3 * codes[401] + 20
    assert slowest < Settings().lease_ttl_s / 2, f"a report took {slowest:.1f} s"


@pytest.mark.parametrize(
    ("trusted", "limited"), [([], True), (["127.0.0.1"], False), (["10.0.0.0/8"], True)], ids=["none", "ours", "others"]
)
async def test_nobody_gets_a_bucket_by_claiming_another_address(
    sqlite_store: Store, trusted: list[str], limited: bool
) -> None:
    """Only proxies of the settings say where a request comes from."""
    async with service(sqlite_store, service={"trusted_proxies": trusted}) as http:
        codes: Counter[int] = Counter()
        for number in range(20):
            claimed = {"X-Forwarded-For": f"192.0.2.{number}", **guess()}
            codes[(await http.get("/v1/jobs", headers=claimed)).status_code] += 1
    assert (codes[429] > 10) == limited
    peers = {record.decoded().peer for record in audit.read_records(sqlite_store, 0, 100)}
    assert (peers == {"127.0.0.1"}) == limited


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8::1", "2001:db8::ffff:2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("fe80::1%eth0", "fe80::2%eth0", True),
    ],
)
def test_what_one_machine_can_have_is_one_address(one: str, other: str, same: bool) -> None:
    assert (network_of(one) == network_of(other)) == same
