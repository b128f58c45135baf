"""A host whose node worker is not there in time is asked once more: everything may have been down, Temporal too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from tests.support.harness import Platform
from tests.support.waiting import eventually
from workers import control
from workflows import policies, sandbox


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(policies.HOST_STEP, "schedule_to_start_timeout", timedelta(seconds=4))
    # The sandbox has policies of its own.
    monkeypatch.setattr(control, "workflow_runner", lambda *, checked: sandbox.workflow_runner())


async def steps(platform: Platform, job_id: str) -> list[str]:
    """The activities that were asked for so far."""
    history = await platform.workflow(job_id).fetch_history()
    scheduled = [event.activity_task_scheduled_event_attributes.activity_type.name for event in history.events]
    return [name for name in scheduled if name]


@pytest.mark.long
@pytest.mark.parametrize("comes_back", [True, False])
async def test_once_more_and_no_more(temporal: Client, sqlite_store: Store, tmp_path: Path, comes_back: bool) -> None:
    spec = JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1), max_hardware_retries=0)
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}, silent={"a"}) as platform:
        job_id = await platform.submit(spec)

        async def asked_again() -> bool:
            return (await steps(platform, job_id)).count("launch_ranks") == 2

        await eventually(asked_again, "the host to be asked a second time", within_s=40)
        if comes_back:
            async with platform.listening("a"):
                job = await platform.ends(job_id, JobState.COMPLETED)
            assert (job.attempt, job.hardware_retries) == (1, 0)
            return

        async def given_up() -> bool:
            return "stop_ranks" in await steps(platform, job_id)

        await eventually(given_up, "the attempt to be undone", within_s=40)
        assert (await steps(platform, job_id)).count("launch_ranks") == 2
        async with platform.listening("a"):
            job = await platform.ends(job_id, JobState.FAILED)
        assert job.failure is not None
        assert job.failure.message == "no node worker took launch_ranks"


@pytest.mark.long
async def test_the_next_attempt_avoids_a_host_that_takes_no_step(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    machines = {"a": "dgx-h100", "b": "dgx-h100"}
    spec = JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1))
    async with Platform.start(temporal, sqlite_store, tmp_path, machines, silent={"a"}) as platform:
        job_id = await platform.submit(spec)

        async def given_up() -> bool:
            return "stop_ranks" in await steps(platform, job_id)

        await eventually(given_up, "the attempt on the silent host to be undone", within_s=40)
        first = platform.job(job_id).placement
        assert first is not None
        assert first.hosts == ["a"]
        async with platform.listening("a"):  # it takes steps again, and could be chosen again
            job = await platform.ends(job_id, JobState.COMPLETED)
        assert (job.attempt, job.hardware_retries) == (2, 1)
        assert job.placement is not None
        assert job.placement.hosts == ["b"]
