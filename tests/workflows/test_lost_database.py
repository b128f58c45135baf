"""The database is lost, or restored to an older point, while jobs wait and run: they are restored from Temporal."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.client import Client

from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts
from gpu_platform.store.jobs import jobs
from gpu_platform.store.restoring import restoring
from tests.support.harness import Platform
from tests.support.older_database import replace_database
from tests.support.waiting import eventually
from workers.scheduler.job_restorer import JobRestorer


async def closed(platform: Platform, job_id: str) -> bool:
    """Whether the list of closed workflows, which Temporal writes a moment later, has this one."""
    query = f"WorkflowId = '{job_id}' AND ExecutionStatus != 'Running'"
    return (await platform.client.count_workflows(query)).count == 1


@pytest.mark.long
@pytest.mark.parametrize("older", [False, True], ids=["lost", "older"])
async def test_waiting_and_running_jobs_are_restored(
    temporal: Client, sqlite_store: Store, sqlite_template: Path, tmp_path: Path, older: bool
) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        backup = sqlite_template
        if older:
            backup = tmp_path / "backup.db"
            with sqlite3.connect(sqlite_store.url.database or "") as live, sqlite3.connect(backup) as copy:
                live.backup(copy)
        script = f"echo $$ >> {tmp_path}/pids; while [ ! -e {tmp_path}/end ]; do sleep 0.05; done"
        running = await platform.submit(JobSpec(command=["sh", "-c", script], gpus=ResourceRequest(gpus_per_host=8)))
        before = await platform.reaches(running, JobState.RUNNING)
        waiting = await platform.submit(JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)))
        await platform.reaches(waiting, JobState.QUEUED)
        replace_database(platform.store, backup)
        await platform.nodes["a"].report()
        assert hosts.list_hosts(platform.store, datetime.now(UTC))[0].state is HostState.LOST, (
            "nobody else gets its GPUs"
        )
        await platform.change_leader()

        def restored(job_id: str) -> Job | None:
            return platform.job(job_id) if restoring.rows_of(platform.store, [job_id]) else None

        after = await eventually(lambda: restored(running), "the running job to be restored")
        assert (after.state, after.attempt, after.placement) == (JobState.RUNNING, 1, before.placement)
        assert (await eventually(lambda: restored(waiting), "the waiting job to be restored")).state is JobState.QUEUED
        await platform.nodes["a"].report()
        assert hosts.list_hosts(platform.store, datetime.now(UTC))[0].state is HostState.READY
        (tmp_path / "end").touch()
        await platform.ends(running, JobState.COMPLETED)
        await platform.ends(waiting, JobState.COMPLETED, within_s=30)
        assert len((tmp_path / "pids").read_text().split()) == 1, "it was not started again"
        await platform.nothing_leaked()
        assert "job.restored" in platform.kinds(running)


async def test_jobs_that_came_and_ended_since_the_copy_are_restored_though_nothing_else_shows_that_it_is_old(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        withdrawn = await platform.record(JobSpec(command=["true"]))
        assert jobs.withdraw_submission(platform.store, withdrawn)
        await platform.begin(withdrawn, JobSpec(command=["true"]))
        await platform.workflow(withdrawn).result()
        await eventually(lambda: closed(platform, withdrawn), "its workflow to close")
        await JobRestorer(platform.store, temporal).look()
        assert not restoring.rows_of(platform.store, [withdrawn]), "it was never submitted"
        assert restoring.last_restore(platform.store, datetime.now(UTC)) is None

        backup = tmp_path / "backup.db"
        with sqlite3.connect(sqlite_store.url.database or "") as live, sqlite3.connect(backup) as copy:
            live.backup(copy)
        completed = await platform.submit(JobSpec(command=["true"]))
        failed = await platform.submit(JobSpec(command=["sh", "-c", "exit 3"], max_retries=0))
        await platform.ends(completed, JobState.COMPLETED)
        await platform.ends(failed, JobState.FAILED)
        for job_id in (completed, failed):
            await eventually(lambda job_id=job_id: closed(platform, job_id), "its workflow to close")
        replace_database(platform.store, backup)
        assert not restoring.rows_of(platform.store, [completed, failed])
        await JobRestorer(platform.store, temporal).look()
        assert platform.job(completed).state is JobState.COMPLETED
        assert (platform.job(failed).state, platform.job(failed).exit_code) == (JobState.FAILED, 3)
        assert not restoring.rows_of(platform.store, [withdrawn])
        note = restoring.last_restore(platform.store, datetime.now(UTC))
        assert note is not None
        assert note.jobs == 2


@pytest.mark.long
async def test_a_job_that_was_not_admitted_yet_is_not_taken_for_a_withdrawn_one(
    temporal: Client, sqlite_store: Store, tmp_path: Path
) -> None:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100"}) as platform:
        spec = JobSpec(command=["true"])
        withdrawn = await platform.record(spec)
        assert jobs.withdraw_submission(platform.store, withdrawn)
        await platform.begin(withdrawn, spec)
        assert (await platform.workflow(withdrawn).result())["state"] == JobState.CANCELLED
        lost = await platform.begin("j-its-row-was-lost", spec)
        await platform.change_leader()
        await eventually(lambda: restoring.rows_of(platform.store, [lost]), "the job to be restored", within_s=30)
        await platform.ends(lost, JobState.COMPLETED, within_s=30)
        assert "job.restored" in platform.kinds(lost)
        assert not restoring.rows_of(platform.store, [withdrawn])
