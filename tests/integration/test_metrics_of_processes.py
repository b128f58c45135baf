"""Every process serves its metrics by itself, on a port of its own, and none ends because that port is taken."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from tests.support.lines import whole_lines
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec
from workers.local.metrics_ports import APART

PORTS = range(18_000, 19_900)


@pytest.fixture
def first_ports(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Ports for the first process of each kind. That of the second scheduler is taken by another program."""
    variables = ("SCHEDULER__METRICS_PORT", "CONTROL__METRICS_PORT", "NODE__PORT")
    chosen: dict[str, int] = {}
    with socket.socket() as other:
        for port in PORTS:
            if len(chosen) == len(variables):
                break
            if _is_free(port) and _is_free(port + APART):
                chosen[variables[len(chosen)]] = port
        other.bind(("127.0.0.1", chosen["SCHEDULER__METRICS_PORT"] + APART))
        other.listen()
        for name, port in chosen.items():
            monkeypatch.setenv(f"GPU_PLATFORM_{name}", str(port))
        yield chosen


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def scrape(address: str, token: str | None = None) -> str:
    request = urllib.request.Request(f"http://{address}/metrics")
    if token is not None:
        request.add_header("Authorization", token)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def logged(log_file: Path, event: str) -> list[dict[str, object]]:
    lines = (json.loads(line) for line in whole_lines(log_file) if line.startswith("{"))
    return [line for line in lines if line.get("event") == event]


@pytest.mark.long
async def test_every_process_serves_metrics_and_a_port_that_is_taken_ends_none(
    tmp_path: Path, first_ports: dict[str, int]
) -> None:
    nodes = (NodeSpec("one", "dgx-h100"), NodeSpec("two", "dgx-h100"))
    config = ClusterConfig(state_dir=tmp_path / "state", nodes=nodes, ui=False, fixed_metrics_ports=True)
    async with LocalCluster(config) as cluster, AsyncClient(cluster.api_url) as client:
        ports = {
            "scheduler-1": first_ports["SCHEDULER__METRICS_PORT"],
            "scheduler-2": int(str(logged(cluster.schedulers[1].log_file, "metrics.served")[0]["port"])),
            "control-1": first_ports["CONTROL__METRICS_PORT"],
            "node-one": first_ports["NODE__PORT"],
            "node-two": first_ports["NODE__PORT"] + APART,
        }
        assert ports["scheduler-2"] != ports["scheduler-1"] + APART
        assert logged(cluster.schedulers[1].log_file, "metrics.port_taken")
        assert not any(child.restarts for child in cluster.children)

        def both() -> list[str]:
            return [scrape(f"127.0.0.1:{ports[name]}") for name in ("scheduler-1", "scheduler-2")]

        # What happened before it led, a leader does not count.
        await eventually(lambda: "\ngpu_platform_scheduler_leads 1.0\n" in "".join(both()), "a leader")
        job = await client.submit(JobSpec(name="j", command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
        await client.wait(job.id)
        pages = {name: scrape(f"127.0.0.1:{port}") for name, port in ports.items()}
        pages["service"] = scrape(cluster.api_url.removeprefix("http://"), cluster.headers["Authorization"])

        # Temporal's SDK, on the same ports, under its own names.
        assert "temporal_workflow_task_schedule_to_start_latency_seconds_bucket{" in pages["control-1"]
        late = r'temporal_activity_schedule_to_start_latency_seconds_bucket\{.*task_queue="node-(one|two)"'
        assert re.search(late, pages["node-one"] + pages["node-two"])
        for page in pages.values():
            assert "temporal_request" in page
            assert job.id not in page, "a job that has ended has no series"

        # One scheduler leads, and only it counts.
        def counted() -> bool:
            pages = both()
            leads = [page for page in pages if "\ngpu_platform_scheduler_leads 1.0\n" in page]
            return (
                len(leads) == 1
                and 'gpu_platform_jobs_submitted_total{kind="unknown"} 1.0' in leads[0]
                and 'gpu_platform_job_completion_seconds_count{kind="unknown"} 1.0' in leads[0]
                and "\ngpu_platform_launch_seconds_count 1.0\n" in leads[0]
                and "\ngpu_platform_feed_lag_seconds 0.0\n" in leads[0]
                and "".join(pages).count('\ngpu_platform_jobs_submitted_total{kind="unknown"} 0.0\n') == 1
            )

        await eventually(counted, "the leader, and nobody else, has counted the job")
