"""People see the places that the leader's order gives, head starts included."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import queue_view
from tests.support.harness import Platform
from tests.support.waiting import eventually


def job(time_limit_s: int) -> JobSpec:
    whole = ResourceRequest(gpus_per_host=8)
    return JobSpec(command=["/bin/sh", "-c", "sleep 600"], gpus=whole, time_limit_s=time_limit_s, grace_s=1)


@pytest.mark.long
async def test_a_short_job_is_shown_ahead_of_a_long_one_that_came_before(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    policy = {"order": "shortest"}
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}, policy=policy) as platform:
        runs = await platform.submit(job(900))
        await platform.reaches(runs, JobState.RUNNING)
        waiting = [await platform.submit(job(limit)) for limit in (90_000, 60)]
        long, short = waiting

        def shown() -> list[str]:
            return [one.job_id for one in queue_view.list_queue(sqlite_store, 0, 9)]

        await eventually(lambda: shown() == [short, long], "the short job is shown first")
        assert queue_view.positions(sqlite_store, waiting) == {short: 1, long: 2}
        for job_id in (runs, long, short):
            await platform.signal(job_id, "kill")
            await platform.ends(job_id, JobState.CANCELLED)
        await platform.nothing_leaked()
