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
from tests.harness import Platform
from tests.older_database import replace_database
from tests.waiting import eventually


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
