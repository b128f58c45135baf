"""The request of Alertmanager's API that Prometheus sends: what is refused, and what an alert becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from gpu_platform.domain.access.roles import CLUSTER, Permission, Role
from gpu_platform.store import Store
from service.http.body_limit import MAX_BODY_BYTES
from service.routers.alerts import PROMETHEUS
from tests.support.api_server import application, bearer, in_process, sign_in

NO_TEMPORAL = "127.0.0.1:1"
ALERT = {"labels": {"alertname": "HostLost"}, "startsAt": "2026-11-26T08:00:00Z", "endsAt": "2026-11-26T08:04:00Z"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "valid list"),
        ([{}], "[0].labels"),
        ([{**ALERT, "labels": {"alertname": 7}}], "[0].labels.alertname"),
        ([{**ALERT, "labels": {"a": "x" * 5000}}], "[0].labels.a"),
        ([{**ALERT, "labels": {f"l{number}": "" for number in range(65)}}], "[0].labels"),
        ([{**ALERT, "endsAt": 1795680000}], "[0].endsAt"),
        ([{**ALERT, "endsAt": "2026-11-26T08:04:00"}], "[0].endsAt"),
        ([ALERT] * 2001, "at most 2000"),
    ],
)
async def test_what_is_no_alert_is_refused(sqlite_store: Store, tmp_path: Path, body: Any, field: str) -> None:
    async with in_process(application(sqlite_store, NO_TEMPORAL, state_dir=tmp_path)) as http:
        answer = await http.post(PROMETHEUS, json=body)
        assert answer.status_code == 422, answer.text
        assert field in answer.text


async def test_a_body_that_is_too_large_is_refused(sqlite_store: Store, tmp_path: Path) -> None:
    async with in_process(application(sqlite_store, NO_TEMPORAL, state_dir=tmp_path)) as http:
        answer = await http.post(PROMETHEUS, content=b"[" + b" " * MAX_BODY_BYTES + b"]")
        assert answer.status_code == 413


async def test_while_temporal_is_away_prometheus_hears_so_and_the_alert_stays_new(
    sqlite_store: Store, tmp_path: Path
) -> None:
    app = application(sqlite_store, NO_TEMPORAL, state_dir=tmp_path)
    async with in_process(app) as http:
        answer = await http.post(PROMETHEUS, json=[ALERT])
        assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
        assert not app.state.context.alerts._passed
        assert (await http.post(PROMETHEUS, json=[])).status_code == 200


async def test_the_token_of_prometheus_needs_its_own_scope(sqlite_store: Store, tmp_path: Path) -> None:
    app = application(sqlite_store, NO_TEMPORAL, state_dir=tmp_path)
    for token, scope in (("gpt_one", Permission.METRICS_READ), ("gpt_two", Permission.ALERTS_SEND)):
        sign_in(sqlite_store, token, "prometheus", {CLUSTER: Role.OPERATOR}, scopes=[scope])

    async def status(http: httpx.AsyncClient, token: str, method: str, path: str) -> int:
        return (await http.request(method, path, json=[], headers=bearer(token))).status_code

    async with in_process(app) as http:
        assert await status(http, "gpt_one", "POST", PROMETHEUS) == 403
        assert await status(http, "gpt_two", "POST", PROMETHEUS) == 200
        assert await status(http, "gpt_two", "POST", "/v1/hosts/a/drain") == 403
