"""An operator drains a single GPU: what runs on it ends by itself, nothing new comes, and its faults are healed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.hosts.gpu import Gpu
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpu_states, gpus
from tests.support.harness import Platform
from tests.support.waiting import eventually


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "l40s-4x-dual-socket"}) as running:
        yield running


def drain(platform: Platform, uuid: str) -> Gpu:
    now = datetime.now(UTC)
    return gpu_states.set_gpu_state(platform.store, uuid, GpuState.DRAINING, reason="fan", actor="op", now=now)


def now_is(platform: Platform, uuid: str, state: GpuState) -> bool:
    return gpus.get_gpu(platform.store, uuid).state is state


async def test_a_draining_gpu_finishes_its_job_and_takes_no_other(platform: Platform) -> None:
    running = JobSpec(name="first", command=["sleep", "60"], gpus=ResourceRequest(gpus_per_host=1))
    job_id = await platform.submit(running)
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    uuid = job.placement.gpu_uuids[0]
    assert drain(platform, uuid).state is GpuState.DRAINING
    idle = next(gpu.info.uuid for gpu in gpus.list_gpus(platform.store) if gpu.job_id is None)
    assert drain(platform, idle).state is GpuState.DRAINED

    everything = len(gpus.list_gpus(platform.store)) - 2
    others = [await platform.submit(running) for _ in range(everything)]
    for other in others:
        placed = await platform.reaches(other, JobState.RUNNING)
        assert placed.placement is not None
        assert not {uuid, idle} & set(placed.placement.gpu_uuids)
    assert platform.job(job_id).state is JobState.RUNNING  # nobody disturbed it

    for each in (job_id, *others):
        await platform.signal(each, "kill")
        await platform.ends(each, JobState.CANCELLED)
    assert now_is(platform, uuid, GpuState.DRAINED)
    back = gpu_states.set_gpu_state(
        platform.store, uuid, GpuState.AVAILABLE, reason=None, actor="op", now=datetime.now(UTC)
    )
    assert (back.state, back.reason) == (GpuState.AVAILABLE, None)
    await platform.nothing_leaked()


async def test_a_drained_gpu_is_healed_and_stays_drained(platform: Platform) -> None:
    gpu = gpus.list_gpus(platform.store)[0]
    drain(platform, gpu.info.uuid)
    platform.nodes[gpu.host].strike(gpu.info.index, xid=31)
    healed = await eventually(
        lambda: (g := gpus.get_gpu(platform.store, gpu.info.uuid)).reset_count == 1 and g, "the GPU to be reset"
    )
    assert (healed.state, healed.reason) == (GpuState.DRAINED, "fan")
