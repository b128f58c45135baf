"""After a fault a gang goes on with its spare, or where it is once its GPU is healed; whatever dies meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.store import Store, events
from gpu_platform.store.hosts import gpus
from gpu_platform.store.reservations import allocations
from tests.builders import ONE_GPU
from tests.support.harness import Platform
from tests.support.waiting import eventually

THREE_HOSTS = {"a": "dgx-h100", "b": "dgx-h100", "c": "dgx-h100"}


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, THREE_HOSTS) as platform:
        yield platform


def shell(script: str, **fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": ONE_GPU, "grace_s": 1, **fields})


ONCE = '[ "$GPU_PLATFORM_ATTEMPT" != 1 ] || sleep 600'
PAIR = ResourceRequest(hosts=2, gpus_per_host=8)


@pytest.mark.long
async def test_a_spare_takes_the_place_of_a_faulty_gpus_host(platform: Platform) -> None:
    job_id = await platform.submit(shell(ONCE, gpus=PAIR, spare_hosts=1))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    first, second, spare = job.placement.slices
    assert len(allocations.held_attempts(platform.store, spare.host)) == 1
    platform.nodes[first.host].strike(first.gpu_indices[0], xid=31)
    job = await platform.ends(job_id, JobState.COMPLETED)
    assert job.placement is not None
    assert (job.attempt, job.hardware_retries) == (2, 1)
    assert job.placement.hosts == [spare.host, second.host]
    kinds = platform.kinds(job_id)
    assert "queue.added" not in kinds[kinds.index("gang.reserved") :]
    await eventually(
        lambda: gpus.get_gpu(platform.store, first.gpu_uuids[0]).state is GpuState.AVAILABLE, "the GPU to be healed"
    )
    await platform.nothing_leaked()


async def test_a_spare_takes_the_place_of_a_lost_host(platform: Platform) -> None:
    job_id = await platform.submit(shell(ONCE, gpus=PAIR, spare_hosts=1))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    lost = job.placement.slices[1].host
    await platform.nodes[lost].lose()
    job = await platform.ends(job_id, JobState.COMPLETED, within_s=30)
    assert job.placement is not None
    assert job.attempt == 2
    assert lost not in job.placement.hosts
    for _ in range(2):
        await platform.nodes[lost].report()
    await platform.nothing_leaked()


async def test_a_lost_spare_stops_nobody(platform: Platform) -> None:
    gate = platform.state_dir / "gate"
    job_id = await platform.submit(shell(f"until [ -e {gate} ]; do sleep 0.05; done", gpus=PAIR, spare_hosts=1))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    spare = job.placement.slices[2].host
    await platform.nodes[spare].lose()
    await eventually(lambda: "host.lost" in _kinds_of(platform, spare), "the host to be lost")
    gate.touch()
    job = await platform.ends(job_id, JobState.COMPLETED)
    assert job.attempt == 1
    for _ in range(2):
        await platform.nodes[spare].report()
    await platform.nothing_leaked()


@pytest.mark.long
async def test_a_gang_keeps_its_place_while_its_gpu_is_reset(platform: Platform) -> None:
    gang = ResourceRequest(hosts=3, gpus_per_host=8)
    job_id = await platform.submit(shell(ONCE, gpus=gang, keep_reservation_s=60))
    job = await platform.reaches(job_id, JobState.RUNNING)
    waiting = await platform.submit(shell("true", priority=100))
    assert job.placement is not None
    part = job.placement.slices[1]
    platform.nodes[part.host].strike(part.gpu_indices[3], xid=31)
    ended = await platform.ends(job_id, JobState.COMPLETED)
    assert ended.placement is not None
    assert (ended.attempt, ended.hardware_retries) == (2, 1)
    assert ended.placement.slices == job.placement.slices
    assert gpus.get_gpu(platform.store, part.gpu_uuids[3]).reset_count == 1
    assert (await platform.ends(waiting, JobState.COMPLETED)).placement is not None
    await platform.nothing_leaked()


@pytest.mark.long
async def test_a_gang_gives_up_its_place_when_the_gpu_does_not_heal(platform: Platform) -> None:
    job_id = await platform.submit(shell(ONCE, gpus=ResourceRequest(gpus_per_host=4), keep_reservation_s=60))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    part = job.placement.slices[0]
    platform.nodes[part.host].strike(part.gpu_indices[0], xid=31, fail_resets=10)
    ended = await platform.ends(job_id, JobState.COMPLETED, within_s=60)
    assert ended.placement is not None
    assert (ended.attempt, ended.hardware_retries) == (3, 1)
    assert part.gpu_uuids[0] not in ended.placement.gpu_uuids
    # The gang gives up also when its host is drained or LOST for a moment: then the GPU's last reset is still to come.
    bad = part.gpu_uuids[0]
    await eventually(lambda: gpus.get_gpu(platform.store, bad).state is GpuState.OFFLINE, "the GPU to be OFFLINE")
    await platform.nothing_leaked()


@pytest.mark.long
@pytest.mark.parametrize("how", ["cancel", "kill", "preempt"])
async def test_a_parked_gang_can_be_told_to_leave(platform: Platform, how: str) -> None:
    job_id = await platform.submit(shell(ONCE, gpus=ResourceRequest(gpus_per_host=4), keep_reservation_s=600))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    part = job.placement.slices[0]
    platform.nodes[part.host].strike(part.gpu_indices[0], xid=31, fail_resets=1)
    await eventually(
        lambda: allocations.is_held(platform.store, AttemptKey(job_id=job_id, attempt=2)), "it to be parked"
    )
    await platform.signal(job_id, how)
    await platform.ends(job_id, JobState.COMPLETED if how == "preempt" else JobState.CANCELLED)
    await eventually(
        lambda: gpus.get_gpu(platform.store, part.gpu_uuids[0]).state is GpuState.AVAILABLE, "the GPU to be healed", 30
    )
    await platform.nothing_leaked()


@pytest.mark.long
async def test_a_terminated_parked_gang_gives_everything_back(platform: Platform) -> None:
    job_id = await platform.submit(shell(ONCE, gpus=ResourceRequest(gpus_per_host=4), keep_reservation_s=600))
    job = await platform.reaches(job_id, JobState.RUNNING)
    assert job.placement is not None
    part = job.placement.slices[0]
    platform.nodes[part.host].strike(part.gpu_indices[0], xid=31, fail_resets=1)
    await eventually(
        lambda: allocations.is_held(platform.store, AttemptKey(job_id=job_id, attempt=2)), "it to be parked"
    )
    await platform.workflow(job_id).terminate()
    await platform.reaches(job_id, JobState.FAILED, within_s=30)
    await eventually(
        lambda: gpus.get_gpu(platform.store, part.gpu_uuids[0]).state is GpuState.AVAILABLE, "the GPU to be healed", 30
    )
    await platform.nothing_leaked()


def _kinds_of(platform: Platform, host: str) -> list[str]:
    return [event.kind for event in events.read_events(platform.store, 0, 10_000) if event.host == host]
