"""SIGKILL of every process of the platform, while jobs run and while jobs wait.

Real processes, one cluster for all cases. Every job ends as it should, once; no GPU stays taken.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.jobs.dependency import Dependency, DependencyKind
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from tests.support.lines import whole_lines
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec
from workers.local.supervision import ChildProcess

NODES = (NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100"))
SCRIPT = """
echo start >> "$OUT"
i=0; while [ $i -lt 100 ]; do i=$((i+1)); echo "line $i"; sleep 0.02; done
echo end >> "$OUT"
"""

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(180)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("cluster"),
        nodes=NODES,
        ui=False,
        # No host is lost, also if the restart of everything takes long on a busy machine.
        settings={"GPU_PLATFORM_LEASE_TTL_S": "30"},
    )
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
        yield client


def kill(child: ChildProcess) -> int:
    pid = child.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def submit_four(client: AsyncClient, directory: Path) -> list[Job]:
    """Two that fill the cluster and two that wait for them."""
    directory.mkdir()
    return [
        await client.submit(
            JobSpec(
                name=f"job-{number}",
                command=["/bin/sh", "-c", SCRIPT],
                env={"OUT": str(directory / str(number))},
                gpus=ResourceRequest(gpus_per_host=8),
                grace_s=2,
            )
        )
        for number in range(4)
    ]


async def running(client: AsyncClient, jobs: list[Job]) -> int:
    return sum([(await client.get(job.id)).state is JobState.RUNNING for job in jobs])


async def all_end_once(client: AsyncClient, jobs: list[Job], directory: Path, *, nodes_died: bool) -> None:
    for number, job in enumerate(jobs):
        ended = await client.wait(job.id, timeout_s=90)
        assert ended.state is JobState.COMPLETED, (ended.state, ended.failure)
        assert ended.attempt == 1, [(str(e.at), e.kind, e.host, e.data) async for e in client.events(job_id=job.id)]
        assert (directory / str(number)).read_text().split() == ["start", "end"]
        lines = (await client.logs(job.id)).splitlines()
        assert lines == [f"line {i}" for i in range(1, 101)], "a log line was lost or doubled"
        [used] = (await client.job_usage(job.id)).attempts
        assert (used.unmeasured_hosts, len(used.ranks)) == ([], 1), "what it used was lost"
        assert used.gpu_seconds >= used.ranks[0].gpu_seconds > 8
        # The counters of simulated GPUs begin again with their node worker: it may come back after the job's end.
        assert used.energy_j > 0 or nodes_died

    async def nothing_is_taken() -> bool:
        return {gpu.state async for gpu in client.gpus()} == {GpuState.AVAILABLE}

    await eventually(nothing_is_taken, "all GPUs to be AVAILABLE")


@pytest.mark.some(2)
@pytest.mark.parametrize("victim", ["service", "control", "scheduler", "node", "temporal"])
async def test_sigkill_while_jobs_run_and_wait(
    cluster: LocalCluster, client: AsyncClient, tmp_path: Path, victim: str
) -> None:
    jobs = await submit_four(client, tmp_path / "jobs")

    async def two_run() -> bool:
        return await running(client, jobs) == 2

    await eventually(two_run, "two jobs to run")
    children = {
        "service": [cluster.service],
        "control": cluster.controls,
        "scheduler": cluster.schedulers,
        "node": list(cluster.nodes.values()),
        "temporal": [cluster.temporal],
    }[victim]
    pids = [kill(child) for child in children]
    await all_end_once(client, jobs, tmp_path / "jobs", nodes_died=victim == "node")
    assert [child.pid for child in children] != pids


@pytest.mark.long
async def test_sigkill_of_everything_at_once(cluster: LocalCluster, client: AsyncClient, tmp_path: Path) -> None:
    jobs = await submit_four(client, tmp_path / "jobs")
    for child in cluster.children:
        kill(child)
    await all_end_once(client, jobs, tmp_path / "jobs", nodes_died=True)


@pytest.mark.long
@pytest.mark.parametrize("when", ["while the first runs", "when it has ended"])
async def test_jobs_that_wait_for_each_other_outlive_everything(
    cluster: LocalCluster, client: AsyncClient, tmp_path: Path, when: str
) -> None:
    """No process is there when the first job ends, or none that has told the second one of it."""
    order, go = tmp_path / "order", tmp_path / "go"

    def named(name: str, *after: str, kind: str = "ok", then: str = "true") -> JobSpec:
        script = f"echo {name} >> {order}; while [ ! -e {go} ]; do sleep 0.05; done; {then}"
        waits = tuple(Dependency(job_id=one, kind=DependencyKind(kind)) for one in after)
        return JobSpec(name=name, command=["/bin/sh", "-c", script], gpus=ResourceRequest(gpus_per_host=1), after=waits)

    first = await client.submit(named("first"))
    fails = await client.submit(named("fails", then="exit 3"))
    await eventually(lambda: order.exists() and len(order.read_text().split()) == 2, "both to run")
    second = await client.submit(named("second", first.id))
    third = await client.submit(named("third", second.id))
    never = await client.submit(named("never", fails.id))
    after_never = await client.submit(named("after-never", never.id, kind="fail"))
    if when == "when it has ended":
        go.touch()
    for child in cluster.children:
        kill(child)
    go.touch()
    for job, state in [
        (first, JobState.COMPLETED),
        (second, JobState.COMPLETED),
        (third, JobState.COMPLETED),
        (fails, JobState.FAILED),
        (never, JobState.CANCELLED),
        (after_never, JobState.COMPLETED),
    ]:
        ended = await client.wait(job.id, timeout_s=90)
        assert ended.state is state, (job.spec.name, ended.failure, ended.stopped_by)
    ran = order.read_text().split()
    assert sorted(ran) == ["after-never", "fails", "first", "second", "third"], "each ran once, or never"
    assert ran.index("first") < ran.index("second") < ran.index("third")


async def test_a_standby_scheduler_takes_over_in_ten_seconds(cluster: LocalCluster, client: AsyncClient) -> None:
    await client.wait(
        (await client.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))).id, timeout_s=30
    )
    leader = await eventually(lambda: _leader(cluster), "one scheduler to lead")
    kill(leader)
    killed_at = time.monotonic()
    job = await client.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
    job = await client.wait(job.id, timeout_s=30)
    assert job.state is JobState.COMPLETED
    assert time.monotonic() - killed_at < 10


async def test_a_promise_outlives_the_leader_that_gave_it(cluster: LocalCluster, client: AsyncClient) -> None:
    """The list of jobs, the queue and ``describe`` show the same date, before and after."""
    gpus = ResourceRequest(gpus_per_host=8)
    first = await client.submit(JobSpec(command=["sleep", "600"], gpus=gpus, time_limit_s=600, grace_s=1))
    await eventually(lambda: running(client, [first]), "the first job to run")
    both = gpus.model_copy(update={"hosts": 2})
    gang = await client.submit(JobSpec(command=["true"], gpus=both, time_limit_s=60))

    async def date() -> float | None:
        job = await client.get(gang.id)
        return job.reason.starts_by if job.reason else None

    promised = await eventually(date, "the gang to get a date")
    leader = await eventually(lambda: _leader(cluster), "one scheduler to lead")
    kill(leader)
    assert await date() == promised, "nobody leads, and the promise stands"
    long = await client.submit(JobSpec(command=["true"], gpus=gpus, time_limit_s=6000))

    async def explained() -> bool:
        return (await client.get(long.id)).reason is not None

    await eventually(explained, "another scheduler to lead")
    assert await date() == promised
    assert (await client.reason(gang.id)).starts_by == promised
    assert [one.reason.starts_by async for one in client.queue() if one.job_id == gang.id and one.reason] == [promised]
    for job in (long, gang, first):
        await client.kill(job.id)
        assert (await client.wait(job.id, timeout_s=60)).state is JobState.CANCELLED
    kinds = [event.kind async for event in client.events(job_id=gang.id)]
    assert "job.promise_broken" not in kinds


def _leader(cluster: LocalCluster) -> ChildProcess | None:
    """The scheduler whose log says last that it leads."""
    newest: tuple[int, ChildProcess] | None = None
    for child in cluster.schedulers:
        for line in whole_lines(child.log_file):
            if '"scheduler.leads"' in line:
                epoch = int(line.split('"epoch": ')[1].split(",")[0].rstrip("}"))
                if newest is None or epoch > newest[0]:
                    newest = (epoch, child)
    return newest[1] if newest else None


async def test_hosts_have_samples_of_the_time_before_and_after(client: AsyncClient) -> None:
    async def measured() -> bool:
        found = await client.metrics.of_host("a")
        assert found.retention_days == 30
        return found.gpus == 8 and found.power_w.count >= 8

    await eventually(measured, "samples of all GPUs", within_s=60)
