"""Whatever one user sends, the service keeps its memory, answers /healthz and serves the others.

Each row of ``docs/explanation/bounds.md`` that names the service is here with the largest input that is allowed and the
next larger one, which is refused. The service is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from gpu_platform.client.wire import MAX_REASON, ReasonBody
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.jobs.array import (
    MAX_ELEMENTS,
    MAX_PARAMETER_BYTES,
    MAX_PARAMETER_NAMES,
    MAX_PARAMETERS,
)
from gpu_platform.domain.jobs.dependency import MAX_DEPENDENCIES
from gpu_platform.domain.jobs.notify import MAX_RULES
from gpu_platform.domain.jobs.schedule import MAX_BACKFILL, ScheduleRequest
from gpu_platform.domain.jobs.secret_uses import MAX_SECRETS
from gpu_platform.domain.jobs.upload_limits import CHUNK_BYTES
from gpu_platform.domain.pipelines.expressions import MAX_FILLED_BYTES
from gpu_platform.domain.pipelines.pipeline import MAX_FILE_BYTES, MAX_JOBS_OF_STEP, MAX_STEPS
from gpu_platform.domain.pipelines.yaml_lines import MAX_VALUES as MAX_YAML_VALUES
from gpu_platform.domain.texts import MAX_COMMAND_BYTES, MAX_ENV_BYTES
from gpu_platform.store import Store
from gpu_platform.store.jobs.paging import MAX_PAGE
from service.http.body_limit import LARGER, MAX_BODY_BYTES, MAX_VALUES
from tests.support.api_server import bearer, sign_in
from tests.support.service_process import ServiceProcess, all_of, noticed, service_process, slowness

MALLORY, ALICE = f"gpt_{'mallory1' * 5}", f"gpt_{'alice123' * 5}"
MOST_GROWN_MIB = 200
HEALTHZ_S = 1.0
JSON = {"Content-Type": "application/json"}
ARRAYS = LARGER["POST", "/v1/arrays"]


@contextmanager
def serving(store: Store, directory: Path) -> Iterator[ServiceProcess]:
    """The service with two users, whose requests are not limited. Closes the store."""
    sign_in(store, MALLORY, "mallory", {"evil": Role.USER})
    sign_in(store, ALICE, "alice", {"good": Role.USER, CLUSTER: Role.VIEWER})
    store.close()
    with service_process(
        str(store.url),
        directory,
        GPU_PLATFORM_ACCESS__NAMESPACES='["evil", "good"]',
        GPU_PLATFORM_SERVICE__RATE_LIMITS__REQUESTS="null",
    ) as running:
        yield running


@pytest.fixture(scope="module")
def service(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One for all rows: what one leaves behind is memory that the next one finds."""
    directory = tmp_path_factory.mktemp("bounds")
    database = directory / "platform.db"
    database.write_bytes(sqlite_template.read_bytes())
    with serving(Store(f"sqlite:///{database}"), directory) as running:
        yield running


@dataclass(frozen=True)
class Row:
    """The largest request of one kind, and the next larger one. Both are made when they are needed: they are large."""

    name: str
    path: str
    largest: Callable[[], Any]
    larger: Callable[[], Any]
    code: str
    """Of the refusal."""
    says: str
    """What is in its text: what is allowed."""
    method: str = "POST"
    refused_anyway: str = ""
    """The code with which the largest one is refused, for another reason: there is no Temporal, and no host."""
    long: bool = False


def dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def job(**fields: Any) -> dict[str, Any]:
    return {"namespace": "evil", "command": ["true"], **fields}


def array(**fields: Any) -> bytes:
    return dumped({"job": job(), "array": {"indices": "0", **fields}})


def table(rows: int, names: int, text: str = "x") -> dict[str, Any]:
    return {"names": [f"p{number}" for number in range(names)], "rows": [[text] * names] * rows}


def pipeline(file: str, **parameters: Any) -> bytes:
    return dumped({"file": file, "parameters": parameters, "dry_run": True})


def steps(count: int) -> bytes:
    return pipeline("namespace: evil\nsteps:\n" + "".join(f" s{one}: {{command: ['true']}}\n" for one in range(count)))


def filled(size: int) -> bytes:
    file = "namespace: evil\nparameters: {big: }\nsteps:\n"
    file += "".join(f' s{one}: {{command: [echo, "${{{{ parameters.big }}}}"]}}\n' for one in range(64))
    return pipeline(file, big="x" * (size // 64))


def values(count: int) -> bytes:
    return b'{"command":[' + b"[]," * (count // 2 - 4) + b'"x"]}'


def command(size: int) -> bytes:
    return dumped(job(command=["x" * (size - 1)]))


def env(size: int) -> bytes:
    return dumped(job(env={"A": "x" * (size - 3)}))


def yaml_values(count: int) -> bytes:
    return pipeline("namespace: evil\nsteps: {a: {command: [" + "x," * (count - 12) + "x]}}")


RULE = {"events": ["end"], "target": "nobody"}

ROWS = (
    Row(
        "body", "/v1/jobs:dry-run",
        lambda: b" " * (MAX_BODY_BYTES - 60) + dumped(job())[:60], lambda: b" " * (MAX_BODY_BYTES + 1),
        "body_too_large", f"at most {MAX_BODY_BYTES} bytes",
    ),
    Row(
        "values of a body", "/v1/jobs:dry-run",
        lambda: values(MAX_VALUES), lambda: b'{"command":[' + b"[]," * (MAX_VALUES + 1) + b'"x"]}',
        "body_too_large", f"more than {MAX_VALUES} values", refused_anyway="invalid_request",
    ),
    Row(
        "body of an array", "/v1/arrays",
        lambda: array(indices="0")[:-1] + b" " * (ARRAYS.most_bytes - 200) + b"}",
        lambda: array()[:-1] + b" " * ARRAYS.most_bytes + b"}",
        "body_too_large", f"at most {ARRAYS.most_bytes} bytes", refused_anyway="unavailable", long=True,
    ),
    Row(
        "values of an array's body", "/v1/arrays",
        lambda: array(parameters=table(MAX_PARAMETERS // 10, 10)),
        lambda: b"[" + b"[]," * 2_700_000 + b"[]]",
        "body_too_large", f"more than {ARRAYS.values} values", refused_anyway="unavailable", long=True,
    ),
    Row(
        "parameters of an array", "/v1/arrays",
        lambda: array(parameters=table(MAX_PARAMETERS // 16, 16)),
        lambda: array(parameters=table(MAX_PARAMETERS // 16 + 1, 16)),
        "invalid_request", f"at most {MAX_PARAMETERS} values", refused_anyway="unavailable", long=True,
    ),
    Row(
        "bytes of an array's parameters", "/v1/arrays",
        lambda: array(parameters=table(MAX_PARAMETER_BYTES >> 14, 16, "x" * 1023)),
        lambda: array(parameters=table((MAX_PARAMETER_BYTES >> 14) + 1, 16, "x" * 1023)),
        "invalid_request", f"at most {MAX_PARAMETER_BYTES} are allowed", refused_anyway="unavailable", long=True,
    ),
    Row(
        "parameters' names", "/v1/arrays",
        lambda: array(parameters=table(1, MAX_PARAMETER_NAMES)),
        lambda: array(parameters=table(1, MAX_PARAMETER_NAMES + 1)),
        "invalid_request", f"at most {MAX_PARAMETER_NAMES} items", refused_anyway="unavailable",
    ),
    Row(
        "elements of an array", "/v1/arrays",
        lambda: array(indices=f"0-{MAX_ELEMENTS - 1}"), lambda: array(indices=f"0-{MAX_ELEMENTS}"),
        "invalid_request", f"at most {MAX_ELEMENTS} are allowed", refused_anyway="unavailable",
    ),
    Row(
        "matrix", "/v1/arrays",
        lambda: array(indices="0-99999", matrix={f"p{one}": ["0", "1"] for one in range(64)}),
        lambda: array(indices="0-99999", matrix={f"p{one}": ["0", "1"] for one in range(65)}),
        "invalid_request", "at most 64 items", refused_anyway="unavailable",
    ),
    Row(
        "command", "/v1/jobs:dry-run",
        lambda: command(MAX_COMMAND_BYTES), lambda: command(MAX_COMMAND_BYTES + 1),
        "invalid_request", f"at most {MAX_COMMAND_BYTES} are allowed",
    ),
    Row(
        "environment", "/v1/jobs:dry-run",
        lambda: env(MAX_ENV_BYTES), lambda: env(MAX_ENV_BYTES + 1),
        "invalid_request", f"at most {MAX_ENV_BYTES} are allowed",
    ),
    Row(
        "dependencies", "/v1/jobs:dry-run",
        lambda: dumped(job(after=[{"job_id": f"j-{one:016}"} for one in range(MAX_DEPENDENCIES)])),
        lambda: dumped(job(after=[{"job_id": f"j-{one:016}"} for one in range(MAX_DEPENDENCIES + 1)])),
        "invalid_request", f"at most {MAX_DEPENDENCIES} items", refused_anyway="not_found",
    ),
    Row(
        "secrets of a job", "/v1/jobs:dry-run",
        lambda: dumped(job(secrets=[{"name": f"s{one}", "env": f"S{one}"} for one in range(MAX_SECRETS)])),
        lambda: dumped(job(secrets=[{"name": f"s{one}", "env": f"S{one}"} for one in range(MAX_SECRETS + 1)])),
        "invalid_request", f"at most {MAX_SECRETS} items",
    ),
    Row(
        "who is told", "/v1/jobs:dry-run",
        lambda: dumped(job(notify=[RULE] * MAX_RULES)),
        lambda: dumped(job(notify=[RULE] * (MAX_RULES + 1))),
        "invalid_request", f"at most {MAX_RULES} items", refused_anyway="invalid_request",
    ),
    Row(
        "file of a pipeline", "/v1/pipelines",
        lambda: pipeline("#" * (MAX_FILE_BYTES - 60) + "\nnamespace: evil\nsteps: {a: {command: [x]}}"),
        lambda: pipeline("#" * (MAX_FILE_BYTES + 1)),
        "invalid_request", f"at most {MAX_FILE_BYTES} characters",
    ),
    Row(
        "names and values of a pipeline's file", "/v1/pipelines",
        lambda: yaml_values(MAX_YAML_VALUES), lambda: yaml_values(MAX_YAML_VALUES + 10),
        "invalid_request", f"more than {MAX_YAML_VALUES} names and values", refused_anyway="invalid_request",
    ),
    Row(
        "steps of a pipeline", "/v1/pipelines",
        lambda: steps(MAX_STEPS), lambda: steps(MAX_STEPS + 1),
        "invalid_request", f"at most {MAX_STEPS} are allowed", long=True,
    ),
    Row(
        "what a pipeline's parameters become", "/v1/pipelines",
        lambda: filled(MAX_FILLED_BYTES), lambda: filled(MAX_FILLED_BYTES + 64),
        "invalid_request", f"more than {MAX_FILLED_BYTES} bytes",
    ),
    Row(
        "jobs of a step", "/v1/pipelines",
        lambda: pipeline("namespace: evil\nsteps: {a: {command: [x, '${{ item }}'], for_each: ["
                         + "1," * MAX_JOBS_OF_STEP + "]}}"),
        lambda: pipeline("namespace: evil\nsteps: {a: {command: [x, '${{ item }}'], for_each: ["
                         + "1," * (MAX_JOBS_OF_STEP + 1) + "]}}"),
        "invalid_request", f"at most {MAX_JOBS_OF_STEP} are allowed",
    ),
    Row(
        "part of an upload", f"/v1/uploads/evil/{'a' * 64}?size_bytes={2 * CHUNK_BYTES}",
        lambda: b"x" * CHUNK_BYTES, lambda: b"x" * (CHUNK_BYTES + 1),
        "body_too_large", f"at most {CHUNK_BYTES} bytes", method="PUT",
    ),
    Row(
        "page", f"/v1/jobs?limit={MAX_PAGE}", lambda: b"", lambda: b"", "", "", method="GET",
    ),
)  # fmt: skip


async def send(http: httpx.AsyncClient, row: Row, content: bytes) -> httpx.Response:
    kind = "application/octet-stream" if row.method == "PUT" else "application/json"
    while True:
        answer = await http.request(row.method, row.path, content=content, headers={"Content-Type": kind})
        if answer.status_code != 429:
            return answer
        await asyncio.sleep(min(10.0, float(answer.headers["retry-after"])))


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.name, marks=[pytest.mark.long] if row.long else []) for row in ROWS]
)
async def test_the_largest_costs_little_and_the_next_larger_one_is_refused(service: ServiceProcess, row: Row) -> None:
    largest, larger, slow = row.largest(), row.larger(), slowness()
    async with httpx.AsyncClient(base_url=service.url, timeout=60, headers=bearer(MALLORY)) as http:
        with noticed(service, bearer(ALICE)) as others:
            answer = await send(http, row, largest)
            code = answer.json().get("code", "")
            assert code == row.refused_anyway, answer.text[:500]
            assert row.says == "" or row.says not in answer.text
            if row.code:
                refused = await send(http, row, larger)
                problem = refused.json()
                assert (problem["code"], 400 <= refused.status_code < 500) == (row.code, True), refused.text[:500]
                assert row.says in problem["detail"]
    assert others.grown_mib < MOST_GROWN_MIB
    assert others.slowest_healthz_s < HEALTHZ_S * slow
    assert others.p99_s < HEALTHZ_S * slow


@pytest.mark.long
async def test_six_clients_of_one_user_that_send_the_worst_bodies_again_and_again(service: ServiceProcess) -> None:
    """As one: what waits has not been read. The others' slowest answers are those of a service with one core less."""
    worst, slow = b"[" + b"[]," * 2_700_000 + b"[]]", slowness()

    async def once(http: httpx.AsyncClient) -> int:
        try:
            return (await http.post("/v1/arrays", content=worst, headers=JSON)).status_code
        except httpx.TransportError:  # it is refused before it is sent
            return 413

    async with httpx.AsyncClient(base_url=service.url, timeout=120, headers=bearer(MALLORY)) as http:
        with noticed(service, bearer(ALICE)) as others:
            answers = Counter(await all_of(*[once(http) for _ in range(6)]))
    assert set(answers) <= {413, 429, 408}
    assert others.grown_mib < MOST_GROWN_MIB, "it was 2.8 GB"
    assert others.slowest_healthz_s < HEALTHZ_S * slow, "it was 36 s"


def test_a_backfill_is_counted_before_it_begins() -> None:
    every = {"job": {"command": ["true"]}}
    hour = ScheduleRequest.model_validate({"every_s": 3, **every}).most_firings(3600)
    assert hour > MAX_BACKFILL
    for cron, of_a_day in (("* * * * *", 1440), ("0 2 * * *", 1), ("*/5 8-17 * * 1-5", 120), ("@hourly", 24)):
        firings = ScheduleRequest.model_validate({"cron": cron, **every}).most_firings(86400 * 30)
        assert of_a_day * 30 <= firings <= of_a_day * 32 + 1


def test_a_reason_is_short() -> None:
    assert ReasonBody(reason="x" * MAX_REASON)
    with pytest.raises(ValidationError, match=f"at most {MAX_REASON} characters"):
        ReasonBody(reason="x" * (MAX_REASON + 1))
