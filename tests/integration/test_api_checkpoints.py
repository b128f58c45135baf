"""Checkpoints through the service: listed from the hosts that see them, warned of, resumed from, and roots tried."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_platform import clock_difference
from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import IllegalTransition, InvalidRequest
from gpu_platform.domain.hosts.lease import SavedCheckpoint
from gpu_platform.domain.jobs.checkpoint import CheckpointPolicy, Verified
from gpu_platform.domain.jobs.fencing import Fencing
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.settings import ServiceSettings
from gpu_platform.settings.service import JobDefaults
from gpu_platform.store import Store
from tests.support.api_server import application, recording, served, temporal_dev_server
from tests.support.hosts_rig import HostRig
from tests.support.store_cluster import Cluster, key
from tests.unit.node.test_checkpoint_store import write
from workers.node.http import node_app


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    with temporal_dev_server() as address:
        yield address


class Hosts:
    """Three real node workers: a and b share a root, c has its own. A job ran on a."""

    def __init__(self, store: Store, tmp_path: Path) -> None:
        self.store = store
        self.cluster = Cluster(store)
        roots = {"a": "shared", "b": "shared", "c": "own"}
        self.rigs = {
            name: HostRig(tmp_path / name, name=name, checkpoint_root=tmp_path / root) for name, root in roots.items()
        }
        self.urls: dict[str, str] = {}

    def report(self, name: str, **fields: object) -> None:
        worker = self.rigs[name].worker
        worker.checkpoints([])
        url = self.urls[name].replace("http://", "http://service:secret@")
        self.cluster.report(name, url=url, checkpoint_root=worker.checkpointing.root_id, **fields)

    async def serve(self, stack: AsyncExitStack) -> None:
        for name, rig in self.rigs.items():
            self.urls[name] = await stack.enter_async_context(served(node_app(rig.worker, "secret")))
            self.report(name)


@pytest.fixture
async def hosts(sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Hosts]:
    async with AsyncExitStack() as stack:
        found = Hosts(sqlite_store, tmp_path)
        await found.serve(stack)
        yield found
        for rig in found.rigs.values():
            await rig.aclose()


@pytest.fixture
async def client(hosts: Hosts, temporal: str) -> AsyncIterator[AsyncClient]:
    defaults = ServiceSettings(job_defaults=JobDefaults(max_retries=3, checkpoint_every_s=1800))
    app = application(hosts.store, temporal, service=defaults)
    async with recording(temporal), served(app) as url, AsyncClient(url) as client:
        yield client


async def test_checkpoints_are_listed_and_chosen(hosts: Hosts, client: AsyncClient, tmp_path: Path) -> None:
    hosts.cluster.running("ran", {"a": [0]})
    hosts.report(
        "a", attempts=[key("ran")], checkpoints=[SavedCheckpoint(key=key("ran"), written_at=5.0, name="step-1")]
    )
    write(tmp_path / "shared", "ran/1/step-10", 100.0)
    (write(tmp_path / "shared", "ran/1/step-20", 200.0) / "state").write_text("damaged")
    found = await client.checkpoints("ran", verify=True)
    assert [(one.label, one.step, one.hosts, one.complete, one.verified) for one in found] == [
        ("1/step-10", 10, ["a", "b"], True, Verified.HASHES),
        ("1/step-20", 20, ["a", "b"], False, None),
    ]
    spec = JobSpec(command=["true"], checkpoint=CheckpointPolicy(resume_from="ran:1/step-10"))
    assert (await client.submit(spec)).spec.checkpoint.resume_from == "ran:1/step-10"
    for wrong, why in (("none", "there is no job 'none'"), ("ran:7", "ran had 1 attempts")):
        bad = spec.model_copy(update={"checkpoint": CheckpointPolicy(resume_from=wrong)})
        with pytest.raises(InvalidRequest, match=why):
            await client.submit(bad)
        assert why in (await client.dry_run(bad)).message
    with pytest.raises(InvalidRequest, match="in another namespace than 'lab'"):
        await client.submit(spec.model_copy(update={"namespace": "lab"}))
    hosts.cluster.queued("waits")
    nobody = "job waits is QUEUED, so there is no program to ask for a checkpoint: ask again once it is RUNNING"
    with pytest.raises(IllegalTransition, match=nobody):
        await client.ask_for_checkpoint("waits")
    # Where nobody answers, the last that was told is shown.
    hosts.urls["a"] = hosts.urls["b"] = "http://127.0.0.1:1"
    hosts.report("a")
    hosts.report("b")
    [one] = await client.checkpoints("ran")
    assert (one.label, one.complete, one.problem) == (
        "1/step-1",
        False,
        "host a does not answer: this is the newest that it reported",
    )


async def test_who_goes_on_from_checkpoints_is_warned_where_they_are_not_shared(
    hosts: Hosts, client: AsyncClient
) -> None:
    spec = JobSpec(command=["true"], checkpoints=True)
    job = await client.submit(spec)
    [warning] = job.warnings
    assert "a retry elsewhere starts at zero: each of these groups has its own root: a, b; c." in warning
    assert (await client.dry_run(spec)).warnings == [warning]
    assert (await client.get(job.id)).warnings == [warning]
    hosts.cluster.report("c", checkpoint_root=hosts.rigs["a"].worker.checkpointing.root_id)
    assert (await client.get(job.id)).warnings == []


async def test_what_is_accepted_but_risky_or_slow_is_said(hosts: Hosts, client: AsyncClient) -> None:
    risky = JobSpec(
        command=["true"], fencing=Fencing.RELAXED, gpus=ResourceRequest(gpus_per_host=2, allow_cross_numa=True)
    )
    warnings = " | ".join((await client.dry_run(risky)).warnings)
    assert "two attempts may run" in warnings
    assert "slower than PCIe or NVLink" in warnings
    harmless = " | ".join((await client.dry_run(JobSpec(command=["true"]))).warnings)
    assert "two attempts" not in harmless
    assert "PCIe" not in harmless


async def test_what_a_job_does_not_say_the_cluster_says(client: AsyncClient) -> None:
    job = await client.submit(JobSpec(command=["true"]))
    assert (job.spec.max_retries, job.spec.checkpoint.every_s) == (3, 1800)
    own = JobSpec(command=["true"], max_retries=0, checkpoint=CheckpointPolicy(every_s=60))
    job = await client.submit(own)
    assert (job.spec.max_retries, job.spec.checkpoint.every_s) == (0, 60)


async def test_clocks_of_hosts_are_compared_with_the_services(
    hosts: Hosts, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = await client.clocks()
    assert [(one.kind, one.name, one.problem) for one in clocks] == [("host", name, None) for name in "abc"]
    assert max(one.at_least_s for one in clocks) == 0.0
    hosts.urls["b"] = "http://127.0.0.1:1"
    hosts.report("b")
    behind = SimpleNamespace(time=lambda: time.time() - 30.0, monotonic=time.monotonic)
    monkeypatch.setattr(clock_difference, "time", behind)
    a, b, c = await client.clocks()
    assert (b.ahead_s, b.problem) == (None, "host b does not answer")
    for one in (a, c):
        assert one.ahead_s == pytest.approx(30.0, abs=1.0)
        assert 29.0 < one.at_least_s <= 30.0


async def test_hosts_that_say_they_share_a_root_are_put_to_the_test(hosts: Hosts, client: AsyncClient) -> None:
    roots = await client.check_checkpoint_roots()
    assert sorted((one.hosts, one.problem) for one in roots) == [(["a", "b"], None), (["c"], None)]
    hosts.cluster.report(
        "c",
        url=hosts.urls["c"].replace("http://", "http://service:secret@"),
        checkpoint_root=hosts.rigs["a"].worker.checkpointing.root_id,
    )
    [one] = await client.check_checkpoint_roots()
    assert one.problem is not None
    assert "they report one identity, but c do not see what a writes" in one.problem
