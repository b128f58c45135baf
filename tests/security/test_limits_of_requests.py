"""Nobody takes the service from the others: neither by many requests, nor by a few that cost much."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from gpu_platform.client import AsyncClient
from gpu_platform.client.wire import DryRun, Problem
from gpu_platform.domain.access.roles import CLUSTER, Role
from gpu_platform.domain.access.tokens import TokenRequest
from gpu_platform.domain.cluster_report import ClusterReport
from gpu_platform.domain.errors import TooManyRequests
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.schedule import ScheduleRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.settings import ServiceSettings, Settings
from gpu_platform.settings.service import RateLimit, RateLimitSettings
from gpu_platform.store import Store, cluster_report
from service.app import create_app
from service.http.costs import SHARES, Cost
from service.operations import dry_runs
from tests.support.api_server import ADMIN, bearer, served, sign_in
from tests.support.store_cluster import Cluster
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

SPEC = JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1))


@asynccontextmanager
async def service(store: Store, **limits: RateLimit | None) -> AsyncIterator[str]:
    settings = Settings(service=ServiceSettings(rate_limits=RateLimitSettings(**limits)))
    sign_in(store, ADMIN, "admin", {CLUSTER: Role.ADMIN})
    async with served(create_app(settings, store)) as url:
        yield url


async def test_after_its_burst_a_caller_is_told_when_to_come_back(sqlite_store: Store) -> None:
    async with (
        service(sqlite_store, requests=RateLimit(per_s=0.5, burst=3)) as url,
        httpx.AsyncClient(base_url=url, headers=bearer()) as http,
    ):
        answers = [await http.get("/v1/hosts") for _ in range(5)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
        refused = answers[3]
        assert refused.headers["content-type"] == "application/problem+json"
        assert 1 <= int(refused.headers["retry-after"]) <= 2
        problem = Problem.model_validate_json(refused.content)
        assert (problem.code, problem.retryable) == ("too_many_requests", True)
        assert "at most 0.5 a second, after the first 3" in problem.detail
        assert isinstance(problem.error(), TooManyRequests)
        # A claimed name is no other bucket, and what keeps the cluster alive takes from none.
        assert (await http.get("/v1/hosts", headers={"X-GPU-Platform-User": "eve"})).status_code == 429
        assert (await http.get("/healthz")).status_code == 200
        report = {"name": "a", "session": "s", "address": "", "url": "", "inventory": {"machine": "m"}}
        for _ in range(5):
            assert (await http.post("/v1/hosts/a/report", json=report)).status_code != 429


@pytest.mark.parametrize(
    ("addresses", "is_one"),
    [
        ([f"2001:db8::{number:x}" for number in range(1, 12)], True),
        ([f"2001:db8:0:{number:x}::1" for number in range(1, 12)], False),
        (["192.0.2.1", "::ffff:192.0.2.1", "::ffff:c000:201", "0:0:0:0:0:ffff:192.0.2.1"] * 3, True),
        ([f"192.0.2.{number}" for number in range(1, 12)], False),
    ],
    ids=["one network of 64 bits", "many", "one IPv4 address", "many IPv4 addresses"],
)
async def test_who_has_not_signed_in_is_one_caller_with_all_that_one_machine_can_have(
    sqlite_store: Store, addresses: list[str], is_one: bool
) -> None:
    limits = RateLimitSettings(requests=RateLimit(per_s=0.5, burst=3))
    section = ServiceSettings(rate_limits=limits, trusted_proxies=["127.0.0.1"])
    async with (
        served(create_app(Settings(service=section), sqlite_store)) as url,
        httpx.AsyncClient(base_url=url) as http,
    ):
        answers = [await http.get("/v1/login", headers={"X-Forwarded-For": one}) for one in addresses]
    assert ([answer.status_code for answer in answers].count(429) >= len(addresses) - 6) == is_one


@pytest.mark.parametrize("entry", ["*", "10.0.0.0/33", "10.0.0.1/8", "proxy.example", "", "10.0.0.1:8080"])
def test_what_is_no_address_is_no_trusted_proxy(entry: str) -> None:
    """With `*` whoever passes a proxy would say where they are."""
    with pytest.raises(ValidationError, match="trusted_proxies"):
        ServiceSettings(trusted_proxies=[entry])


async def test_our_client_waits_as_long_as_it_is_told(sqlite_store: Store) -> None:
    async with service(sqlite_store, requests=RateLimit(per_s=1.0, burst=1)) as url:
        async with AsyncClient(url, retry_for_s=5.0) as client:
            began = time.monotonic()
            for _ in range(3):
                _ = [host async for host in client.hosts()]
            assert time.monotonic() - began > 1.5
        async with AsyncClient(url, retry_for_s=0.0) as client:
            with pytest.raises(TooManyRequests):
                _ = [host async for host in client.hosts()]


async def test_dry_runs_have_a_smaller_bucket(sqlite_store: Store) -> None:
    Cluster(sqlite_store).host("a")
    async with (
        service(sqlite_store, planning=RateLimit(per_s=0.1, burst=2)) as url,
        httpx.AsyncClient(base_url=url, headers=bearer()) as http,
    ):
        body = SPEC.model_dump(mode="json")
        codes = [(await http.post("/v1/jobs:dry-run", json=body)).status_code for _ in range(3)]
        assert codes == [200, 200, 429]
        assert (await http.get("/v1/snapshot")).status_code == 429
        assert (await http.get("/v1/hosts")).status_code == 200


async def test_dry_runs_wait_for_each_other_only(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    over, begun = threading.Event(), threading.Event()

    def slow(*_: object) -> DryRun:
        begun.set()
        over.wait(30)
        return DryRun(accepted=True, message="")

    monkeypatch.setattr(dry_runs, "dry_run", slow)
    Cluster(sqlite_store).host("a")
    async with (
        service(sqlite_store, planning=None, requests=None) as url,
        httpx.AsyncClient(base_url=url, headers=bearer()) as http,
    ):
        body = SPEC.model_dump(mode="json")
        flood = [asyncio.create_task(http.post("/v1/jobs:dry-run", json=body)) for _ in range(60)]
        try:
            assert await asyncio.to_thread(begun.wait, 10)
            for path in ("/v1/hosts", "/v1/jobs", "/v1/queue"):
                assert (await asyncio.wait_for(http.get(path), 5)).status_code == 200
        finally:
            over.set()
            answers = Counter(answer.status_code for answer in await asyncio.gather(*flood))
        share = SHARES[Cost.PLAN]
        assert answers[200] == share.of_one + share.waiting_of_one
        assert set(answers) == {200, 429}


@pytest.mark.long
async def test_who_takes_and_releases_gpus_again_and_again_waits_with_the_next_job_and_nobody_else(
    tmp_path: Path,
) -> None:
    """60 cycles in 20 s of one user met no limit: each is work for the scheduler, a host, and those who wait."""
    settings = {"GPU_PLATFORM_SERVICE__RATE_LIMITS__RELEASES": '{"per_s": 0.25, "burst": 4}'}
    config = ClusterConfig(state_dir=tmp_path, nodes=(NodeSpec("a", "dgx-h100"),), ui=False, settings=settings)
    spec = JobSpec(command=["sleep", "600"], gpus=SPEC.gpus, grace_s=0)
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url, retry_for_s=0) as mallory:
        waits = await mallory.submit(spec)  # with the burst used up it is still stopped
        made = await mallory.schedules.create(ScheduleRequest(every_s=86400, job=spec))
        other = await mallory.create_token(TokenRequest(user="alice", roles={CLUSTER: Role.ADMIN}))
        for _ in range(4):
            job = await mallory.submit(spec)
            await eventually(partial(_runs, mallory, job.id), "the job to run")
            await mallory.kill(job.id)
        for take in (
            partial(mallory.submit, spec),
            partial(mallory.submit_array, spec, ArraySpec(indices="0-1")),
            partial(mallory.schedules.trigger, made.id),
        ):
            with pytest.raises(TooManyRequests, match="stopped jobs that hold GPUs more often") as refused:
                await take()
            assert refused.value.details["retry_after_s"] == 4.0
        await mallory.kill(waits.id)
        async with AsyncClient(cluster.api_url, token=other.token, retry_for_s=0) as alice:
            assert (await alice.submit(spec)).id
        async with AsyncClient(cluster.api_url, retry_for_s=30) as patient:
            assert (await patient.submit(spec)).id, "it comes back by itself"


async def _runs(client: AsyncClient, job_id: str) -> bool:
    return (await client.get(job_id)).state is JobState.RUNNING


async def test_dry_runs_do_not_wait_for_a_report(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, over = threading.Event(), threading.Event()
    report = cluster_report.cluster_report

    def slow(store: Store, since: datetime, until: datetime) -> ClusterReport:
        begun.set()
        over.wait(30)
        return report(store, since, until)

    monkeypatch.setattr(cluster_report, "cluster_report", slow)
    async with service(sqlite_store) as url, httpx.AsyncClient(base_url=url, headers=bearer()) as http:
        reports = [asyncio.create_task(http.get("/v1/report")) for _ in range(3)]
        try:
            assert await asyncio.to_thread(begun.wait, 10)
            body = SPEC.model_dump(mode="json")
            planned = http.post("/v1/jobs:dry-run", json=body)
            assert (await asyncio.wait_for(planned, 5)).status_code == 200
        finally:
            over.set()
            answers = Counter([answer.status_code for answer in await asyncio.gather(*reports)])
        assert answers == {200: 2, 429: 1}, "one caller may have two reports"


@pytest.mark.long
async def test_a_flood_of_dry_runs_loses_no_host(tmp_path: Path) -> None:
    """60 clients ask without a pause, and no limit of requests holds them back: only the queue is in the way."""
    settings = {
        "GPU_PLATFORM_LEASE_TTL_S": "3",
        "GPU_PLATFORM_NODE__LEASE_INTERVAL_S": "0.5",
        "GPU_PLATFORM_SERVICE__RATE_LIMITS__REQUESTS": "null",
        "GPU_PLATFORM_SERVICE__RATE_LIMITS__PLANNING": "null",
    }
    nodes = (NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100"))
    config = ClusterConfig(state_dir=tmp_path, nodes=nodes, schedulers=1, ui=False, settings=settings)
    async with (
        LocalCluster(config) as cluster,
        httpx.AsyncClient(base_url=cluster.api_url, headers=cluster.headers, timeout=30) as http,
    ):
        answers = await _flood(cluster, clients=60, seconds=3.0)
        found = (await http.get("/v1/hosts")).json()["items"]
        events = (await http.get("/v1/events", params={"follow": False})).json()["items"]
        metrics = (await http.get("/metrics")).text
    assert answers[200] > 0, "some were computed"
    assert answers[429] > 0, "most were refused"
    assert set(answers) <= {200, 429, 503}
    assert {host["name"]: host["state"] for host in found} == {"a": "READY", "b": "READY"}
    assert not [event for event in events if event["kind"] == "host.lost"]
    slowest_s = _slowest_report_s(metrics)
    assert slowest_s <= 2.5, f"a report took up to {slowest_s} s"


async def _flood(cluster: LocalCluster, clients: int, seconds: float) -> Counter[int]:
    answers: Counter[int] = Counter()
    until = time.monotonic() + seconds
    body: dict[str, Any] = {"command": ["true"], "gpus": {"hosts": 2, "gpus_per_host": 4}}

    async def ask() -> None:
        async with httpx.AsyncClient(base_url=cluster.api_url, headers=cluster.headers, timeout=30) as http:
            while time.monotonic() < until:
                answers[(await http.post("/v1/jobs:dry-run", json=body)).status_code] += 1

    await asyncio.gather(*(ask() for _ in range(clients)))
    return answers


def _slowest_report_s(metrics: str) -> float:
    """The upper bound of the slowest report's bucket in the histogram of requests."""
    buckets = {
        float(sample.labels["le"]): sample.value
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name == "gpu_platform_request_seconds_bucket"
        and sample.labels["route"].endswith("/report")
        and sample.labels["status"] == "200"
    }
    assert buckets, "reports are measured"
    return min(le for le, count in buckets.items() if count == buckets[float("inf")])
