"""A fault that is delivered late: it stops the job that had it, and no other one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.hosts.gpu import Gpu
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.node.system.paths import node_dir
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus
from tests.support.harness import Platform
from tests.support.waiting import eventually
from workers.node.fault_outbox import FaultOutbox

ALL = ResourceRequest(gpus_per_host=8)
SLEEPER = JobSpec(command=["sleep", "600"], gpus=ALL, grace_s=0.2)


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    """Its host finds the empty file of a fault that a power cut left."""
    left = node_dir(tmp_path, "a") / "faults" / "left.json"
    left.parent.mkdir(parents=True)
    left.touch()
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        yield platform


class Away:
    """Temporal, for a host that does not reach it. What workers of this test need goes another way."""

    def __init__(self) -> None:
        self.asked = 0

    def get_workflow_handle(self, workflow_id: str) -> Away:
        return self

    async def signal(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")

    start_workflow = signal


def gpu_2(platform: Platform) -> Gpu:
    return next(gpu for gpu in gpus.list_gpus(platform.store) if gpu.info.index == 2)


@pytest.mark.some(1)
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_fault_that_is_delivered_late_does_not_stop_the_next_job(platform: Platform, restarts: bool) -> None:
    """``restarts``: the next node worker delivers it."""
    node, away = platform.nodes["a"], Away()
    first = await platform.submit(SLEEPER)
    await platform.reaches(first, JobState.RUNNING)
    client, node.faults.client = node.faults.client, away  # type: ignore[assignment]
    node.strike(2, xid=39)  # the job gets another attempt, and the GPU is not reset: that would stop whoever is there
    await eventually(lambda: away.asked > 0, "the fault to wait for Temporal")
    await platform.signal(first, "kill")
    await platform.ends(first, JobState.CANCELLED)
    following = await platform.submit(SLEEPER)
    await platform.reaches(following, JobState.RUNNING)
    if restarts:  # it knows only what is on disk
        node.faults = FaultOutbox(node._home / "faults", client, node.worker, reset_attempts=2)
        delivering = asyncio.create_task(node.faults.run())
    else:
        node.faults.client = client
        delivering = None
    await eventually(lambda: not list((node._home / "faults").glob("*.json")), "the fault to be delivered", 20)
    await asyncio.sleep(2.0)
    job = platform.job(following)
    assert (job.state, job.attempt) == (JobState.RUNNING, 1)
    await platform.signal(following, "kill")
    await platform.ends(following, JobState.CANCELLED)
    if delivering is not None:
        delivering.cancel()


async def test_a_rank_that_a_fault_ended_is_not_told_before_the_fault(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    """The node worker that saw the fault could not deliver it, and the next one finds that the rank has ended."""
    gone = tmp_path / "gone"
    program = f'[ "$GPU_PLATFORM_ATTEMPT" = 1 ] || exit 0; while [ ! -e {gone} ]; do sleep 0.05; done; exit 3'
    spec = JobSpec(command=["/bin/sh", "-c", program], gpus=ALL, grace_s=0.2)
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}, silent={"a"}) as platform:
        node, away = platform.nodes["a"], Away()
        async with platform.listening("a"):
            job_id = await platform.submit(spec)
            await platform.reaches(job_id, JobState.RUNNING)
            node.faults.client = away  # type: ignore[assignment]
            node.strike(2, xid=39)
            await eventually(lambda: away.asked > 0, "the fault to wait for Temporal")
        gone.touch()
        node.faults = FaultOutbox(node._home / "faults", away, node.worker, reset_attempts=2)  # type: ignore[arg-type]
        delivering = asyncio.create_task(node.faults.run())
        async with platform.listening("a"):
            await asyncio.sleep(2.0)
            job = platform.job(job_id)
            assert (job.state, job.attempt) == (JobState.RUNNING, 1), "the fault is on its way"
            node.faults.client = platform.client
            job = await platform.ends(job_id, JobState.COMPLETED)
        assert (job.attempt, job.hardware_retries, job.user_retries) == (2, 1, 0)
        delivering.cancel()


@pytest.mark.long
async def test_a_reset_for_a_late_fault_waits_until_the_next_job_has_ended(platform: Platform) -> None:
    """The host was cut off when the fault came."""
    node, away = platform.nodes["a"], Away()
    first = await platform.submit(SLEEPER)
    await platform.reaches(first, JobState.RUNNING)
    client, node.faults.client = node.faults.client, away  # type: ignore[assignment]
    node.strike(2, xid=48)
    await eventually(lambda: away.asked > 0, "the fault to wait for Temporal")
    await platform.signal(first, "kill")
    await platform.ends(first, JobState.CANCELLED)
    following = await platform.submit(SLEEPER)
    await platform.reaches(following, JobState.RUNNING)
    left = platform.state_dir / "left"
    left.mkdir()
    for path in (node._home / "faults").glob("*.json"):  # as if it had come a minute before
        fault = json.loads(path.read_text())
        assert fault["fault"]["action"] == "reset"
        fault["fault"]["at_ms"] -= 60_000
        (left / path.name).write_text(json.dumps(fault))
    delivering = asyncio.create_task(FaultOutbox(left, client, node.worker, reset_attempts=2).run())
    await eventually(lambda: gpu_2(platform).state is GpuState.RESETTING, "the GPU to get no more jobs", 20)
    await asyncio.sleep(3.0)
    job = platform.job(following)
    assert (job.state, job.attempt) == (JobState.RUNNING, 1)
    assert gpu_2(platform).reset_count == 0
    delivering.cancel()
    await platform.signal(following, "kill")
    await platform.ends(following, JobState.CANCELLED)
    await eventually(lambda: gpu_2(platform).state is GpuState.AVAILABLE, "the GPU to be healed", 40)


async def test_a_file_of_a_fault_that_a_power_cut_left_empty_stops_nothing(platform: Platform) -> None:
    node = platform.nodes["a"]
    job_id = await platform.submit(
        JobSpec(command=["sh", "-c", '[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600'], gpus=ALL)
    )
    await platform.reaches(job_id, JobState.RUNNING)
    node.strike(2, xid=31)
    await platform.ends(job_id, JobState.COMPLETED, within_s=30)
    assert not list((node._home / "faults").glob("*.json"))
