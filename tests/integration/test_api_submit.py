"""Submitting and interrupting jobs: the service, its database and a real Temporal."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client, WorkflowHandle

from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import jobs
from gpu_platform.store.jobs.idempotency import IdempotencyKey
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import attempts, reserving
from gpu_platform.store.restoring import restoring
from gpu_platform.temporal.job_workflows import CleanupInput
from service.temporal import JobWorkflows
from tests.support.api_server import application, bearer, in_process, recording, sign_in, temporal_dev_server
from tests.support.store_cluster import NOW, Cluster, key, placement, set_job_state


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


@dataclass
class Api:
    http: httpx.AsyncClient
    store: Store
    temporal: Client

    async def submit(self, **fields: Any) -> Job:
        answer = await self.http.post("/v1/jobs", json={"command": ["true"], "gpus": {"gpus_per_host": 1}, **fields})
        assert answer.status_code == 201, answer.text
        return Job.model_validate_json(answer.content)

    def workflow(self, job_id: str) -> WorkflowHandle[Any, Any]:
        return self.temporal.get_workflow_handle(job_id)

    async def heard(self, job_id: str) -> list[list[str]]:
        return await self.workflow(job_id).query("heard")

    def running(self, job: Job, host: str = "a") -> None:
        """As the control worker would: admitted, placed on GPU 0 of ``host``, running."""
        jobs.admit_job(self.store, job.id, NOW)
        reserving.reserve_gang(self.store, key(job.id), placement({host: [0]}), now=NOW)
        attempts.mark_running(self.store, key(job.id), NOW)


@pytest.fixture
async def api(temporal: str, sqlite_template: Path, tmp_path: Path) -> AsyncIterator[Api]:
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    async with recording(temporal) as client, in_process(application(store, temporal)) as http:
        yield Api(http, store, client)
    store.close()


async def test_a_submission_is_a_row_and_a_workflow(api: Api) -> None:
    answer = await api.http.post(
        "/v1/jobs",
        json={
            "name": "train",
            "command": ["python", "train.py"],
            "gpus": {"hosts": 2, "gpus_per_host": 4, "model": "H100"},
        },
    )
    assert answer.status_code == 201
    job = Job.model_validate_json(answer.content)
    assert answer.headers["location"] == f"/v1/jobs/{job.id}"
    assert job.state is JobState.PENDING
    assert job.workflow_url == f"http://ui/namespaces/default/workflows/{job.id}"
    assert jobs.get_job(api.store, job.id).spec == job.spec
    assert (await api.workflow(job.id).query("spec"))["spec"]["name"] == "train"
    attributes = (await api.workflow(job.id).describe()).typed_search_attributes
    told = {pair.key.name: pair.value for pair in attributes}
    assert told["GpuPlatformGpus"] == 8
    assert told["GpuPlatformModel"] == "H100"
    assert told["GpuPlatformState"] == "PENDING"


async def test_the_same_key_never_submits_twice(api: Api) -> None:
    body, headers = {"command": ["true"]}, {"Idempotency-Key": "k-1"}
    answers = await asyncio.gather(*(api.http.post("/v1/jobs", json=body, headers=headers) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len({answer.json()["id"] for answer in answers}) == 1
    other = await api.http.post("/v1/jobs", json={"command": ["false"]}, headers=headers)
    assert other.status_code == 409
    assert other.json()["code"] == "idempotency_conflict"
    assert len(jobs.list_jobs(api.store)[0]) == 1


async def test_a_key_repeated_after_the_service_died_starts_the_workflow(api: Api) -> None:
    answer = await api.http.post("/v1/jobs", json={"command": ["true"]}, headers={"Idempotency-Key": "k-2"})
    spec = Job.model_validate_json(answer.content).spec
    # The row is there, the workflow is not: what a service leaves that dies between the two.
    key = IdempotencyKey("k-3", "person/admin")
    jobs.submit_job(api.store, "j-orphan", spec, actor="ada", now=NOW, idempotency_key=key)
    answer = await api.http.post("/v1/jobs", json={"command": ["true"]}, headers={"Idempotency-Key": "k-3"})
    assert (answer.status_code, answer.json()["id"]) == (200, "j-orphan")
    assert await api.heard("j-orphan") == []


async def test_cancel_and_kill_reach_the_workflow_with_who_and_why(api: Api) -> None:
    job = await api.submit()
    who = {"X-GPU-Platform-User": "ada"}
    answer = await api.http.post(f"/v1/jobs/{job.id}/cancel", json={"reason": "wrong data"}, headers=who)
    assert answer.status_code == 202
    assert await api.heard(job.id) == [["cancel", "ada", "wrong data"]]
    assert (await api.http.post(f"/v1/jobs/{job.id}/kill")).status_code == 202
    await api.workflow(job.id).result()
    assert (await api.heard(job.id))[1] == ["kill", "admin", ""]


async def test_cancel_reaches_a_job_whose_workflow_was_not_started_yet(api: Api) -> None:
    job = await api.submit()
    jobs.submit_job(api.store, "j-late", job.spec, actor="ada", now=NOW, idempotency_key=None)
    assert (await api.http.post("/v1/jobs/j-late/cancel")).status_code == 202
    assert await api.heard("j-late") == [["cancel", "admin", ""]]


async def test_only_a_job_that_holds_gpus_can_be_preempted(api: Api) -> None:
    Cluster(api.store).host("a", gpus=1)
    job = await api.submit()
    answer = await api.http.post(f"/v1/jobs/{job.id}/preempt")
    assert answer.status_code == 409
    assert answer.json()["code"] == "illegal_transition"
    api.running(job)
    assert (await api.http.post(f"/v1/jobs/{job.id}/preempt")).status_code == 202
    assert await api.heard(job.id) == [["preempt", "admin", ""]]


async def test_what_has_ended_cannot_be_stopped(api: Api) -> None:
    job = await api.submit()
    set_job_state(api.store, job.id, JobState.FAILED, now=NOW, actor="control")
    for verb in ("cancel", "kill", "preempt"):
        answer = await api.http.post(f"/v1/jobs/{job.id}/{verb}")
        assert answer.status_code == 409
        assert f"job {job.id} is FAILED" in answer.json()["detail"]


async def test_cancelling_what_is_cancelled_is_not_an_error(api: Api) -> None:
    job = await api.submit()
    set_job_state(api.store, job.id, JobState.CANCELLED, now=NOW, actor="control")
    answer = await api.http.post(f"/v1/jobs/{job.id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "CANCELLED")
    assert await api.heard(job.id) == []


async def test_get_waits_for_the_end_if_asked(api: Api) -> None:
    job = await api.submit()
    waiting = asyncio.create_task(api.http.get(f"/v1/jobs/{job.id}", params={"wait_s": 30}))
    soon = await api.http.get(f"/v1/jobs/{job.id}", params={"wait_s": 0.05})
    assert soon.json()["state"] == "PENDING"
    set_job_state(api.store, job.id, JobState.FAILED, now=NOW, actor="control")
    answer = await asyncio.wait_for(waiting, 10)
    assert answer.json()["state"] == "FAILED"


async def test_draining_with_force_preempts_and_offline_with_force_kills(api: Api) -> None:
    Cluster(api.store).host("a", gpus=1)
    job = await api.submit()
    api.running(job)
    refused = await api.http.post("/v1/hosts/a/offline")
    assert refused.status_code == 409
    assert (refused.json()["code"], refused.json()["details"]["jobs"]) == ("in_use", [job.id])
    assert (await api.http.get("/v1/hosts/a")).json()["state"] == "READY"

    drained = await api.http.post("/v1/hosts/a/drain", params={"force": True}, json={"reason": "new fans"})
    assert drained.json()["state"] == "DRAINING"
    assert await api.heard(job.id) == [["preempt", "admin", "new fans"]]

    assert (await api.http.post("/v1/hosts/a/offline", params={"force": True})).status_code == 200
    assert (await api.heard(job.id))[1][0] == "kill"
    assert (await api.http.post("/v1/hosts/a/online")).json()["state"] == "READY"


async def test_draining_a_gpu_finishes_what_runs_and_with_force_preempts_it(api: Api) -> None:
    Cluster(api.store).host("a", gpus=2)
    job = await api.submit()
    api.running(job)
    drained = (await api.http.post("/v1/gpus/a:0/drain", json={"reason": "bad fan"})).json()
    assert (drained["state"], drained["reason"]) == ("DRAINING", "bad fan")
    assert await api.heard(job.id) == []
    assert (await api.http.post("/v1/gpus/a:1/drain")).json()["state"] == "DRAINED"
    assert (await api.http.post("/v1/gpus/a:0/drain", params={"force": True})).json()["state"] == "DRAINING"
    assert await api.heard(job.id) == [["preempt", "admin", "GPU a:0 is drained"]]
    assert (await api.http.post("/v1/gpus/a:0/online")).json()["state"] == "IN_USE"


async def test_a_cancel_of_a_job_whose_workflow_was_terminated_is_a_cleanup(api: Api) -> None:
    Cluster(api.store).host("a", gpus=1)
    job = await api.submit()
    api.running(job)
    await api.workflow(job.id).terminate()
    who = {"X-GPU-Platform-User": "ada"}
    assert (await api.http.post(f"/v1/jobs/{job.id}/cancel", headers=who)).status_code == 202
    history = await api.workflow(f"cleanup-{job.id}-1").fetch_history()
    [given] = history.events[0].workflow_execution_started_event_attributes.input.payloads
    asked = CleanupInput.model_validate_json(given.data)
    assert (asked.key, asked.state, asked.actor) == (key(job.id), JobState.CANCELLED, "ada")
    assert (await api.http.post(f"/v1/jobs/{job.id}/kill", headers=who)).status_code == 202, "it is on its way"


async def test_a_kill_of_a_job_whose_workflow_temporal_lost_begins_it_again_to_end_it(api: Api) -> None:
    Cluster(api.store).host("a", gpus=1)
    jobs.submit_job(api.store, "j-lost", (await api.submit()).spec, actor="ada", now=NOW, idempotency_key=None)
    jobs.admit_job(api.store, "j-lost", NOW)
    assert (await api.http.post("/v1/jobs/j-lost/kill")).status_code == 202
    assert await api.heard("j-lost") == [["kill", "admin", ""]]
    given = await api.workflow("j-lost").query("spec")
    assert given["takes_over"] is True


async def test_a_restored_database_is_said_for_a_day(api: Api) -> None:
    leader.begin_epoch(api.store, "leader", NOW)
    now = datetime.now(UTC)
    restoring.note_restored(api.store, 2, now - restoring.SHOWN_FOR + timedelta(minutes=1, seconds=-30))
    restoring.note_restored(api.store, 1, now - restoring.SHOWN_FOR + timedelta(minutes=1))
    [warning] = (await api.http.get("/readyz")).json()["warnings"]
    assert "restored to an older point" in warning
    assert "3 jobs were restored from Temporal" in warning
    assert restoring.last_restore(api.store, now + timedelta(minutes=2)) is None


async def test_a_leader_that_did_not_end_its_comparison_is_followed_by_one_that_does(api: Api) -> None:
    leader.begin_epoch(api.store, "leader", NOW)
    later = NOW + timedelta(hours=1)
    assert restoring.begin_comparing(api.store, NOW, later) is None
    assert restoring.last_restore(api.store, later) is None
    assert restoring.begin_comparing(api.store, later, later) == NOW
    restoring.note_restored(api.store, 1, later)
    assert restoring.begin_comparing(api.store, later, later) == NOW
    restoring.end_comparing(api.store, None, later)
    assert restoring.begin_comparing(api.store, later, later) is None


async def test_ready_and_metrics(api: Api) -> None:
    Cluster(api.store).host("a", gpus=2)
    running, _ = await api.submit(), await api.submit()
    api.running(running)
    assert (await api.http.get("/readyz")).json() == {
        "status": "ok",
        "version": version("gpu-platform"),
        "warnings": [],
    }
    text = (await api.http.get("/metrics")).text
    assert 'gpu_platform_jobs{state="RUNNING"} 1.0' in text
    assert 'gpu_platform_jobs{state="PENDING"} 1.0' in text
    assert 'gpu_platform_gpus{host="a",state="AVAILABLE"} 1.0' in text
    assert "topology_gpu_allocation_ratio 0.5" in text
    assert "gpu_platform_queue_length 0.0" in text
    assert 'gpu_platform_request_seconds_count{method="POST",route="/v1/jobs",status="201"}' in text


async def test_nothing_is_kept_of_a_job_that_could_not_be_started(sqlite_template: Path, tmp_path: Path) -> None:
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    async with in_process(application(store, "127.0.0.1:1")) as http:
        answer = await http.post("/v1/jobs", json={"command": ["true"]}, headers={"Idempotency-Key": "k"})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["retryable"] is True
        assert jobs.list_jobs(store)[0] == []
        ready = await http.get("/readyz")
        assert ready.status_code == 503
        assert "temporal" in ready.json()["details"]
        assert "database" not in ready.json()["details"]
        assert (await http.get("/healthz")).status_code == 200
    store.close()


async def test_who_may_not_read_the_cluster_sees_only_whether_it_is_ready(sqlite_store: Store, temporal: str) -> None:
    now = datetime.now(UTC)
    leader.begin_epoch(sqlite_store, "leader", now)
    restoring.note_restored(sqlite_store, 2, now)
    sign_in(sqlite_store, "gpt_user" * 6, "ada", {"team-a": Role.ADMIN})
    sign_in(sqlite_store, "gpt_view" * 6, "vera", {CLUSTER: Role.VIEWER})
    async with in_process(application(sqlite_store, temporal)) as http:
        for headers in ({}, bearer("gpt_user" * 6), bearer("gpt_wrong"), {"Authorization": "Basic x"}):
            http.headers.pop("Authorization", None)
            ready = await http.get("/readyz", headers=headers)
            assert (ready.status_code, ready.json()) == (200, {"status": "ok", "warnings": []})
        assert len((await http.get("/readyz", headers=bearer("gpt_view" * 6))).json()["warnings"]) == 1
    async with in_process(application(sqlite_store, "127.0.0.1:1")) as http:
        shown = await http.get("/readyz", headers=bearer("gpt_view" * 6))
        hidden = await http.get("/readyz", headers=bearer("gpt_user" * 6))
        assert (shown.status_code, hidden.status_code) == (503, 503)
        assert "Temporal does not answer" in shown.json()["details"]["temporal"]
        assert hidden.json()["detail"] == "not ready: temporal: not reachable"


async def test_a_database_that_is_away_is_a_503_that_says_so(temporal: str, tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/platform.db")
    (tmp_path / "platform.db").mkdir()
    async with in_process(application(store, temporal)) as http:
        for method, path in (("POST", "/v1/jobs"), ("GET", "/v1/jobs"), ("GET", "/metrics")):
            answer = await http.request(method, path, json={"command": ["true"]})
            assert answer.status_code == 503, answer.text
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["code"] == "unavailable"
        ready = await http.get("/readyz")
        assert "database" in ready.json()["details"]
        assert "temporal" not in ready.json()["details"]
    store.close()


async def test_a_temporal_that_is_frozen_is_not_waited_for(
    sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "platform.db"
    shutil.copy(sqlite_template, path)
    store = Store(f"sqlite:///{path}")
    monkeypatch.setattr("service.temporal.PATIENCE_S", 0.5)
    # Takes connections and never says a word, as a stopped process does.
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        async with in_process(application(store, f"127.0.0.1:{frozen.getsockname()[1]}")) as http:
            answer = await asyncio.wait_for(http.post("/v1/jobs", json={"command": ["true"]}), 5)
    assert answer.status_code == 503
    assert "nothing was started" in answer.json()["detail"]
    assert jobs.list_jobs(store)[0] == []
    store.close()


async def test_a_start_that_was_not_answered_but_happened_is_an_accepted_job(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def start_without_an_answer(_: JobWorkflows, job_id: str, spec: JobSpec) -> None:
        jobs.admit_job(api.store, job_id, NOW)
        raise Unavailable("no answer")

    monkeypatch.setattr(JobWorkflows, "start", start_without_an_answer)
    assert (await api.submit()).state is JobState.QUEUED
    assert len(jobs.list_jobs(api.store)[0]) == 1
