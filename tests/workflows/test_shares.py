"""Jobs on parts of one GPU, from their submission to their end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.share import Share, ShareMode
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.node.sharing import mig
from gpu_platform.store import Store
from tests.support.harness import Platform
from tests.support.waiting import eventually


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as running:
        yield running


async def test_tenants_have_their_mig_instances_where_the_scheduler_put_them(platform: Platform) -> None:
    share = ResourceRequest(gpus_per_host=1, share=Share(mig_profile="3g.40gb"))
    command = ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exec sleep 600"]
    jobs = [
        await platform.submit(JobSpec(command=command, gpus=share, user=user, grace_s=0)) for user in ("ada", "bob")
    ]
    nvml = platform.nodes["a"].nvml
    wanted: set[tuple[str, int | None, int | None]] = set()
    for job in jobs:
        placement = (await platform.reaches(job, JobState.RUNNING)).placement
        assert placement is not None
        [part] = placement.slices
        wanted.add((part.gpu_uuids[0], part.shares[0].mig_start, part.shares[0].mig_size))
    gpus = {uuid for uuid, _, _ in wanted}
    assert {(uuid, made.start, made.size) for uuid in gpus for made in mig.instances(nvml, uuid)} == wanted
    for job in jobs:
        await platform.signal(job, "kill")
        await platform.ends(job, JobState.CANCELLED)
    assert not [made for uuid in gpus for made in mig.instances(nvml, uuid)]
    await platform.nothing_leaked()


@pytest.mark.some(1)
@pytest.mark.parametrize("mode", [ShareMode.MPS, ShareMode.TIME_SLICE])
async def test_a_simulated_host_gives_shares_in_either_mode(platform: Platform, mode: ShareMode) -> None:
    share = ResourceRequest(gpus_per_host=1, share=Share(percent=40, memory_mib=10_000, mode=mode))
    command = ["sh", "-c", "echo limit=$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE; exec sleep 600"]
    jobs = [await platform.submit(JobSpec(command=command, gpus=share, grace_s=0)) for _ in range(2)]
    places = [(await platform.reaches(job, JobState.RUNNING)).placement for job in jobs]
    assert [part.shares[0].mode for place in places if place for part in place.slices] == [mode, mode]
    assert len({part.gpu_uuids[0] for place in places if place for part in place.slices}) == 1
    worker = platform.nodes["a"].worker
    wanted = "limit=40" if mode is ShareMode.MPS else "limit="
    key = AttemptKey(job_id=jobs[0], attempt=1)
    await eventually(lambda: worker.read_log(key, 0).data.decode().strip() == wanted, f"the rank to print {wanted}")
    for job in jobs:
        await platform.signal(job, "kill")
        await platform.ends(job, JobState.CANCELLED)
    await platform.nothing_leaked()


async def test_a_profile_that_no_gpu_has_is_refused_with_those_there_are(platform: Platform) -> None:
    unknown = ResourceRequest(gpus_per_host=1, share=Share(mig_profile="1g.12gb"))
    job = await platform.submit(JobSpec(command=["true"], gpus=unknown))
    failure = (await platform.ends(job, JobState.FAILED)).failure
    assert failure is not None
    assert "asked for a 1g.12gb of 1 GPU; no such GPU can be shared so: NVIDIA H100 80GB HBM3 has 1g.10gb" in (
        failure.message
    )
