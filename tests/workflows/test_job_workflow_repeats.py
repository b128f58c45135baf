"""What is true however often a step is tried: a node worker may die after any of them and before it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.testing import ActivityEnvironment

from activities.node.launch import LaunchActivities
from activities.node.watch import RankWatcher
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import HostPlan, LaunchRequest, RankSpec, StopRequest
from gpu_platform.domain.jobs.blame import FailureKind
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import GpuState, JobState
from gpu_platform.node.system.lease_file import Lease, write_lease
from gpu_platform.node.system.records import boot_clock_s
from gpu_platform.store import Store
from gpu_platform.store.hosts import gpus
from tests.support.harness import Platform
from tests.support.waiting import eventually


@pytest.fixture
async def platform(temporal: Client, tmp_path: Path) -> AsyncIterator[Platform]:
    store = Store(f"sqlite:///{tmp_path / 'platform.db'}")
    store.migrate()
    async with started(temporal, store, tmp_path) as platform:
        yield platform
    store.close()


def started(client: Client, store: Store, directory: Path):
    return Platform.start(client, store, directory, {"a": "dgx-h100"})


@pytest.mark.parametrize("pause_s", [0.0, 0.2])
async def test_a_launch_that_is_repeated_after_its_job_ended_runs_nothing_again(
    platform: Platform, pause_s: float
) -> None:
    """Its answer was lost with the node worker: the next one finds the attempt done, and closed."""
    node = platform.nodes["a"]
    uuid = gpus.list_gpus(platform.store)[0].info.uuid
    ran = platform.state_dir / "ran"
    plan = HostPlan(
        key=AttemptKey(job_id="j-repeated", attempt=1),
        host="a",
        user="ada",
        namespace="default",
        gpu_uuids=[uuid],
        command=["/bin/sh", "-c", f"echo x >> {ran}; sleep {pause_s}"],
        ranks=[RankSpec(rank=0, local_rank=0, gpu_uuids=[uuid])],
    )
    watcher = RankWatcher(node.worker, node.faults)
    launching = LaunchActivities(node.worker, watcher)
    for _ in range(3):
        launched = await ActivityEnvironment().run(launching.launch_ranks, LaunchRequest(plan=plan))
        await eventually(lambda: not node.worker.gpu_processes(uuid), "the rank to end")
    assert launched.ended is not None
    assert launched.ended.first_failure is None
    assert ran.read_text() == "x\n"


async def test_a_launch_waits_for_the_lease_of_its_host(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control plane is away for a moment just when a gang starts: the attempt goes on."""
    node = platform.nodes["a"]
    lease = platform.state_dir / "lease"
    monkeypatch.setattr(node.worker._launcher, "_lease", str(lease))
    uuid = gpus.list_gpus(platform.store)[0].info.uuid

    def plan(job_id: str, term: int) -> HostPlan:
        return HostPlan(
            key=AttemptKey(job_id=job_id, attempt=1),
            host="a",
            user="ada",
            namespace="default",
            gpu_uuids=[uuid],
            command=["true"],
            ranks=[RankSpec(rank=0, local_rank=0, gpu_uuids=[uuid])],
            term=term,
        )

    def answered(for_s: float, term: int) -> None:
        until = boot_clock_s() + for_s
        write_lease(str(lease), Lease(until, until, term))

    answered(-1, term=7)
    launching = LaunchActivities(node.worker, RankWatcher(node.worker, node.faults))
    waits = asyncio.create_task(
        ActivityEnvironment().run(launching.launch_ranks, LaunchRequest(plan=plan("j-waits", term=8)))
    )
    await asyncio.wait([waits], timeout=0.3)
    assert not waits.done()
    answered(60, term=7)  # it has not heard yet that it was LOST, and that the launch was planned after that
    await asyncio.wait([waits], timeout=0.3)
    assert not waits.done()
    answered(60, term=8)
    assert (await waits).ranks
    with pytest.raises(HostUnavailable, match="declared LOST since the launch was planned"):
        await ActivityEnvironment().run(launching.launch_ranks, LaunchRequest(plan=plan("j-late", term=7)))


async def test_a_fault_excuses_only_the_job_that_it_struck(platform: Platform) -> None:
    """A user's failure on a GPU that was healed a moment ago is still the user's."""
    whole = ResourceRequest(gpus_per_host=8)
    first = await platform.submit(JobSpec(command=["sleep", "600"], gpus=whole, max_hardware_retries=0, grace_s=1))
    job = await platform.reaches(first, JobState.RUNNING)
    assert job.placement is not None
    platform.nodes["a"].strike(0, xid=31)
    struck = await platform.ends(first, JobState.FAILED)
    assert struck.failure is not None
    assert (struck.failure.kind, struck.failure.xid) == (FailureKind.HARDWARE, 31)

    def healed() -> bool:
        return all(gpu.state is GpuState.AVAILABLE for gpu in gpus.list_gpus(platform.store))

    await eventually(healed, "the GPU to be healed")
    second = await platform.submit(JobSpec(command=["/bin/sh", "-c", "sleep 0.2; exit 3"], gpus=whole))
    job = await platform.ends(second, JobState.FAILED)
    assert job.failure is not None
    assert (job.failure.kind, job.hardware_retries, job.attempt) == (FailureKind.USER, 0, 1)
    await platform.nothing_leaked()


async def test_ranks_that_the_platform_itself_killed_are_not_the_users_failure(platform: Platform) -> None:
    """A host that comes back from the dead kills its ranks, maybe before the workflow hears that it was lost."""
    spec = JobSpec(
        command=["/bin/sh", "-c", '[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600'],
        grace_s=1,
        gpus=ResourceRequest(gpus_per_host=1),
    )
    job = await platform.reaches(await platform.submit(spec), JobState.RUNNING)
    key = AttemptKey(job_id=job.id, attempt=1)
    await platform.nodes["a"].worker.stop(StopRequest(key=key, host="a", grace_s=0, reason="stale: released meanwhile"))
    # The only host is avoided at first: as long as EXCLUSION_PATIENCE.
    retried = await eventually(
        lambda: (now := platform.job(job.id)).hardware_retries and now, "the attempt to be charged to the hardware"
    )
    assert (retried.state, retried.user_retries) == (JobState.QUEUED, 0)
    await platform.signal(job.id, "kill")
    await platform.ends(job.id, JobState.CANCELLED)
    await platform.nothing_leaked()
