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
from gpu_platform.hosts.nvml.fault_injection import inject_fault
from gpu_platform.hosts.system.paths import control_dir, node_dir
from gpu_platform.hosts.system.ports import free_port
from tests import prometheus
from tests.waiting import eventually
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


@pytest.mark.cluster
@pytest.mark.timeout(240)
@prometheus.needs("prometheus")
async def test_every_expression_of_every_panel_has_data(tmp_path: Path) -> None:
    cluster = LocalCluster(ClusterConfig(state_dir=tmp_path / "state", nodes=NODES, ui=False))
    ports = {
        "gpu-platform-scheduler": [at_known_port(child, "SCHEDULER__METRICS_PORT") for child in cluster.schedulers],
        "gpu-platform-control": [at_known_port(child, "CONTROL__METRICS_PORT") for child in cluster.controls],
        "gpu-platform-node": [at_known_port(child, "NODE__AGENT_PORT") for child in cluster.nodes.values()],
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
