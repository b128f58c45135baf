"""Payloads in Temporal are shown to operators of the cluster only, and to no page but the Temporal UI."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import WorkflowSerializationContext

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.jobs.job import JobInput
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.identity import key_ring
from gpu_platform.identity.key_ring import KeyRing
from gpu_platform.store import Store, audit
from gpu_platform.temporal.payloads.codec import ENCODING, SealedPayloads
from tests.support.api_server import application, bearer, in_process, sign_in

DECODE = "/v1/temporal/decode"
UI = "http://ui"
OPERATOR, ADMIN_OF_A_TEAM = "gpt_operator".ljust(47, "0"), "gpt_teamadmin".ljust(47, "0")
ASKS = {"Origin": UI, "Access-Control-Request-Method": "POST", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}
FROM_UI = {"Origin": UI, "Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Content-Type": "application/json"}
SPEC = JobSpec(command=["python", "train.py"], env={"WANDB_API_KEY": "s3cret-of-the-user"}, user="alice")


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    key_ring.create(tmp_path / "keys" / "ring.json")
    return tmp_path / "keys" / "ring.json"


@pytest.fixture
async def http(sqlite_store: Store, ring: Path) -> AsyncIterator[httpx.AsyncClient]:
    sign_in(sqlite_store, OPERATOR, "olga", {CLUSTER: Role.OPERATOR})
    sign_in(sqlite_store, ADMIN_OF_A_TEAM, "tina", {"team-a": Role.ADMIN})
    app = application(sqlite_store, "127.0.0.1:1", key_ring=ring)
    async with in_process(app, OPERATOR) as http:
        http.headers.pop("X-Requested-With")
        yield http


async def sealed(ring: Path, message: Any, workflow_id: str = "j-1") -> Payload:
    codec = SealedPayloads(KeyRing.load(ring)).with_context(WorkflowSerializationContext("default", workflow_id))
    text = message if isinstance(message, bytes) else message.model_dump_json().encode()
    [payload] = await codec.encode([Payload(metadata={"encoding": b"json/plain", "order-signature": b"x"}, data=text)])
    return payload


def as_json(*payloads: Payload) -> dict[str, Any]:
    def text(value: bytes) -> str:
        return base64.b64encode(value).decode()

    made = [{"metadata": {k: text(v) for k, v in one.metadata.items()}, "data": text(one.data)} for one in payloads]
    return {"payloads": made}


def opened(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    [payload] = answer.json()["payloads"]
    assert payload["metadata"] == {"encoding": base64.b64encode(b"json/plain").decode()}, "no signature goes out"
    return json.loads(base64.b64decode(payload["data"]))


async def test_an_operator_reads_a_jobs_input_without_its_environment(
    http: httpx.AsyncClient, sqlite_store: Store, ring: Path
) -> None:
    payload = await sealed(ring, JobInput(job_id="j-1", spec=SPEC))
    assert b"train.py" not in payload.data
    shown = opened(await http.post(DECODE, json=as_json(payload), headers={"X-Namespace": "default"}))
    assert shown["spec"]["command"] == ["python", "train.py"]
    assert shown["spec"]["env"] == {"WANDB_API_KEY": "***"}
    entries = [record.decoded() for record in audit.read_records(sqlite_store, 0, 100)]
    assert ("olga", "workflow j-1") in {(entry.actor, entry.target) for entry in entries}
    assert (await http.post(DECODE, json=as_json(payload), headers={"X-Namespace": "other"})).status_code == 422


async def test_a_step_on_a_host_is_shown_too(http: httpx.AsyncClient, ring: Path) -> None:
    node = SealedPayloads(KeyRing.load(ring), home="node-dgx-a")
    [payload] = await node.encode(
        [Payload(metadata={"encoding": b"json/plain"}, data=b'[{"groups":{"g":{"env":{"A":"b"}}}}]')]
    )
    assert opened(await http.post(DECODE, json=as_json(payload))) == [{"groups": {"g": {"env": {"A": "***"}}}}]


async def test_who_may_not_gets_nothing(http: httpx.AsyncClient, ring: Path) -> None:
    body = as_json(await sealed(ring, JobInput(job_id="j-1", spec=SPEC)))
    http.headers.pop("Authorization")
    for headers, status in ({}, 401), (bearer(ADMIN_OF_A_TEAM), 403), (bearer("gpt_" + "0" * 43), 401):
        answer = await http.post(DECODE, json=body, headers=headers | FROM_UI)
        assert answer.status_code == status
        assert "train.py" not in answer.text
    assert (await http.post("/v1/temporal/encode", json=body, headers=bearer(OPERATOR))).status_code == 404


async def test_what_cannot_be_opened_comes_back_as_it_was(http: httpx.AsyncClient, ring: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "ring.json"
    key_ring.create(other)
    foreign = await sealed(other, b"{}")
    moved = await sealed(ring, b"{}")
    moved.metadata["workflow"] = b"j-2"
    plain = Payload(metadata={"encoding": b"json/plain"}, data=b'{"env": 1}')
    for payload in (foreign, moved, plain):
        answer = await http.post(DECODE, json=as_json(payload))
        assert answer.json() == as_json(payload)
    assert (await http.post(DECODE, json={"payloads": [{"data": "%%%"}]})).status_code == 422
    newer = {"payloads": [{"metadata": {"encoding": "AAAA"}, "data": "", "externalPayloads": [{"size": "7"}]}]}
    assert (await http.post(DECODE, json=newer)).json() == newer
    assert ENCODING.decode() not in json.dumps(newer)


async def test_only_the_temporal_ui_may_ask_from_a_browser(http: httpx.AsyncClient, ring: Path) -> None:
    body = as_json(await sealed(ring, JobInput(job_id="j-1", spec=SPEC)))
    consent = await http.options(DECODE, headers=ASKS | {"Access-Control-Request-Headers": "content-type,x-namespace"})
    assert consent.status_code == 204
    assert consent.headers["access-control-allow-origin"] == UI
    assert consent.headers["access-control-allow-credentials"] == "true"
    assert "authorization" in consent.headers["access-control-allow-headers"]
    answer = await http.post(DECODE, json=body, headers=FROM_UI)
    assert opened(answer)["job_id"] == "j-1"
    assert (answer.headers["access-control-allow-origin"], answer.headers["vary"]) == (UI, "Origin")
    for origin in ("http://evil.example", "http://ui.evil.example", "https://ui", "http://ui:8080", "null"):
        refused = await http.post(DECODE, json=body, headers=FROM_UI | {"Origin": origin})
        assert refused.status_code == 403, origin
        asked = await http.options(DECODE, headers=ASKS | {"Origin": origin})
        for one in (refused, asked):
            assert not [name for name in one.headers if name.startswith("access-control-")], origin


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/temporal/decode/", "/v1/temporal/encode", "/v1/hosts/a/drain"])
async def test_the_temporal_ui_may_ask_nothing_else(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.post(path, json={}, headers=FROM_UI)).status_code == 403
    asked = await http.options(path, headers=ASKS)
    assert asked.status_code in (403, 404, 405)
    assert not [name for name in asked.headers if name.startswith("access-control-")]


async def test_the_password_of_the_browser_counts_for_the_temporal_ui(http: httpx.AsyncClient, ring: Path) -> None:
    """Its user signed in at /docs, and the UI includes what the browser knows ("include cross-origin credentials")."""
    body = as_json(await sealed(ring, JobInput(job_id="j-1", spec=SPEC)))
    http.headers.pop("Authorization")
    http.auth = ("", OPERATOR)
    assert opened(await http.post(DECODE, json=body, headers=FROM_UI))["job_id"] == "j-1"
    assert (await http.post(DECODE, json=body, headers=FROM_UI | {"Origin": "http://evil.example"})).status_code == 403
    as_form = FROM_UI | {"Content-Type": "text/plain"}
    assert (await http.post(DECODE, content=json.dumps(body), headers=as_form)).status_code == 403
    assert (await http.get("/v1/jobs")).status_code == 401, "no other route takes a password"
