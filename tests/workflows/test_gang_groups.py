"""Gangs of groups, totals, spares and kept reservations, on a real Temporal server with real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.jobs.rank_group import RankGroup
from gpu_platform.domain.jobs.resources import RankPer, ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from tests.builders import ONE_GPU
from tests.support.harness import Platform

TWO_HOSTS = {"a": "dgx-h100", "b": "dgx-h100"}


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, TWO_HOSTS) as platform:
        yield platform


def shell(script: str, **fields: object) -> JobSpec:
    return JobSpec.model_validate({"command": ["/bin/sh", "-c", script], "gpus": ONE_GPU, "grace_s": 5, **fields})


def log_of(platform: Platform, job_id: str, attempt: int, rank: int, host: str) -> str:
    return platform.nodes[host].worker.read_log(AttemptKey(job_id=job_id, attempt=attempt), rank).data.decode()


SAY = "echo $GPU_PLATFORM_GROUP $RANK of $WORLD_SIZE, $LOCAL_RANK of $LOCAL_WORLD_SIZE $COLOUR $CUDA_VISIBLE_DEVICES"


async def test_groups_run_their_own_programs_side_by_side(platform: Platform) -> None:
    trainer = RankGroup(name="trainer", gpus=ResourceRequest(hosts=2, gpus_per_host=2), rank_per=RankPer.GPU)
    judge = RankGroup(
        name="judge", gpus=ONE_GPU, command=["/bin/sh", "-c", f"echo judging; {SAY}"], env={"COLOUR": "red"}
    )
    job_id = await platform.submit(shell(SAY, groups=(trainer, judge), env={"COLOUR": "blue"}))
    job = await platform.ends(job_id, JobState.COMPLETED)
    assert job.placement is not None
    assert [(part.group, len(part.gpu_uuids)) for part in job.placement.slices] == [
        ("trainer", 2),
        ("trainer", 2),
        ("judge", 1),
    ]
    assert len(set(job.placement.gpu_uuids)) == 5
    first, second, third = job.placement.slices
    logs = [log_of(platform, job_id, 1, rank, first.host) for rank in (0, 1)]
    logs += [log_of(platform, job_id, 1, rank, second.host) for rank in (2, 3)]
    for rank, log in enumerate(logs):
        assert f"trainer {rank} of 5, {rank % 2} of 2 blue" in log
        assert ",".join((first if rank < 2 else second).gpu_uuids) in log
    judged = log_of(platform, job_id, 1, 4, third.host)
    assert "judging" in judged
    assert f"judge 4 of 5, 0 of 1 red {third.gpu_uuids[0]}" in judged
    await platform.nothing_leaked()


async def test_a_total_runs_uneven_slices(platform: Platform) -> None:
    job_id = await platform.submit(shell(SAY, gpus=ResourceRequest(total=11), rank_per=RankPer.GPU))
    job = await platform.ends(job_id, JobState.COMPLETED)
    assert job.placement is not None
    assert [len(part.gpu_uuids) for part in job.placement.slices] == [8, 3]
    assert "7 of 11, 7 of 8" in log_of(platform, job_id, 1, 7, job.placement.hosts[0])
    assert "8 of 11, 0 of 3" in log_of(platform, job_id, 1, 8, job.placement.hosts[1])
    await platform.nothing_leaked()


@pytest.mark.long
async def test_one_groups_failure_ends_the_whole_gang(platform: Platform) -> None:
    trainer = RankGroup(name="trainer", gpus=ResourceRequest(hosts=2, gpus_per_host=2))
    judge = RankGroup(name="judge", gpus=ONE_GPU, command=["/bin/sh", "-c", "exit 3"])
    job_id = await platform.submit(shell("sleep 600", groups=(trainer, judge)))
    job = await platform.ends(job_id, JobState.FAILED)
    assert job.exit_code == 3
    assert job.failure is not None
    assert job.failure.rank == 2
    await platform.nothing_leaked()


async def test_a_group_that_cannot_start_is_found_before_anything_runs(platform: Platform) -> None:
    judge = RankGroup(name="judge", gpus=ONE_GPU, command=["/no/such/program"])
    job_id = await platform.submit(shell("sleep 600", groups=(RankGroup(name="trainer", gpus=ONE_GPU), judge)))
    job = await platform.ends(job_id, JobState.FAILED)
    assert job.failure is not None
    assert "/no/such/program" in job.failure.message
    await platform.nothing_leaked()


async def test_a_group_that_no_host_could_hold_is_refused_by_name(platform: Platform) -> None:
    judge = RankGroup(name="judge", gpus=ResourceRequest(gpus_per_host=9))
    job_id = await platform.submit(shell("true", groups=(RankGroup(name="trainer", gpus=ONE_GPU), judge)))
    job = await platform.ends(job_id, JobState.FAILED)
    assert job.failure is not None
    assert job.failure.message.startswith("group judge asked for 9 GPUs")
