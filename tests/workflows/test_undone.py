"""Whatever fails, an attempt gives back what it took: a failed local activity is no ActivityError."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from tests.support.harness import Platform
from tests.support.store_cluster import set_job_state
from tests.support.waiting import eventually

TWO_HOSTS = {"a": "dgx-h100", "b": "dgx-h100"}
ONCE = '[ "$GPU_PLATFORM_ATTEMPT" = 2 ] || sleep 600'


def sleeper(hosts: int = 1, script: str = "sleep 600") -> JobSpec:
    return JobSpec(command=["/bin/sh", "-c", script], gpus=ResourceRequest(hosts=hosts, gpus_per_host=1), grace_s=30)


@contextlib.asynccontextmanager
async def two_hosts(temporal: Client, store: Store, directory: Path, silent: str = "") -> AsyncIterator[Platform]:
    async with Platform.start(temporal, store, directory, TWO_HOSTS, silent=set(silent)) as platform:
        yield platform


@pytest.mark.some(1)
@pytest.mark.parametrize("gang_of", [1, 2], ids=["mark_running", "mark_starting"])
async def test_a_job_that_ends_under_its_launch_leaves_neither_ranks_nor_gpus(
    temporal: Client, sqlite_store: Store, tmp_path: Path, gang_of: int
) -> None:
    """Somebody else wrote its end: the next step of the workflow is refused, and it undoes what it did."""
    async with two_hosts(temporal, sqlite_store, tmp_path, silent="ab") as platform:
        job_id = await platform.submit(sleeper(gang_of))
        await platform.reaches(job_id, JobState.ALLOCATED)
        set_job_state(platform.store, job_id, JobState.FAILED, now=datetime.now(UTC), actor="somebody")
        async with platform.listening("a"), platform.listening("b"):
            await platform.ends(job_id, JobState.FAILED)
            await platform.nothing_leaked()


@pytest.mark.long
async def test_ranks_on_a_lost_host_that_temporal_still_reaches_are_stopped_at_once(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    """Only its way to the service is cut: no report of it is answered."""
    async with two_hosts(temporal, sqlite_store, tmp_path) as platform:
        job = await platform.reaches(await platform.submit(sleeper(script=ONCE)), JobState.RUNNING)
        assert job.placement is not None
        lost = platform.nodes[job.placement.hosts[0]]
        [uuid] = job.placement.gpu_uuids
        assert lost.worker.gpu_processes(uuid)
        await lost.lose()
        await eventually(lambda: not lost.worker.gpu_processes(uuid), "the ranks on the lost host to be stopped")
        ended = await platform.ends(job.id, JobState.COMPLETED)
        assert ended.placement is not None
        assert ended.placement.hosts != [lost.name]
        await platform.nothing_leaked()


@pytest.mark.long
async def test_a_stop_that_reaches_nobody_holds_no_attempt_up(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with two_hosts(temporal, sqlite_store, tmp_path, silent="ab") as platform:
        async with platform.listening("a"), platform.listening("b"):
            job = await platform.reaches(await platform.submit(sleeper(script=ONCE)), JobState.RUNNING)
        assert job.placement is not None
        lost = platform.nodes[job.placement.hosts[0]]
        [uuid] = job.placement.gpu_uuids
        other = next(name for name in TWO_HOSTS if name != lost.name)
        async with platform.listening(other):  # the lost one takes nothing any more
            await lost.lose()
            ended = await platform.ends(job.id, JobState.COMPLETED)
            assert ended.attempt == 2
        assert AttemptKey(job_id=job.id, attempt=1) in lost.worker.attempts()
        await lost.report()
        assert not lost.worker.gpu_processes(uuid), "what the stop did not reach, the answer to its report kills"
        await platform.nothing_leaked()
