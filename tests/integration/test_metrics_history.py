"""What GPUs did, from the files of their hosts to a person's terminal: with the real service and a host's HTTP side."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import HostUnavailable, InvalidRequest, NotFound
from gpu_platform.domain.hosts.samples import SAMPLE_S
from gpu_platform.domain.states import JobState
from gpu_platform.node.accounting.sample_files import SampleFiles
from gpu_platform.node.accounting.sample_recorder import Sample
from gpu_platform.settings import ServiceSettings
from gpu_platform.store import Store
from gpu_platform.store.hosts.hosts import addresses
from gpu_platform.store.reservations import attempts, reserving
from tests.support.api_server import application, served
from tests.support.command_line import run
from tests.support.hosts_rig import HostRig
from tests.support.store_cluster import Cluster, key, placement, uuid_of
from workers.node.http import node_app
from workers.node.samples import sample_route

METRICS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
NO_TEMPORAL = "127.0.0.1:1"
NOWHERE = "http://127.0.0.1:1"
PROMETHEUS = "http://prometheus:9090"
JOB = "j-0000000000000a1"
HOUR_S = 3600


@dataclass
class Measured:
    """Two hosts, ``a`` and ``b``, with two GPUs each, and a third one that keeps no samples."""

    url: str
    store: Store
    files: dict[str, SampleFiles]
    now_s: int
    """When the test began."""

    def at(self, seconds_ago: float) -> datetime:
        return datetime.fromtimestamp(self.now_s - seconds_ago, UTC)

    def write(self, host: str, gpu: int, percent: int, seconds_ago: Iterable[int]) -> None:
        uuid = uuid_of(host, gpu)
        times = [self.now_s - ago for ago in seconds_ago]
        self.files[host].append([Sample(time, uuid, percent, 1024 * percent, 60, 500) for time in times])

    def held(self, job_id: str, gpus: dict[str, list[int]], since_ago: float, until_ago: float | None) -> None:
        Cluster(self.store).queued(job_id)
        reserving.reserve_gang(self.store, key(job_id), placement(gpus), now=self.at(since_ago))
        attempts.mark_running(self.store, key(job_id), self.at(since_ago))
        if until_ago is not None:
            attempts.end_attempt(self.store, key(job_id), [JobState.COMPLETED], now=self.at(until_ago), actor="control")


@pytest.fixture
async def hosts(sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Measured]:
    async with AsyncExitStack() as stack:
        now_s = int(datetime.now(UTC).timestamp()) // SAMPLE_S * SAMPLE_S
        files = {}
        rig = HostRig(tmp_path / "state")
        stack.push_async_callback(rig.aclose)
        for name in ("a", "b", "keeps-none"):
            files[name] = SampleFiles(tmp_path / name, 0 if name == "keeps-none" else 30)
            app = node_app(rig.worker, "secret", None, [sample_route(files[name])])
            worker = (await stack.enter_async_context(served(app))).replace("http://", "http://service:secret@")
            Cluster(sqlite_store).host(name, gpus=2, url=worker, now=datetime.fromtimestamp(now_s, UTC))
        service = ServiceSettings(prometheus_url=f"{PROMETHEUS}/")
        url = await stack.enter_async_context(served(application(sqlite_store, NO_TEMPORAL, service=service)))
        yield Measured(url, sqlite_store, files, now_s)


async def test_a_gpu_a_host_and_the_rest_of_the_window(hosts: Measured) -> None:
    hosts.write("a", 0, 20, range(0, HOUR_S // 2, SAMPLE_S))
    hosts.write("a", 1, 80, range(0, HOUR_S // 2, SAMPLE_S))
    hosts.write("a", 0, 99, range(2 * HOUR_S, 3 * HOUR_S, SAMPLE_S))
    async with AsyncClient(hosts.url) as client:
        gpu = await client.metrics.of_gpu("a:0")
        assert gpu.utilization_percent.count == pytest.approx(120, abs=3)  # the clock goes on while the test runs
        figures = gpu.utilization_percent
        assert (figures.mean, figures.p50, figures.p99, figures.max) == (20.0, 20, 20, 20)
        assert (gpu.gpus, gpu.hosts, gpu.sample_s, gpu.point_s, len(figures.points)) == (1, ["a"], 15, 30, 120)
        assert {point.mean for point in figures.points} == {None, 20.0}
        assert all(point.mean is None for point in figures.points[:55])
        assert gpu.memory_used_mib.max == 20 * 1024
        host = await client.metrics.of_host("a")
        figures = host.utilization_percent
        assert (host.gpus, figures.mean, figures.p50, figures.p90) == (2, 50.0, 20, 80)
        assert figures.points[-10].model_dump(include={"mean", "max"}) == {"mean": 50.0, "max": 80}
        day = await client.metrics.of_gpu(uuid_of("a", 0), window_s=86_400)
        assert (day.utilization_percent.p99, day.point_s) == (99, 720)
        assert day.utilization_percent.count == pytest.approx(360, abs=3)


async def test_a_jobs_figures_are_those_of_its_gpus_while_it_held_them(hosts: Measured) -> None:
    for host, gpu, percent in (("a", 0, 10), ("a", 1, 90), ("b", 0, 30)):
        hosts.write(host, gpu, percent, range(0, 1200, SAMPLE_S))
        hosts.write(host, gpu, 100, range(1200, HOUR_S, SAMPLE_S))
    hosts.held(JOB, {"a": [0], "b": [0]}, since_ago=1207.0, until_ago=None)
    hosts.held("j-0000000000000b1", {"b": [1]}, since_ago=600.0, until_ago=None)
    async with AsyncClient(hosts.url) as client:
        job = await client.metrics.of_job(JOB)
        # The sample that ended 1200 s ago began before it held its GPUs, so it is that of others, too.
        assert job.utilization_percent.count == pytest.approx(2 * 80, abs=4)
        assert (job.utilization_percent.mean, job.utilization_percent.max) == (20.0, 30)
        assert (job.gpus, job.hosts, job.unmeasured_hosts) == (2, ["a", "b"], {})
        other = await client.metrics.of_job("j-0000000000000b1")
        assert (other.gpus, other.utilization_percent.count, other.utilization_percent.mean) == (1, 0, None)


async def test_the_window_of_a_job_that_has_ended_ends_with_it(hosts: Measured) -> None:
    hosts.write("a", 0, 10, range(0, 20 * HOUR_S, SAMPLE_S))
    hosts.held(JOB, {"a": [0]}, since_ago=10 * HOUR_S, until_ago=9 * HOUR_S + 3)
    async with AsyncClient(hosts.url) as client:
        job = await client.metrics.of_job(JOB, window_s=600)
        assert (job.utilization_percent.count, job.utilization_percent.mean) == (39, 10.0)
        assert job.until - hosts.at(9 * HOUR_S + 3) < timedelta(seconds=SAMPLE_S)
        assert job.prometheus_url is not None
        assert parse_qs(urlsplit(job.prometheus_url).query)["g0.end_input"]
        assert (await client.metrics.of_job(JOB, window_s=86_400)).utilization_percent.count == 239


@pytest.mark.parametrize("ahead_s", [300, -300])
async def test_a_host_whose_clock_is_wrong_gives_the_samples_of_the_time_that_was_asked_for(
    hosts: Measured, tmp_path: Path, ahead_s: int
) -> None:
    hosts.files["wrong"] = files = SampleFiles(tmp_path / "wrong", 30)
    async with contextlib.aclosing(HostRig(tmp_path / "rig")) as rig:
        app = node_app(rig.worker, "secret", None, [sample_route(files, lambda: time.time() + ahead_s)])
        async with served(app) as url, AsyncClient(hosts.url) as client:
            worker = url.replace("http://", "http://service:secret@")
            Cluster(hosts.store).host("wrong", gpus=1, url=worker, now=hosts.at(0))
            hosts.held(JOB, {"wrong": [0]}, since_ago=1200.0, until_ago=600.0)
            while_held = range(600, 1200, SAMPLE_S)
            hosts.write("wrong", 0, 10, [ago - ahead_s for ago in while_held])
            hosts.write("wrong", 0, 100, [ago - ahead_s for ago in range(0, HOUR_S, SAMPLE_S) if ago not in while_held])
            job = await client.metrics.of_job(JOB)
            assert job.utilization_percent.max == 10
            assert job.utilization_percent.count == pytest.approx(len(while_held), abs=2)


async def test_hosts_without_an_answer_are_named_and_the_others_are_counted(hosts: Measured) -> None:
    hosts.write("a", 0, 10, range(0, HOUR_S, SAMPLE_S))
    hosts.held(JOB, {"a": [0], "b": [0], "keeps-none": [0]}, since_ago=1800.0, until_ago=None)
    Cluster(hosts.store).host("b", gpus=2, url=NOWHERE, now=hosts.at(0))
    async with AsyncClient(hosts.url, retry_for_s=0) as client:
        job = await client.metrics.of_job(JOB)
        assert job.hosts == ["a"]
        assert job.utilization_percent.mean == 10.0
        assert "b does not answer" in job.unmeasured_hosts["b"]
        assert "node.metrics_retention_days" in job.unmeasured_hosts["keeps-none"]
        with pytest.raises(HostUnavailable):
            await client.metrics.of_host("b")
        with pytest.raises(NotFound, match="keeps no samples"):
            await client.metrics.of_gpu("keeps-none:1")
        for asked in (client.metrics.of_host("c"), client.metrics.of_gpu("a:9"), client.metrics.of_job("j-none")):
            with pytest.raises(NotFound):
                await asked
        for window_s in (0, 14, 400 * 86_400):
            with pytest.raises(InvalidRequest, match="window_s"):
                await client.metrics.of_gpu("a:0", window_s=window_s)
    out = (await run("metrics", JOB, url=hosts.url)).out
    assert "not measured: keeps-none: host keeps-none keeps no samples" in out


async def test_what_a_host_answers_is_not_trusted(hosts: Measured) -> None:
    async def nonsense(_: Request) -> JSONResponse:
        return JSONResponse({"retention_days": 30, "measured": {"power_w": {"counts": [[1, -5]]}}})

    app = Starlette(routes=[Route("/samples", nonsense, methods=["POST"])])
    async with served(app) as liar, AsyncClient(hosts.url, retry_for_s=0) as client:
        Cluster(hosts.store).host("b", gpus=2, url=liar, now=hosts.at(0))
        with pytest.raises(HostUnavailable, match="nobody asked for"):
            await client.metrics.of_gpu("b:0")


async def test_the_command_shows_a_table_and_bars(hosts: Measured) -> None:
    hosts.write("a", 0, 50, range(0, HOUR_S // 2, SAMPLE_S))
    shown = await run("metrics", "a:0", "--window", "1h", url=hosts.url)
    assert shown.code == 0, shown.err
    lines = [line.rstrip() for line in shown.out.splitlines()]
    assert lines[0].startswith("a:0: 1 GPU, ")
    [utilisation, bars] = [line for line in lines if line.startswith("utilisation")]
    assert utilisation.split()[1:11] == ["50", "%"] * 5
    assert bars.count("▅") == pytest.approx(60, abs=2)
    assert bars.endswith("0 to 100 %")
    assert any(line.startswith("memory") and "50.0 GiB" in line for line in lines)
    as_json = json.loads((await run("metrics", "a", "--json", url=hosts.url)).out)
    assert as_json["utilization_percent"]["p90"] == 50
    assert (await run("metrics", "nothing", url=hosts.url)).code == 3
    wide = (await run("metrics", "a:0", "--window", "90d", url=hosts.url)).out
    assert "samples are kept for 30 days" in wide
    empty = (await run("metrics", "b:1", url=hosts.url)).out
    assert "nothing was measured" in empty


async def test_the_link_to_prometheus_has_an_expression_for_each_measurement(hosts: Measured) -> None:
    hosts.held(JOB, {"a": [0]}, since_ago=1800.0, until_ago=None)
    async with AsyncClient(hosts.url) as client:
        answers = [await client.metrics.of_host("a", window_s=900), await client.metrics.of_job(JOB, window_s=900)]
    of_host, of_job = (parse_qs(urlsplit(str(answer.prometheus_url)).query) for answer in answers)
    assert str(answers[0].prometheus_url).startswith(f"{PROMETHEUS}/graph?")
    assert of_host["g0.expr"] == [f'gpu_platform_gpu_utilization_ratio{{uuid=~"{uuid_of("a", 0)}|{uuid_of("a", 1)}"}}']
    assert of_host["g0.range_input"] == ["900s"]
    assert len([name for name in of_host if name.endswith(".expr")]) == 4
    [expression] = of_job["g3.expr"]
    assert expression == f'gpu_platform_gpu_power_watts and on (uuid) gpu_platform_gpu_job{{job_id="{JOB}"}}'
    assert "| `gpu_platform_gpu_job` | gpu, uuid, job_id, attempt |" in METRICS.read_text()


async def test_the_service_alone_may_ask_a_host(hosts: Measured) -> None:
    url = addresses(hosts.store, "a").url
    bare = url.replace("service:secret@", "")
    async with httpx.AsyncClient() as http:
        assert (await http.post(f"{bare}/samples", content=b"{}")).status_code == 401
        refused = await http.post(f"{url}/samples", content=b'{"since": 5}')
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
