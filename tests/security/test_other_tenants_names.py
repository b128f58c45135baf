"""Nothing of another tenant's job is in any byte of any answer: every route and every stream, with a canary in the job.

The canary stands in every text that a user chooses: name, user, namespace, command, environment, directory, reasons.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta

import httpx
import pytest
from fastapi import FastAPI
from fastapi.sse import KEEPALIVE_COMMENT

from gpu_platform.domain.access.roles import Role
from gpu_platform.domain.hosts.share import ShareGrant, ShareMode
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.job import Failure, FailureKind
from gpu_platform.domain.jobs.placement import BlockingJob, Reason, WaitCode
from gpu_platform.domain.jobs.schedule import ScheduleRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.usage import RankUsage
from gpu_platform.domain.pipelines.pipeline import PipelineSpec, Step
from gpu_platform.domain.states import JobState
from gpu_platform.domain.windows import WindowRequest
from gpu_platform.settings import ServiceSettings
from gpu_platform.settings.service import RateLimitSettings
from gpu_platform.store import Store, windows
from gpu_platform.store.events import append_event
from gpu_platform.store.jobs import arrays, jobs, pipelines, queue, schedules
from gpu_platform.store.jobs.job_states import JobUpdate
from gpu_platform.store.reservations import attempts, reserving
from gpu_platform.store.reservations.attempts import AttemptResult
from gpu_platform.store.reservations.elements import ElementStep, advance_elements
from service import streams
from service.access.masking import Mask
from service.access.routes import routes_of
from tests.support.api_server import application, bearer, served, sign_in
from tests.support.store_cluster import NOW, Cluster, key, placement, uuid_of

CANARY = "canary"
RUNNING, WAITING, ENDED, SHARING = (f"j-canary{number:09}" for number in range(4))
THEIRS = (RUNNING, WAITING, ENDED, SHARING)
THEIR_ARRAY, THEIR_SCHEDULE, THEIR_PIPELINE = "a-canary000000000", "s-canary000000000", "p-canary000000000"
THEIR_WINDOW = "their-window"
MINE, MINE_ENDED = "j-0000000000mine0", "j-0000000000mine1"
LAST = "my-last-event"
"""The event after all others: a stream that showed it has shown everything."""
TOKENS = {"viewer": "gpt_" + "view" * 10, "admin": "gpt_" + "admi" * 10}
SESSION = f"1.0.{'0' * 32}"


@dataclass
class Tenants:
    app: FastAPI
    http: httpx.AsyncClient


def theirs(store: Store, job_id: str, **fields: object) -> None:
    jobs.submit_job(store, job_id, their_spec(**fields), actor=f"{CANARY}-user", now=NOW, idempotency_key=None)
    jobs.admit_job(store, job_id, NOW)


def their_spec(**fields: object) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": f"{CANARY}-name",
            "user": f"{CANARY}-user",
            "namespace": f"{CANARY}-namespace",
            "command": [f"{CANARY}-command", "--password", f"{CANARY}-argument"],
            "env": {f"{CANARY}_key": f"{CANARY}-value"},
            "workdir": f"/home/{CANARY}",
            "gpus": {"gpus_per_host": 1},
            **fields,
        }
    )


def others_of_theirs(store: Store) -> None:
    """An array with an element, a schedule and a pipeline."""
    spec, actor = their_spec(), f"{CANARY}-user"
    array = ArraySpec(indices="0-1")
    arrays.submit_array(store, THEIR_ARRAY, spec, array, actor=actor, now=NOW, idempotency_key=None)
    advance_elements(store, THEIR_ARRAY, ElementStep(add=1), NOW)
    schedules.create(store, THEIR_SCHEDULE, ScheduleRequest(job=spec, cron="@daily"), actor=actor, now=NOW)
    steps = (Step(name="one", job=spec),)
    pipeline = PipelineSpec(name=f"{CANARY}-name", namespace=spec.namespace, user=spec.user, steps=steps)
    pipelines.create(store, THEIR_PIPELINE, pipeline, actor=actor, uses_cache=False, now=NOW)
    kept = {"start_at": NOW + timedelta(days=1), "duration_s": 60, "hosts": ["a"], "stop_running": True}
    whose = {"namespaces": [spec.namespace], "users": [actor], "reason": f"{CANARY}-reason"}
    windows.create(store, WindowRequest.model_validate({"name": THEIR_WINDOW, **kept, **whose}), actor, NOW)


def mine(store: Store, job_id: str, **fields: object) -> None:
    spec = JobSpec.model_validate({"command": ["true"], "namespace": "mine", "user": "vera", **fields})
    jobs.submit_job(store, job_id, spec, actor="vera", now=NOW, idempotency_key=None)
    jobs.admit_job(store, job_id, NOW)


def set_up(store: Store) -> None:
    """Their jobs run on all GPUs, wait before mine, have ended, and share a GPU; mine waits for them."""
    cluster = Cluster(store).host("a", gpus=1).host("b", gpus=1)
    theirs(store, RUNNING)
    reserving.reserve_gang(store, key(RUNNING), placement({"a": [0]}), now=NOW)
    attempts.mark_running(store, key(RUNNING), NOW)
    theirs(
        store, SHARING, gpus={"gpus_per_host": 1, "share": {"percent": 10, "memory_mib": 1000, "mode": "time_slice"}}
    )
    part = ShareGrant(mode=ShareMode.TIME_SLICE, percent=10, memory_mib=1000)
    reserving.reserve_gang(store, key(SHARING), placement({"b": [0]}, grant=part), now=NOW)
    attempts.mark_running(store, key(SHARING), NOW)
    others_of_theirs(store)
    theirs(store, WAITING, priority=100)
    cluster.enqueue(WAITING)
    theirs(store, ENDED, gpus={"gpus_per_host": 0})
    for job_id in (ENDED,):
        reserving.reserve_gang(store, key(job_id), placement({"a": []}), now=NOW)
        attempts.mark_running(store, key(job_id), NOW)
        end(store, job_id, f"{CANARY}-message")
    mine(store, MINE, gpus={"gpus_per_host": 1})
    cluster.enqueue(MINE)
    mine(store, MINE_ENDED, gpus={"gpus_per_host": 0})
    reserving.reserve_gang(store, key(MINE_ENDED), placement({"a": []}), now=NOW)
    attempts.mark_running(store, key(MINE_ENDED), NOW)
    end(store, MINE_ENDED, "done")
    holders = [BlockingJob(job_id=one, attempt=1, gpus=1, hosts=["a"]) for one in (RUNNING, WAITING)]
    why = Reason(
        code=WaitCode.WAITING_FOR_GPUS, message=f"waits for {RUNNING}", next_step=f"wait for {WAITING}", holders=holders
    )
    why = why.model_copy(update={"first_job": WAITING})
    queue.set_reasons(store, {request.class_key: why for request in queue.read_queue(store)}, NOW)
    with store.write() as session:
        for job_id in (*THEIRS, None):
            data = {"reason": f"{CANARY}-reason", "preempted": RUNNING}
            append_event(session, "job.cancel_requested", f"{CANARY}-actor", NOW, job_id=job_id, data=data)
        append_event(session, "gpu.fault", "node/a", NOW, gpu_uuid=uuid_of("a", 0), data={"jobs": [RUNNING]})
        append_event(session, "job.preempting", "scheduler", NOW, job_id=MINE, data={"for": RUNNING})
        for job_id in (MINE, MINE_ENDED):
            append_event(session, LAST, "vera", NOW, job_id=job_id)
    sign_in(store, "gpt_" + "cana" * 10, f"{CANARY}-user", {f"{CANARY}-namespace": Role.ADMIN}, note=f"{CANARY}-note")


def end(store: Store, job_id: str, message: str) -> None:
    later = NOW + timedelta(seconds=60)
    used = RankUsage.model_validate({"rank": 0, "host": "a", "seconds": 60, "gpu_seconds": 0})
    failure = Failure(kind=FailureKind.USER, message=message, host="a")
    result = AttemptResult(update=JobUpdate(failure=failure), usage=(used,))
    attempts.end_attempt(store, key(job_id), [JobState.FAILED], now=later, actor="control", result=result)


@pytest.fixture
async def tenants(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tenants]:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.3)  # a stream of a waiting job's output has nothing else
    set_up(sqlite_store)
    for name, role in (("viewer", Role.VIEWER), ("admin", Role.ADMIN)):
        sign_in(sqlite_store, TOKENS[name], name, {"mine": role})
    limits = ServiceSettings(rate_limits=RateLimitSettings(requests=None, planning=None, bad_tokens=None))
    app = application(sqlite_store, "127.0.0.1:1", service=limits)
    async with served(app) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
        yield Tenants(app, http)


VALUES = {
    "job_id": (*THEIRS, f"{THEIR_ARRAY}.0", MINE, MINE_ENDED),
    "job": THEIRS,
    "release": ("0",),
    "path:path": ("main.js",),
    "array": (THEIR_ARRAY,),
    "pipeline": (THEIR_PIPELINE,),
    "schedule": (THEIR_SCHEDULE,),
    "array_id": (THEIR_ARRAY,),
    "schedule_id": (THEIR_SCHEDULE,),
    "pipeline_id": (THEIR_PIPELINE,),
    "reservation": (THEIR_WINDOW,),
    "name": ("a", "b"),
    "gpu_id": ("a:0", "b:0", uuid_of("b", 0)),
    "session_id": (SESSION,),
    "attempt": ("1",),
    "namespace": ("team-a", "team-b"),
    "sha256": ("0" * 64,),
    "token_id": ("t-x",),
    "asset": ("favicon.png",),
}
STREAMS = {"GET /v1/events", "GET /v1/jobs/{job_id}/events", "GET /v1/jobs/{job_id}/logs"}
"""Routes with ``follow``; commands beside a rank always stream."""


def requests_of(app: FastAPI) -> list[str]:
    """Every GET of the running application, with every value of its path; streams followed, and as one answer."""
    found = []
    for route in sorted(routes_of(app)):
        method, path = route.split(" ", 1)
        if method != "GET":
            continue
        names = [name for name in VALUES if f"{{{name}}}" in path]
        assert path.count("{") == len(names), f"{route}: say what to ask for in VALUES"
        for values in itertools.product(*(VALUES[name] for name in names)):
            one = path
            for name, value in zip(names, values, strict=True):
                one = one.replace(f"{{{name}}}", value)
            found += [f"{one}?follow=false", f"{one}?follow=true&after=0"] if route in STREAMS else [one]
    return found


async def everything(http: httpx.AsyncClient, path: str, token: str) -> str:
    """Status, headers and body; of a stream that never ends, all up to the last event that there is."""
    seen = b""
    enough = KEEPALIVE_COMMENT if path.startswith(f"/v1/jobs/{MINE}/logs") else LAST.encode()
    async with asyncio.timeout(15), http.stream("GET", path, headers=bearer(token)) as answer:
        async for part in answer.aiter_raw():
            seen += part
            if "follow=true" in path and enough in seen:
                break
        assert answer.status_code < 500 or answer.status_code == 503, seen
        return f"{answer.status_code}\n{answer.headers}\n{seen.decode(errors='replace')}"


def leaks_of(text: str, path: str) -> list[str]:
    """The lines with the canary, which may stand only where the answer repeats what was asked."""
    for one in (*THEIRS, THEIR_ARRAY, THEIR_SCHEDULE, THEIR_PIPELINE):
        if one in path:
            text = text.replace(one, "")
    return [line[:400] for line in text.splitlines() if CANARY in line.lower()]


@pytest.mark.long
@pytest.mark.parametrize("who", TOKENS)
async def test_no_answer_and_no_stream_has_a_byte_of_another_tenants_job(tenants: Tenants, who: str) -> None:
    asked = requests_of(tenants.app)
    assert len(asked) > 80
    answers = {path: await everything(tenants.http, path, TOKENS[who]) for path in asked}
    leaks = {path: found for path, text in answers.items() if (found := leaks_of(text, path))}
    assert not leaks, leaks
    # What one's own namespace has is shown, so the answers above were no empty ones.
    shown = [path for path, text in answers.items() if text.startswith("200") and MINE in text]
    for path in ("/v1/jobs", "/v1/queue", f"/v1/jobs/{MINE}", "/v1/events?follow=true&after=0"):
        assert path in shown
    assert "hidden" in answers["/v1/gpus"]
    assert "hidden" in answers[f"/v1/jobs/{MINE}"]


async def test_the_check_finds_what_is_not_masked(tenants: Tenants, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mask, "_covered", lambda self, model, as_it_is: model)
    text = await everything(tenants.http, f"/v1/jobs/{MINE}", TOKENS["viewer"])
    assert leaks_of(text, f"/v1/jobs/{MINE}")
    text = await everything(tenants.http, "/v1/events?follow=true&after=0", TOKENS["viewer"])
    assert leaks_of(text, "/v1/events")
