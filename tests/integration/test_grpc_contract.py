"""Every operation, over REST and over gRPC, against two services with the same data: the answers are the same.

What needs a host that answers (commands, metrics, streams of a job that runs) is in ``test_grpc_platform.py``.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_platform.client.calls import BREAK_GLASS_HEADER, USER_HEADER
from gpu_platform.rpc.methods import AnswerKind, rpcs
from tests.integration.grpc_contract import ENDED, QUEUED, RUNNING, VIEWER, Both, Step, both
from tests.support import recipes
from tests.support.api_server import ADMIN, temporal_dev_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

CODE_HASH = hashlib.sha256(b"\x00\xffab").hexdigest()
JOB = {"name": "a", "command": ["true"], "gpus": {"gpus_per_host": 1}, "time_limit_s": None}
ARRAY = {"job": JOB, "array": {"indices": "0-3", "at_once": 2}}
SCHEDULE = {"cron": "0 3 * * *", "job": JOB, "paused": True}
WINDOW = {
    "name": "fans",
    "maintenance": True,
    "start_at": "2036-01-01T00:00:00Z",
    "duration_s": 3600,
    "repeat": "weekly",
    "hosts": ["dgx-a"],
    "stop_running": True,
}
FILE = (
    "name: p\nparameters: {n: 3}\nsteps:\n  one: {command: [echo, '${{ parameters.n }}'], gpus: {gpus_per_host: 1}}\n"
)
PIPELINE = {"file": FILE, "parameters": {"n": 4}}
KEY = {"Idempotency-Key": "k-1"}
GPU = "GPU-dgx-a-1"
WHY = {"reason": "to see"}
TOKEN = {"user": "ada", "roles": {"default": "user"}, "scopes": ["jobs:read"]}
SPAN = {"start_at": "2026-01-01T00:00:00Z", "end_at": "2026-01-01T04:00:00+01:00"}

SCENARIOS: dict[str, list[Step]] = {
    "jobs": [
        Step("POST", "/v1/jobs", JOB, 201, KEY, keep="job"),
        Step("POST", "/v1/jobs", JOB, 200, KEY),
        Step("POST", "/v1/jobs", {**JOB, "name": "b"}, 409, KEY),
        Step("POST", "/v1/jobs", {"command": ["a"], "gpus": {"hosts": 0}}, 422),
        Step("POST", "/v1/jobs", {**JOB, "gpus": {"gpus_per_host": 60}}, 422),
        Step("GET", "/v1/jobs/{job}"),
        Step("GET", f"/v1/jobs/{RUNNING}?wait_s=0.05"),
        Step("GET", f"/v1/jobs/{ENDED}"),
        Step("GET", "/v1/jobs/j-0000000000nobody", status=404),
        Step("GET", "/v1/jobs?limit=2&state=RUNNING&state=QUEUED"),
        Step("GET", "/v1/jobs?limit=0", status=422),
        Step("GET", "/v1/jobs?kind=batch&user=nobody"),
        Step("POST", f"/v1/jobs/{RUNNING}/preempt", WHY, 202),
        Step("PATCH", "/v1/jobs/{job}", {"priority": 5, "time_limit_s": None}),
        Step("PATCH", "/v1/jobs/{job}", {"priority": 5000}, 422),
        Step("PATCH", f"/v1/jobs/{ENDED}", {"priority": 5}, 409),
        Step("POST", f"/v1/jobs/{ENDED}/retry", None, 201, {"Idempotency-Key": "k-retry"}),
        Step("POST", f"/v1/jobs/{ENDED}/retry", None, 200, {"Idempotency-Key": "k-retry"}),
        Step("POST", f"/v1/jobs/{RUNNING}/retry", None, 409),
        Step("POST", "/v1/jobs/{job}/hold", WHY),
        Step("POST", "/v1/jobs/{job}/release"),
        Step("POST", f"/v1/jobs/{ENDED}/hold", WHY, 409),
        Step("POST", "/v1/jobs/{job}/cancel", WHY, 202),
        Step("POST", "/v1/jobs/{job}/kill", None, 202),
        Step("POST", f"/v1/jobs/{ENDED}/cancel", WHY, 409),
    ],
    "queue": [
        Step("GET", "/v1/queue?limit=5"),
        Step("GET", "/v1/queue?cursor=x", status=422),
        Step("GET", "/v1/quotas"),
        Step("POST", "/v1/jobs:dry-run", JOB),
        Step("POST", "/v1/jobs:dry-run", {**JOB, "gpus": {"gpus_per_host": 60}}),
        Step("GET", f"/v1/jobs/{QUEUED}/reason", status=404),
        Step("GET", f"/v1/jobs/{ENDED}/reason", status=404),
        Step("GET", "/v1/snapshot"),
        Step("POST", "/v1/snapshot:what-if", {"hosts": [{"count": 1, "machine": "dgx-1v"}]}),
        Step("POST", "/v1/snapshot:what-if", {"settings": ["order=no-such-order"]}, 422),
    ],
    "checkpoints": [
        Step("GET", f"/v1/jobs/{ENDED}/checkpoints"),
        Step("GET", f"/v1/jobs/{QUEUED}/checkpoints?verify=true"),
        Step("POST", f"/v1/jobs/{QUEUED}/checkpoints", status=409),
        Step("POST", "/v1/checkpoint-roots:check"),
    ],
    "arrays": [
        Step("POST", "/v1/arrays", ARRAY, 201, {"Idempotency-Key": "k-2"}, keep="array"),
        Step("POST", "/v1/arrays", ARRAY, 200, {"Idempotency-Key": "k-2"}),
        Step("POST", "/v1/arrays", {**ARRAY, "array": {"indices": "x"}}, 422),
        Step("GET", "/v1/arrays?limit=1"),
        Step("GET", "/v1/arrays/{array}?wait_s=0.01"),
        Step("PATCH", "/v1/arrays/{array}", {"priority": 5, "time_limit_s": None, "elements": "0-2"}),
        Step("PATCH", "/v1/arrays/{array}", {"priority": 5, "elements": "0-9"}, 422),
        Step("POST", "/v1/arrays/{array}/hold", WHY),
        Step("POST", "/v1/arrays/{array}/release"),
        Step("POST", "/v1/arrays/{array}/cancel", {"reason": "some", "elements": "1-2"}, 202),
        Step("POST", "/v1/arrays/{array}/kill", None, 202),
        Step("POST", "/v1/arrays/{array}/retry", {"elements": "1"}, 422),
        Step("GET", "/v1/arrays/a-0000000000nobody", status=404),
    ],
    "schedules": [
        Step("POST", "/v1/schedules", SCHEDULE, 201, keep="schedule"),
        Step("POST", "/v1/schedules", {"cron": "x", "job": JOB}, 422),
        Step("GET", "/v1/schedules?namespace=default"),
        Step("GET", "/v1/schedules/{schedule}"),
        Step("POST", "/v1/schedules/{schedule}/resume", WHY),
        Step("POST", "/v1/schedules/{schedule}/pause", None),
        Step("POST", "/v1/schedules/{schedule}/trigger", None, 202),
        Step("POST", "/v1/schedules/{schedule}/backfill", SPAN, 202),
        Step("DELETE", "/v1/schedules/{schedule}", status=204),
        Step("GET", "/v1/schedules/{schedule}", status=404),
    ],
    "reservations": [
        Step("POST", "/v1/reservations", WINDOW, 201),
        Step("POST", "/v1/reservations", WINDOW, 409),
        Step("POST", "/v1/reservations", {**WINDOW, "name": "other"}, 409),
        Step("POST", "/v1/reservations", {**WINDOW, "hosts": []}, 422),
        Step("GET", "/v1/reservations?limit=1"),
        Step("GET", "/v1/reservations/fans"),
        Step("PATCH", "/v1/reservations/fans", {"duration_s": 7200, "repeat": None}),
        Step("PATCH", "/v1/reservations/fans", {"namespaces": ["default"]}, 422),
        Step("GET", "/v1/hosts/dgx-a"),
        Step("DELETE", "/v1/reservations/fans", status=204),
        Step("GET", "/v1/reservations/fans", status=404),
    ],
    "pipelines": [
        Step("POST", "/v1/pipelines", {**PIPELINE, "dry_run": True}, 201),
        Step("POST", "/v1/pipelines", PIPELINE, 201, {"Idempotency-Key": "k-3"}, keep="pipeline"),
        Step("POST", "/v1/pipelines", {"file": "steps: 5"}, 422),
        Step("GET", "/v1/pipelines?limit=1"),
        Step("GET", "/v1/pipelines/{pipeline}"),
        Step("POST", "/v1/pipelines/{pipeline}/cancel", WHY, 202),
        Step("POST", "/v1/pipelines/{pipeline}/retry", {"from_step": "one"}, 409),
    ],
    "events and logs": [
        Step("GET", "/v1/events?follow=false&after=0&limit=3"),
        Step("GET", f"/v1/jobs/{ENDED}/events?after=1"),
        Step("GET", f"/v1/jobs/{ENDED}/logs?rank=0&attempt=1"),
        Step("GET", f"/v1/jobs/{ENDED}/logs?rank=7", status=422),
        Step("GET", "/v1/jobs/j-0000000000nobody/logs", status=404),
        Step("GET", f"/v1/jobs/{ENDED}/logs", status=403, token=VIEWER),
    ],
    "commands": [
        Step("POST", f"/v1/jobs/{QUEUED}/exec", {"command": ["ls"]}, 409),
        Step("POST", f"/v1/jobs/{RUNNING}/exec", {"command": ["ls"], "rank": -1}, 422),
        Step("POST", f"/v1/jobs/{RUNNING}/exec", {"port": 70_000}, 422),
        Step("GET", f"/v1/jobs/{QUEUED}/exec?rank=0"),
        Step("POST", f"/v1/jobs/{RUNNING}/exec/e-0000000000/attach?rows=2&columns=3", None, 404),
        Step("POST", f"/v1/jobs/{RUNNING}/exec/e-0000000000/connections", None, 404),
        Step("GET", f"/v1/jobs/{RUNNING}/exec/e-0000000000/output".removesuffix("/output"), status=404),
        Step("POST", f"/v1/jobs/{RUNNING}/exec/e-0000000000/input?offset=1&eof=true", b"\x00\xff", 404),
        Step("POST", f"/v1/jobs/{RUNNING}/exec/e-0000000000/size?rows=2&columns=3", None, 404),
        Step("DELETE", f"/v1/jobs/{RUNNING}/exec/e-0000000000", status=404),
    ],
    "hosts": [
        Step("GET", "/v1/cluster"),
        Step("GET", "/v1/hosts"),
        Step("GET", "/v1/hosts/dgx-a"),
        Step("GET", "/v1/hosts/nowhere", status=404),
        Step("POST", "/v1/hosts/dgx-a/drain", WHY),
        Step("POST", "/v1/hosts/dgx-a/online", None),
        Step("POST", "/v1/hosts/dgx-b/offline", WHY),
        Step("POST", "/v1/hosts/dgx-c/declare-lost?force=true", WHY),
        Step("DELETE", "/v1/hosts/dgx-c", status=204),
        Step("POST", "/v1/hosts/dgx-d/enroll", {"valid_s": 60}),
        Step("DELETE", "/v1/hosts/dgx-a/identity", status=404),
    ],
    "GPUs": [
        Step("GET", "/v1/gpus?host=dgx-a&state=AVAILABLE&limit=2"),
        Step("GET", f"/v1/gpus/{GPU}"),
        Step("GET", f"/v1/gpus/{GPU}/health", status=503),
        Step("GET", f"/v1/gpus/{GPU}/events?limit=3"),
        Step("POST", f"/v1/gpus/{GPU}/drain", WHY),
        Step("POST", f"/v1/gpus/{GPU}/online", None),
        Step("POST", f"/v1/gpus/{GPU}/offline", WHY),
        Step("GET", f"/v1/gpus/{GPU}/remediation", status=404),
        Step("POST", f"/v1/gpus/{GPU}/remediation/approve", WHY, 404),
        Step("POST", f"/v1/gpus/{GPU}/remediation/veto", None, 404),
        Step("GET", f"/v1/gpus/{GPU}/service-case"),
        Step("GET", "/v1/gpus/GPU-none", status=404),
    ],
    "usage and metrics": [
        Step("GET", f"/v1/jobs/{ENDED}/usage"),
        Step("GET", "/v1/usage?since=2026-01-01T00:00:00Z&until=2026-02-01T00:00:00Z"),
        Step("GET", "/v1/usage?user=ada"),
        Step("GET", "/v1/report?since=2026-01-01T00:00:00Z&until=2026-02-01T00:00:00Z"),
        Step("GET", f"/v1/gpus/{GPU}/metrics?window_s=60", status=503),
        Step("GET", "/v1/hosts/dgx-a/metrics?window_s=60", status=503),
        Step("GET", f"/v1/jobs/{ENDED}/metrics"),
        Step("GET", f"/v1/jobs/{ENDED}/metrics?window_s=1", status=422),
    ],
    "access": [
        Step("GET", "/v1/login", token=None),
        Step("GET", "/v1/whoami"),
        Step("GET", "/v1/whoami", token=None, status=401),
        Step("GET", "/v1/whoami", token="gpt_wrong", status=401),
        Step("GET", "/v1/whoami", headers={USER_HEADER: "ada"}),
        Step("GET", "/v1/whoami", headers={USER_HEADER: "ada"}, token=VIEWER, status=403),
        Step(
            "POST", "/v1/tokens", {"user": "ada", "roles": {"default": "user"}, "scopes": ["jobs:read"]}, 201, keep="t"
        ),
        Step("POST", "/v1/tokens", {"roles": {}}, 422),
        Step("GET", "/v1/tokens"),
        Step("DELETE", "/v1/tokens/{t}"),
        Step("DELETE", "/v1/tokens/t-nobody", status=404),
        Step("GET", "/v1/audit?limit=2"),
        Step("GET", "/v1/audit", token=VIEWER, status=403),
        Step("GET", "/readyz"),
        Step("GET", "/readyz", token=None),
        Step("GET", "/v1/clocks", token=VIEWER, status=403),
        Step("POST", "/v1/alerts:test", token=VIEWER, status=403),
        Step("GET", "/v1/notifications"),
        Step("GET", "/v1/notifications", token=VIEWER),
        Step("POST", "/v1/notifications:test?target=none", status=422),
        Step("POST", "/v1/notifications:test?target=none", token=VIEWER, status=403),
    ],
    "uploads": [
        Step("GET", f"/v1/uploads/default/{CODE_HASH}"),
        Step("PUT", f"/v1/uploads/default/{CODE_HASH}?size_bytes=4&offset=0", b"\x00\xff"),
        Step("PUT", f"/v1/uploads/default/{CODE_HASH}?size_bytes=4&offset=2", b"ab"),
        Step("PUT", f"/v1/uploads/default/{CODE_HASH}?size_bytes=4&offset=0", b"\x00\xff"),
        Step("PUT", f"/v1/uploads/default/{CODE_HASH.upper()}?size_bytes=4", b"x", 422),
        Step("PUT", f"/v1/uploads/default/{'0' * 64}?size_bytes={1 << 30}", b"x", 422),
    ],
    "secrets": [
        Step("PUT", "/v1/secrets/default/key", {"value": "s3cret"}),
        Step("PUT", "/v1/secrets/default/key", {"value": "AP8=", "encoding": "base64"}),
        Step("PUT", "/v1/secrets/default/-bad-", {"value": "x"}, 422),
        Step("GET", "/v1/secrets?namespace=default"),
        Step("DELETE", "/v1/secrets/default/key", status=204),
        Step("DELETE", "/v1/secrets/default/key", status=404),
    ],
    "in somebody's name": [
        Step("GET", f"/v1/jobs/{ENDED}/logs?attempt=1", headers={BREAK_GLASS_HEADER: "an incident"}),
        Step("POST", "/v1/jobs", JOB, 201, {USER_HEADER: "ada"}),
    ],
}
STREAMS = {rpc.path for rpc in rpcs().values() if rpc.answer is AnswerKind.EVENTS}
"""They are followed in ``test_grpc_platform.py``, and one here is asked for a session that is not there."""


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:  # where a schedule can be made at once
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory, temporal: str
) -> AsyncIterator[Both]:
    async with both(sqlite_template, tmp_path_factory.mktemp("contract"), temporal) as found:
        yield found


async def test_no_operation_is_left_out() -> None:
    asked = {step.rpc.path for steps in SCENARIOS.values() for step in steps}
    assert set(rpcs()) - asked <= STREAMS


@pytest.mark.some(5)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_an_operation_answers_the_same_over_both(services: Both, scenario: str) -> None:
    found = [one for step in SCENARIOS[scenario] for one in await services.differences(step)]
    assert not found, "\n".join(found)


SHOWN = {
    ("sh", 0): ('"name": "dgx-a"', '"accepted": true', '"seq": "1"'),
    ("python", 0): ("['dgx-a', ", "1 host.registered"),
    ("python", 1): ("JOB_STATE_", "job.submitted", "DEADLINE_EXCEEDED"),
}


@pytest.mark.parametrize(("language", "number"), SHOWN)
async def test_the_examples_of_the_page_work(services: Both, language: str, number: int, tmp_path: Path) -> None:
    page = (recipes.ROOT / "docs/how-to/grpc.md").read_text()
    code = recipes.blocks(page, language)[number].replace("127.0.0.1:8701", services.address)
    code = code.replace("$(cat .gpu-platform/token)", ADMIN)
    command = ["bash", "-euc", code] if language == "sh" else [sys.executable, "-c", code]
    done = await asyncio.to_thread(
        subprocess.run,
        command,
        cwd=tmp_path,
        env={
            **os.environ,
            "GPU_PLATFORM_TOKEN": ADMIN,
            "GPU_PLATFORM_GRPC_PORT": services.address.rpartition(":")[2],
            "HOME": str(tmp_path),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(recipes.ROOT),
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for text in SHOWN[language, number]:
        assert text in done.stdout
