"""Every option of submit ends in the field that it names, and the queue's commands print what the service says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_platform.domain.jobs.placement import HostCount, Reason, ReasonCode, WaitCode
from gpu_platform.domain.placing.cluster_state import ClusterState
from gpu_platform.domain.placing.promise import PromisedStart
from gpu_platform.store import Store
from gpu_platform.store.jobs import promises, queue
from gpu_platform.store.leadership import leader
from tests.support.api_server import application, served
from tests.support.command_line import run
from tests.support.store_cluster import NOW, TTL_S, Cluster

NOWHERE = "127.0.0.1:1"


@dataclass
class Service:
    url: str
    cluster: Cluster


@pytest.fixture
async def service(sqlite_store: Store) -> AsyncIterator[Service]:
    async with served(application(sqlite_store, NOWHERE)) as url:
        yield Service(url, Cluster(sqlite_store).host("a", gpus=4))


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--require leaf", "gpus.required_level", "leaf"),
        ("--gpus 2 --prefer nvlink", "gpus.preferred_level", "nvlink"),
        ("--total 24", "gpus.total", 24),
        ("--readable-by namespace", "readable_by", "namespace"),
        ("--share 25 --share-memory 20GiB", "gpus.share", {"percent": 25, "memory_mib": 20480}),
        (
            "--share 25 --share-memory 20GiB --share-mode mps",
            "gpus.share",
            {"percent": 25, "memory_mib": 20480, "mode": "mps"},
        ),
        ("--mig 1g.10gb", "gpus.share", {"mig_profile": "1g.10gb"}),
        ("--cpus 8", "gpus.cpus_per_host", 8),
        ("--ram 64GiB", "gpus.ram_mib_per_host", 65536),
        ("--gpus 2 --cpus-per-gpu 8", "gpus.cpus_per_gpu", 8),
        ("--constraint zone=a --constraint disk!=hdd|nfs", "gpus.constraints", ["zone=a", "disk!=hdd|nfs"]),
        ("--hosts-include a,b[1-4,7] --hosts-include c*", "gpus.hosts_include", ["a", "b[1-4,7]", "c*"]),
        ("--hold", "hold", True),
        ("--hosts-exclude b", "gpus.hosts_exclude", ["b"]),
        ("--gpus 2 --cpus-per-gpu 8", "gpus.cpus_per_host", 16),
        ("--gpus 2 --memory-per-gpu 64GiB", "gpus.ram_mib_per_gpu", 65536),
        ("--cuda 12.4", "gpus.cuda", "12.4"),
        ("--checkpoint-every 30m", "checkpoint.every_s", 1800),
        ("--checkpoint-keep 3", "checkpoint.keep", 3),
        ("--resume-from j-a:1/step-3", "checkpoint.resume_from", "j-a:1/step-3"),
        ("--spares 1", "spare_hosts", 1),
        ("--keep 10m", "keep_reservation_s", 600),
        ("--checkpoints", "checkpoints", True),
        ("--no-preempt", "preemptible", False),
        ("--after j-1,j-2", "after", [{"job_id": "j-1"}, {"job_id": "j-2"}]),
        ("--after-any j-1", "after", [{"job_id": "j-1", "kind": "any"}]),
        ("--after j-1 --after-fail j-2", "after", [{"job_id": "j-1"}, {"job_id": "j-2", "kind": "fail"}]),
        ("--after-array a-1", "after", [{"job_id": "a-1", "kind": "each"}]),
        ("--deadline 2026-12-01T08:00Z", "deadline_at", "2026-12-01T08:00:00Z"),
        ("--after j-1 --if-unmet hold", "if_unmet", "hold"),
        ("--time 2h --warn-before 5m", "warn_before_s", 300),
        ("--warn-signal TERM", "warn_signal", "TERM"),
        ("--hang-limit 30m", "hang_limit_s", 1800),
        ("--gpus 1 --idle-limit 1h", "idle_limit_s", 3600),
        ("--gpus 1 --power-limit 300", "power_limit_w", 300),
        ("--venv /envs/torch", "environment.venv", "/envs/torch"),
        ("--module cuda/12.4 --module openmpi", "environment.modules", ["cuda/12.4", "openmpi"]),
        ("--container docker://a/b:1", "environment.container", "docker://a/b:1"),
        ("--container /img/../srv/rootfs", "environment.container", "/srv/rootfs"),
        ("--outputs results", "environment.outputs", "results"),
    ],
)
def test_an_option_is_a_field(monkeypatch: pytest.MonkeyPatch, options: str, field: str, value: Any) -> None:
    from typer.testing import CliRunner

    from gpu_platform.cli.app import app
    from gpu_platform.client import Client
    from gpu_platform.client.wire import DryRun

    asked: list[dict[str, Any]] = []

    def remember(_: Client, spec: Any) -> DryRun:
        asked.append(spec.model_dump(mode="json", exclude_defaults=True))
        return DryRun(accepted=True, message="would start now")

    monkeypatch.setattr(Client, "dry_run", remember)
    result = CliRunner().invoke(app, ["submit", "--dry-run", *options.split(), "--", "true"])
    assert result.exit_code == 0, result.output
    found: Any = asked[0]
    for part in field.split("."):
        found = found[part]
    assert found == value


async def test_a_dry_run_tells_and_returns_1_if_it_never_would(service: Service) -> None:
    fits = await run("submit", "--dry-run", "--gpus", "2", "--allow-cross-numa", "--", "true", url=service.url)
    assert fits.code == 0, fits.err
    assert "would start now" in fits.out
    assert "a: GPU 0-1" in fits.out
    assert "CANDIDATE" in fits.out
    never = await run("submit", "--dry-run", "--json", "--gpus", "64", "--", "true", url=service.url)
    assert never.code == 1
    assert json.loads(never.out)["accepted"] is False


async def test_the_queue_says_why_each_waits(service: Service) -> None:
    assert "nobody waits" in (await run("queue", url=service.url)).err
    service.cluster.queued("first", gpus_per_host=4, user="ada")
    service.cluster.queued("second", user="bob", priority=5)
    [row] = queue.read_queue(service.cluster.store, ["first"])
    count = HostCount(code=ReasonCode.BUSY, hosts=1, asked="4 GPUs", available="2 GPUs")
    reason = Reason(
        code=WaitCode.WAITING_FOR_GPUS,
        message="needs 4 GPUs",
        counts=[count],
        next_step="a job must end",
    )
    queue.set_reasons(service.cluster.store, {row.class_key: reason}, NOW)
    epoch = leader.begin_epoch(service.cluster.store, "test", NOW)
    promise = PromisedStart("first", 1, 4e9, NOW.timestamp(), row.class_key)
    promises.write_promises(service.cluster.store, epoch, [promise], [], [], NOW)
    shown = await run("queue", url=service.url)
    assert [line.split()[:2] for line in shown.out.splitlines()[1:3]] == [["1", "second"], ["2", "first"]]
    for told in ("needs 4 GPUs", "-> a job must end", "2096-10-02"):
        assert told in shown.out
    listed = json.loads((await run("queue", "--json", url=service.url)).out)
    assert [item["job_id"] for item in listed] == ["second", "first"]
    story = (await run("jobs", "describe", "first", url=service.url)).out
    for told in ("promised: by 2096-10-02", "busy", "place 2 in the queue"):
        assert told in story


async def test_a_snapshot_is_a_file(service: Service, tmp_path: Path) -> None:
    service.cluster.running("job", {"a": [0]})
    file = tmp_path / "state.json"
    written = await run("snapshot", "-o", str(file), url=service.url)
    assert written.code == 0
    assert "1 host, 1 job with GPUs, 0 jobs in the queue" in written.err
    assert [row.job_id for row in ClusterState.model_validate_json(file.read_text()).running] == ["job"]


async def test_a_host_is_removed(service: Service) -> None:
    busy = await run("hosts", "remove", "a", url=service.url)
    assert busy.code == 4
    assert "drain it first" in busy.err
    assert (await run("drain", "a", url=service.url)).code == 0
    service.cluster.report("a", now=datetime.now(UTC))
    early = await run("hosts", "remove", "a", url=service.url)
    assert (early.code, "still reports" in early.err) == (4, True)
    service.cluster.report("a", now=datetime.now(UTC) - timedelta(seconds=TTL_S))
    assert (await run("hosts", "remove", "a", url=service.url)).code == 0
    assert (await run("hosts", "remove", "a", url=service.url)).code == 3
