"""Dashboards: the files are those of the generator, and every expression has data on a platform that works."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gpu_platform.client import AsyncClient
from gpu_platform.client.credentials import TOKEN_FILE
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.node.nvml.fault_injection import inject_fault
from gpu_platform.node.system.paths import control_dir, node_dir
from gpu_platform.node.system.ports import free_port
from tests.support import prometheus
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec
from workers.local.supervision import ChildProcess

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
NODES = (NodeSpec("a", "dgx-h100", leaf="leaf-1"), NodeSpec("b", "dgx-h100", leaf="leaf-2"))


def test_the_dashboards_are_those_of_the_generator() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "gen_dashboards.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> dict[tuple[str, str], str]:
    """(dashboard and panel, letter of the query) -> expression."""
    found: dict[tuple[str, str], str] = {}
    for path in sorted(GRAFANA.glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                found[f"{path.stem}: {panel['title']}", target["refId"]] = target["expr"]
    return found


OF_THE_CLUSTER = {
    'gpu_platform_gpus{host="a",state="IN_USE"}': 5,
    'gpu_platform_gpus{host="b",state="IN_USE"}': 2,
    'gpu_platform_gpus_free{host="a"}': 3,
    'gpu_platform_gpus_free{host="b"}': 6,
    'gpu_platform_hosts{state="READY"}': 2,
    'gpu_platform_jobs_unfinished{kind="batch",state="RUNNING"}': 3,
    'gpu_platform_jobs_unfinished{kind="unknown",state="RUNNING"}': 1,
    'gpu_platform_jobs_waiting{reason="waiting_for_gpus"}': 4,
    "gpu_platform_queue_length": 4,
    "gpu_platform_queue_oldest_seconds": 60,
    "topology_gpu_allocation_ratio": 0.5,
    'topology_domain_utilization_ratio{level="leaf",domain="l1"}': 0.25,
}
"""What every service says."""
SHOWN: dict[tuple[str, str], dict[str, float]] = {
    ("operators: GPUs by state", "A"): {'{state="IN_USE"}': 7},
    ("operators: How much of the GPUs is used", "A"): {"{}": 0.5},
    ("operators: Held by jobs, by domain", "A"): {'{level="leaf",domain="l1"}': 0.25},
    ("operators: Hosts by state", "A"): {'{state="READY"}': 2},
    ("operators: Free GPUs by host", "A"): {'{host="a"}': 3, '{host="b"}': 6},
    ("operators: Not ended, by state", "A"): {'{state="RUNNING"}': 4},
    ("operators: Waiting, by reason", "A"): {'{reason="waiting_for_gpus"}': 4},
    ("operators: Longest wait of now", "A"): {"{}": 60},
    ("users: Free GPUs", "A"): {"{}": 9},
    ("users: In the queue", "A"): {"{}": 4},
    ("users: Longest wait of now", "A"): {"{}": 60},
    ("users: Why jobs wait", "A"): {'{reason="waiting_for_gpus"}': 4},
    ("users: GPUs held by jobs", "A"): {"{}": 0.5},
    ("users: Not ended, by kind of work", "A"): {
        '{kind="batch",state="RUNNING"}': 3,
        '{kind="unknown",state="RUNNING"}': 1,
    },
}


@prometheus.needs("promtool")
def test_what_several_services_say_is_shown_once(tmp_path: Path) -> None:
    series = {of_service(name, number): f"{value}x5" for name, value in OF_THE_CLUSTER.items() for number in (1, 2)}
    shows(tmp_path, series, SHOWN, "5m")


@prometheus.needs("promtool")
def test_the_first_xid_and_the_first_failed_request_are_shown(tmp_path: Path) -> None:
    """A series that begins with its first count does not grow by it."""
    gpu, request = 'gpu_platform_gpu_xids_total{instance="a",uuid="u",xid="%s"}', "gpu_platform_request_seconds_count"
    series = {
        gpu % 79: "_x100 1x20",
        gpu % 13: "3x120",  # long ago
        request + '{instance="s",route="/v1/jobs",status="503"}': "_x118 1x2",
        request + '{instance="s",route="/v1/jobs",status="200"}': "0+1x120",
    }
    wanted = {
        ("operators: XIDs, an hour", "A"): {'{instance="a",xid="79"}': 1.0, '{instance="a",xid="13"}': 0.0, "{}": 0.0},
        ("operators: Requests that failed, a minute", "A"): {'{status="503"}': 0.2, "{}": 0.0},
    }
    shows(tmp_path, series, wanted, "120m")


def of_service(series: str, number: int) -> str:
    name, _, labels = series.partition("{")
    return f'{name}{{instance="s{number}",{labels or "}"}'


def shows(
    tmp_path: Path, series: dict[str, str], wanted: dict[tuple[str, str], dict[str, float]], eval_time: str
) -> None:
    """With these series, panels show these values."""
    found = expressions()
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": found[where],
                "eval_time": eval_time,
                "exp_samples": [{"labels": labels, "value": value} for labels, value in values.items()],
            }
            for where, values in wanted.items()
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"tests": [test]}))
    prometheus.run("promtool", "test", "rules", str(file))


@pytest.mark.cluster
@pytest.mark.timeout(240)
@prometheus.needs("prometheus")
async def test_every_expression_of_every_panel_has_data(tmp_path: Path) -> None:
    cluster = LocalCluster(ClusterConfig(state_dir=tmp_path / "state", nodes=NODES, ui=False))
    ports = {
        "gpu-platform-scheduler": [at_known_port(child, "SCHEDULER__METRICS_PORT") for child in cluster.schedulers],
        "gpu-platform-control": [at_known_port(child, "CONTROL__METRICS_PORT") for child in cluster.controls],
        "gpu-platform-node": [at_known_port(child, "NODE__PORT") for child in cluster.nodes.values()],
        "gpu-platform-service": [cluster.config.port],
    }
    async with (
        cluster,
        AsyncClient(cluster.api_url) as client,
        scraping(cluster, ports, tmp_path) as asked,
    ):
        await eventually(lambda: all_are_scraped(asked, ports), "Prometheus to see every process", within_s=60)
        job_id = await work(cluster, client)
        wanted = {where: text.replace("$job", job_id) for where, text in expressions().items()}
        answers: dict[tuple[str, str], list[Any]] = {}

        async def all_have_data() -> bool:
            await end_some(client)
            for where, text in wanted.items():
                answers[where] = has_values(await asked(text)) or answers.get(where, [])
            return all(answers[where] for where in wanted)

        try:
            await eventually(all_have_data, "data", within_s=120)
        finally:
            for where, text in wanted.items():
                found = answers.get(where) or []
                print(f"{where[0]:60} {len(found):3} series  {found[0]['value'][1] if found else '-':10} {text}")
            async for job in client.list(states=[JobState.RUNNING, JobState.QUEUED]):
                await client.cancel(job.id)


def has_values(series: list[Any]) -> list[Any]:
    """Those that are a number: a quantile of nothing is none."""
    return [one for one in series if not math.isnan(float(one["value"][1]))]


async def all_are_scraped(asked: Any, ports: dict[str, list[int]]) -> bool:
    return [one["value"][1] for one in await asked("count(up == 1)")] == [str(sum(map(len, ports.values())))]


async def end_some(client: AsyncClient) -> None:
    """A job that completes and one that fails. They need no GPU, since all are held."""
    for script in ("true", "exit 3"):
        job = await client.submit(JobSpec(command=["sh", "-c", script], gpus=ResourceRequest(gpus_per_host=0)))
        await client.wait(job.id, timeout_s=60)


def at_known_port(child: ChildProcess, setting: str) -> int:
    port = free_port()
    child.env[f"GPU_PLATFORM_{setting}"] = str(port)
    return port


async def work(cluster: LocalCluster, client: AsyncClient) -> str:
    """Let jobs complete, fail, wait and lose a GPU. Returns one that runs on."""
    await end_some(client)
    long = JobSpec(command=["sh", "-c", "while :; do :; done"], gpus=ResourceRequest(gpus_per_host=8), grace_s=1)
    struck, runs = await client.submit(long), await client.submit(long)
    await client.submit(long)  # it waits
    for job in (struck, runs):
        await eventually(lambda job=job: is_running(client, job.id, 1), f"{job.id} to run", within_s=60)
    placement = (await client.get(struck.id)).placement
    assert placement is not None
    [part] = placement.slices
    state_dir = cluster.config.state_dir.resolve()
    inject_fault(control_dir(node_dir(state_dir, part.host)), part.gpu_indices[0], xid=48)
    await eventually(lambda: is_running(client, struck.id, 2), "the struck job to run again", within_s=60)
    return runs.id


async def is_running(client: AsyncClient, job_id: str, attempt: int) -> bool:
    job = await client.get(job_id)
    return (job.state, job.attempt) == (JobState.RUNNING, attempt)


@asynccontextmanager
async def scraping(cluster: LocalCluster, ports: dict[str, list[int]], tmp_path: Path) -> AsyncIterator[Any]:
    """A Prometheus that watches the cluster. Gives a function that asks it."""
    port = free_port()
    jobs = [
        {
            "job_name": name,
            "authorization": {"credentials_file": str(cluster.config.state_dir / TOKEN_FILE)},
            "static_configs": [{"targets": [f"127.0.0.1:{one}" for one in there]}],
        }
        for name, there in ports.items()
    ]
    file = tmp_path / "prometheus.yaml"
    file.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
    binary = prometheus.tool("prometheus")
    assert binary is not None
    argv = [
        binary, f"--config.file={file}", f"--web.listen-address=127.0.0.1:{port}",
        f"--storage.tsdb.path={tmp_path / 'tsdb'}",
    ]  # fmt: skip
    with (tmp_path / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(*argv, stdout=log, stderr=log)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:

            async def asked(expression: str) -> list[Any]:
                answer = (await http.get("/api/v1/query", params={"query": expression})).json()
                assert answer["status"] == "success", f"{expression}: {answer}"
                return answer["data"]["result"]

            async def is_ready() -> bool:
                try:
                    return (await http.get("/-/ready")).is_success
                except httpx.TransportError:
                    return False

            await eventually(is_ready, "Prometheus", within_s=30)
            yield asked
    finally:
        process.terminate()
        await process.wait()
