"""Windows in a real cluster whose leader is killed while they begin: nobody runs in them who may not, they end, and
what an operator drained meanwhile stays drained.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import pytest_asyncio

from gpu_platform.client import AsyncClient
from gpu_platform.domain.errors import InUse
from gpu_platform.domain.jobs.changes import JobChanges
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, HostState, JobState
from gpu_platform.domain.windows import WindowChanges, WindowRequest
from tests.support.waiting import eventually
from workers.local.cluster import ClusterConfig, LocalCluster, NodeSpec

MARGIN_S = 2.0

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(120)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    config = ClusterConfig(
        state_dir=tmp_path_factory.mktemp("cluster"),
        nodes=(NodeSpec("a", "dgx-h100"), NodeSpec("b", "dgx-h100")),
        ui=False,
        settings={
            "GPU_PLATFORM_LEASE_TTL_S": "30",
            "GPU_PLATFORM_SCHEDULER__POLICY": f'{{"window_margin_s": {MARGIN_S}}}',
        },
    )
    async with LocalCluster(config) as cluster:
        yield cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(cluster.api_url, retry_for_s=60) as client:
        yield client


async def submit(client: AsyncClient, name: str, host: str, seconds: float, **given: object) -> Job:
    spec = {
        "name": name,
        "command": ["sleep", str(seconds)],
        "gpus": ResourceRequest(gpus_per_host=8, hosts_include=(host,)),
        "grace_s": 1.0,
    }
    return await client.submit(JobSpec.model_validate(spec | given))


async def spans(client: AsyncClient, job: Job) -> list[tuple[datetime, datetime]]:
    """When the job held GPUs."""
    found, since = [], None
    async for event in client.events(job_id=job.id):
        if event.kind == "gang.reserved":
            since = event.at
        elif event.kind == "gang.released" and since is not None:
            found.append((since, event.at))
            since = None
    return found if since is None else [*found, (since, datetime.now(UTC))]


@pytest.mark.chaos
async def test_a_leader_that_dies_across_the_beginning_forgets_no_window(
    cluster: LocalCluster, client: AsyncClient
) -> None:
    endless = await submit(client, "endless", "a", 600)
    await _runs(client, endless)
    start = datetime.now(UTC) + timedelta(seconds=5)
    asked = WindowRequest(
        name="course", start_at=start, duration_s=25, hosts=("a",), namespaces=("default",), reason="an exam"
    )
    with pytest.raises(InUse, match=rf"{endless.id} may still run"):
        await client.reservations.create(asked)
    window = await client.reservations.create(asked.model_copy(update={"stop_running": True}))
    assert (await client.reservations.get("course")).to_stop == [endless.id]
    fix = await client.reservations.create(
        WindowRequest(name="fix", maintenance=True, start_at=start, duration_s=4, hosts=("b",))
    )
    with pytest.raises(InUse, match="keep the same GPUs"):
        await client.reservations.create(asked.model_copy(update={"name": "other", "stop_running": True}))

    student = await submit(client, "student", "a", 1, reservation="course", time_limit_s=4)
    short = await submit(client, "short", "b", 0.1, time_limit_s=1)
    long = await submit(client, "long", "b", 0.1, time_limit_s=60)

    await eventually(lambda: datetime.now(UTC) >= start - timedelta(seconds=1.5), "the windows are about to begin")
    for leader in cluster.schedulers:
        assert leader.pid is not None
        os.kill(leader.pid, signal.SIGKILL)

    for job in (student, short, long):
        ended = await client.wait(job.id, timeout_s=70)
        assert ended.state is JobState.COMPLETED, (job.spec.name, ended.failure)
    [studied] = await spans(client, student)
    assert studied[0] >= window.start_at
    assert studied[1] <= window.end_at
    for began, gone in await spans(client, endless):
        # A leader that is killed just before takes over within seconds, and stops it then.
        assert gone <= studied[0] or began >= window.end_at, "nobody else is there while the reservation is used"
    for began, gone in [*await spans(client, short), *await spans(client, long)]:
        assert gone <= fix.start_at or began >= fix.end_at, "nobody runs in the maintenance window"

    await client.reservations.delete("course")

    async def all_is_back() -> bool:
        states = {host.state async for host in client.hosts()}
        left = [one async for one in client.reservations.list()]
        return states == {HostState.READY} and not left

    await eventually(all_is_back, "windows that are over, and hosts that are back", within_s=30)
    await client.cancel(endless.id)
    await client.wait(endless.id, timeout_s=30)
    assert {gpu.state async for gpu in client.gpus()} == {GpuState.AVAILABLE}


async def test_an_operators_drain_outlives_the_maintenance(client: AsyncClient) -> None:
    await client.reservations.create(WindowRequest(name="fans", maintenance=True, duration_s=600, hosts=("b",)))

    async def is_drained() -> bool:
        return (await client.host("b")).state is HostState.DRAINED

    await eventually(is_drained, "the host to be drained for the maintenance", within_s=20)
    shown = await client.host("b")
    assert (shown.reason, [one.is_open for one in shown.windows]) == ("maintenance window fans", [True])
    await client.drain("b", reason="it smells of smoke")
    await client.reservations.update("fans", WindowChanges(end_at=datetime.now(UTC) + timedelta(seconds=1)))

    async def is_over() -> bool:
        return not [one async for one in client.reservations.list()]

    await eventually(is_over, "the maintenance to end", within_s=20)
    assert (await client.host("b")).state is HostState.DRAINED
    assert (await client.host("b")).reason == "it smells of smoke"
    await client.online("b")


async def test_a_deleted_window_keeps_nothing(client: AsyncClient) -> None:
    await client.reservations.create(WindowRequest(name="gone", duration_s=600, hosts=("a",), users=("somebody-else",)))
    job = await submit(client, "waits", "a", 0.1, time_limit_s=30)

    async def knows_why() -> bool:
        reason = (await client.get(job.id)).reason
        return reason is not None and reason.code == "window" and "host a is kept for an advance" in reason.next_step

    await eventually(knows_why, "the reason to name the window", within_s=20)
    await client.reservations.delete("gone")
    assert (await client.wait(job.id, timeout_s=30)).state is JobState.COMPLETED


async def test_a_job_that_runs_gets_another_time_limit(
    cluster: LocalCluster, client: AsyncClient, tmp_path: Path
) -> None:
    """Its workflow and its host go by the new one, and the program notices nothing."""
    go = tmp_path / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done"
    patient = await submit(client, "patient", "a", 0, command=["/bin/sh", "-c", script], time_limit_s=5)
    endless = await submit(client, "endless", "b", 600, time_limit_s=600)
    await _runs(client, patient)
    await _runs(client, endless)
    began = (await client.get(patient.id)).started_at
    assert began is not None
    assert (await client.update(patient.id, JobChanges(time_limit_s=300))).spec.time_limit_s == 300
    await client.update(endless.id, JobChanges(time_limit_s=1, priority=7))
    ended = await client.wait(endless.id, timeout_s=30)
    assert (ended.state, ended.spec.priority) == (JobState.FAILED, 7)
    assert ended.failure is not None
    assert "ran longer than its limit of 1 s" in ended.failure.message

    def host_knows() -> bool:
        records = [*cluster.config.state_dir.glob(f"**/{patient.id}/1/time-limit.json")]
        return [json.loads(one.read_text())["time_limit_s"] for one in records] == [300]

    await eventually(host_knows, "the host to have the new limit")
    await eventually(lambda: datetime.now(UTC) > began + timedelta(seconds=6), "the old limit to pass")
    go.touch()
    assert (await client.wait(patient.id, timeout_s=30)).state is JobState.COMPLETED


async def _runs(client: AsyncClient, job: Job) -> None:
    async def runs() -> bool:
        return (await client.get(job.id)).state is JobState.RUNNING

    await eventually(runs, "the job to run", within_s=30)
