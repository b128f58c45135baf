"""The line, the dry run and the snapshot, asked of the service; what the dry run says is what then happens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client

from gpu_platform.client.wire import DryRun
from gpu_platform.domain.hosts.share import Share
from gpu_platform.domain.jobs.placement import Reason, WaitCode
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.states import JobState
from gpu_platform.scheduling.loading import load_cluster_state
from gpu_platform.scheduling.scheduler import Scheduler
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts
from gpu_platform.store.jobs import jobs, queue
from gpu_platform.store.leadership import leader
from gpu_platform.store.reservations import reserving
from service.operations import dry_runs
from tests.support.api_server import application, in_process
from tests.support.harness import Platform
from tests.support.store_cluster import NOW, Cluster, expire_leases, inventory, key, placement
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:1"
"""A Temporal that nobody needs here."""


@dataclass
class Api:
    http: httpx.AsyncClient
    store: Store
    cluster: Cluster

    async def dry_run(self, **fields: Any) -> DryRun:
        answer = await self.http.post(
            "/v1/jobs:dry-run", json={"command": ["true"], "gpus": {"gpus_per_host": 1}, **fields}
        )
        assert answer.status_code == 200, answer.text
        return DryRun.model_validate_json(answer.content)

    async def line(self, **params: Any) -> list[tuple[int, str]]:
        items: list[dict[str, Any]] = []
        cursor = None
        while True:
            answer = await self.http.get("/v1/queue", params={**params, **({"cursor": cursor} if cursor else {})})
            assert answer.status_code == 200, answer.text
            items += answer.json()["items"]
            cursor = answer.json()["next_cursor"]
            if cursor is None:
                return [(item["position"], item["job_id"]) for item in items]


@pytest.fixture
async def api(store: Store) -> AsyncIterator[Api]:
    async with in_process(application(store, NOWHERE)) as http:
        yield Api(http, store, Cluster(store).host("a", gpus=4))


async def test_the_line_follows_the_policy_in_force(api: Api) -> None:
    for minute, (job_id, priority, user) in enumerate(
        [("old", 0, "ada"), ("urgent", 10, "bob"), ("young", 0, "bob"), ("other", 0, "ada")]
    ):
        api.cluster.queued(job_id, now=NOW + timedelta(minutes=minute), priority=priority, user=user)
    by_priority = [(1, "urgent"), (2, "old"), (3, "young"), (4, "other")]
    assert await api.line() == by_priority
    assert await api.line(limit=1) == by_priority
    leader.begin_epoch(api.store, "one", NOW, {"order": "fcfs"})
    assert await api.line() == [(1, "old"), (2, "urgent"), (3, "young"), (4, "other")]
    leader.begin_epoch(api.store, "two", NOW, {"ageing_per_hour": 1000.0})
    assert await api.line(limit=3) == [(1, "old"), (2, "urgent"), (3, "young"), (4, "other")]
    leader.begin_epoch(api.store, "three", NOW, {"order": "fair_share"})
    assert await api.line() == [(1, "old"), (1, "urgent"), (2, "other"), (2, "young")]


async def test_each_says_why_it_waits(api: Api) -> None:
    api.cluster.queued("first")
    api.cluster.queued("second", namespace="team")
    [row] = queue.read_queue(api.store, ["second"])
    reason = Reason(code=WaitCode.WAITING_FOR_GPUS, message="needs more", next_step="wait")
    queue.set_reasons(api.store, {row.class_key: reason}, NOW)
    [item] = (await api.http.get("/v1/queue", params={"namespace": "team"})).json()["items"]
    assert (item["job_id"], item["position"], item["reason"]["message"]) == ("second", 2, "needs more")
    assert (await api.http.get("/v1/queue", params={"cursor": "x"})).status_code == 422


async def test_a_dry_run_finds_a_place_and_changes_nothing(api: Api) -> None:
    answer = await api.dry_run(gpus={"gpus_per_host": 2, "allow_cross_numa": True})
    assert answer.accepted
    assert answer.placement is not None
    assert answer.placement.hosts == ["a"]
    assert queue.read_queue(api.store) == []


async def test_a_dry_run_says_why_and_until_when_a_job_would_wait(api: Api) -> None:
    api.cluster.queued("long", time_limit_s=500, gpus_per_host=4)
    began = datetime.now(UTC)
    reserving.reserve_gang(api.store, key("long"), placement({"a": [0, 1, 2, 3]}), now=began)
    api.cluster.queued("ahead", gpus_per_host=4, priority=5)
    answer = await api.dry_run(gpus={"gpus_per_host": 4, "allow_cross_numa": True}, time_limit_s=10)
    assert answer.placement is None
    assert answer.reason is not None
    assert (answer.reason.code, answer.reason.position) == (WaitCode.WAITING_FOR_GPUS, 2)
    alone = await api.dry_run(gpus={"gpus_per_host": 1}, priority=9)
    assert alone.reason is not None
    assert alone.reason.starts_by == pytest.approx(began.timestamp() + 500, abs=0.01)
    assert [holder.job_id for holder in alone.reason.holders] == ["long"]


async def test_a_dry_run_says_what_would_be_refused(api: Api) -> None:
    assert not (await api.dry_run(gpus={"gpus_per_host": 5})).accepted
    team = {"name": "team", "max_job_duration_s": 60}
    leader.begin_epoch(api.store, "one", NOW, {"quotas": {"namespaces": [team]}})
    refused = await api.dry_run(namespace="team")
    assert not refused.accepted
    assert "at most 60 s" in refused.message
    submitted = await api.http.post("/v1/jobs", json={"command": ["true"], "namespace": "team"})
    assert (submitted.status_code, submitted.json()["code"]) == (422, "over_quota")
    leader.begin_epoch(api.store, "two", NOW, {"quotas": {"namespaces": [{"name": "small", "limit_gpus": 2}]}})
    body = {"command": ["true"], "namespace": "small", "gpus": {"gpus_per_host": 4}}
    over = await api.http.post("/v1/jobs", json=body)
    assert (over.status_code, over.json()["code"]) == (422, "over_quota")
    assert "namespace small may have at most 2" in over.json()["detail"]


async def test_the_snapshot_replays(api: Api) -> None:
    leader.begin_epoch(api.store, "one", NOW, {"preemption": True, "order": "fair_share"})
    api.cluster.running("low", {"a": [0, 1, 2, 3]})
    api.cluster.queued("high", gpus_per_host=4, priority=5)
    api.cluster.enqueue("high", task_token=b"secret\xff")
    answer = await api.http.get("/v1/snapshot")
    assert "secret" not in answer.text
    document = ClusterState.model_validate_json(answer.content)
    assert document.policy["preemption"] is True
    assert [row.job_id for row in document.running] == ["low"]
    core = load_cluster_state(Scheduler(), document)
    assert core.decide(document.at).placements == []
    assert {reason.holders[0].job_id for reason in core.explain(document.at).values()} == {"low"}


async def test_what_the_dry_run_says_happens(temporal: Client, sqlite_store: Store, tmp_path: Path) -> None:
    store = sqlite_store
    machines = {"a": "dgx-h100", "b": "dgx-a100-40gb"}
    async with Platform.start(temporal, store, tmp_path, machines, policy={"preemption": True, "min_run_s": 0}) as it:
        busy = await it.submit(JobSpec.model_validate({"command": ["sleep", "60"], "gpus": {"gpus_per_host": 3}}))
        await it.reaches(busy, JobState.RUNNING)
        spec = JobSpec.model_validate({"command": ["true"], "gpus": {"gpus_per_host": 4}, "priority": 3})
        said = dry_runs.dry_run(store, spec)
        assert said.placement is not None
        done = await it.ends(await it.submit(spec), JobState.COMPLETED)
        assert done.placement is not None
        assert done.placement.slices == said.placement.slices
        assert done.placement.scores == said.placement.scores
        big = JobSpec.model_validate(
            {"command": ["true"], "gpus": {"gpus_per_host": 8, "hosts": 2, "allow_cross_numa": True}, "priority": 3}
        )
        assert dry_runs.dry_run(store, big).preempts == [busy]
        gang = await it.submit(big)
        await eventually(lambda: it.job(busy).preemptions == 1, "the job to make room")
        await it.ends(gang, JobState.COMPLETED)
        await it.signal(busy, "kill")
        await it.ends(busy, JobState.CANCELLED)


async def test_one_job_that_is_asked_about_is_looked_at_more_closely(api: Api) -> None:
    api.cluster.queued("long", time_limit_s=500, gpus_per_host=4)
    began = datetime.now(UTC)
    reserving.reserve_gang(api.store, key("long"), placement({"a": [0, 1, 2, 3]}), now=began)
    api.cluster.queued("ahead", gpus_per_host=4, priority=5, share=Share(percent=50, memory_mib=100))
    api.cluster.queued("part", share=Share(percent=60, memory_mib=100))
    answer = await api.http.get("/v1/jobs/part/reason")
    reason = Reason.model_validate_json(answer.content)
    assert reason.estimated_start == pytest.approx(began.timestamp() + 500, abs=0.01)
    assert [holder.job_id for holder in reason.holders] == ["long"]
    running = await api.http.get("/v1/jobs/long/reason")
    assert (running.status_code, "does not wait: it is ALLOCATED" in running.text) == (404, True)


@pytest.mark.parametrize(
    ("gpus", "advice"),
    [
        ({"hosts": 2, "gpus_per_host": 2, "required_level": "rack"}, "there is no level 'rack': require one of "),
        ({"hosts": 2, "gpus_per_host": 2, "required_level": "nvlink"}, "or require no nvlink"),
        ({"gpus_per_host": 2, "share": {"mig_profile": "1g.10gb"}}, "a process can use one MIG share only"),
        ({"gpus_per_host": 2, "share": {"percent": 10, "memory_mib": 9, "mode": "mps"}}, "or for share mode time_slic"),
    ],
)
async def test_what_can_never_start_is_refused_also_at_submission(api: Api, gpus: dict[str, Any], advice: str) -> None:
    machine = inventory("b", 4).model_copy(update={"mps": True})
    [*cards] = [card.model_copy(update={"mig_capable": True}) for card in machine.gpus]
    api.cluster.host("b", inventory=machine.model_copy(update={"gpus": cards}))
    told = await api.dry_run(gpus=gpus)
    assert not told.accepted
    assert advice in told.message
    answer = await api.http.post("/v1/jobs", json={"command": ["true"], "gpus": gpus})
    assert (answer.status_code, answer.json()["code"]) == (422, "impossible_request")
    assert answer.json()["detail"] == told.message
    assert jobs.list_jobs(api.store)[0] == []


async def test_what_fits_hosts_that_are_away_waits(api: Api) -> None:
    api.cluster.host("b", leaf="l").host("c", leaf="l")
    pair = {"hosts": 2, "gpus_per_host": 2, "required_level": "leaf"}
    expire_leases(api.store, NOW + timedelta(hours=1))
    told = await api.dry_run(gpus=pair)
    assert (told.accepted, told.placement) == (True, None)
    hosts.remove_host(api.store, "b", reason=None, actor="ada", now=NOW + timedelta(hours=1))
    assert not (await api.dry_run(gpus=pair)).accepted
