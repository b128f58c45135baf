"""One of the two databases is restored to an older point while jobs went on: no job is forgotten, none runs twice."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client

from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.states import HostState, JobState
from gpu_platform.store import Store
from gpu_platform.store.hosts import hosts
from gpu_platform.store.restoring import restoring
from tests.support.harness import Platform
from tests.support.waiting import eventually


@pytest.fixture
async def platform(temporal: Client, sqlite_store: Store, tmp_path: Path) -> AsyncIterator[Platform]:
    async with Platform.start(temporal, sqlite_store, tmp_path, {"a": "dgx-h100", "b": "dgx-h100"}) as platform:
        yield platform


class Jobs:
    """Programs that run until a file of their name lets them end, and write down each start."""

    def __init__(self, platform: Platform, directory: Path) -> None:
        self.platform = platform
        self.directory = directory

    async def submit(self, name: str, gpus: int, *, exit_codes: str = "0 0", retries: int = 0) -> str:
        """``exit_codes``: of the first attempt and of all others. Attempt N waits for the file ``NAME-N``."""
        script = (
            f"set -- {exit_codes}; echo {name}-$GPU_PLATFORM_ATTEMPT >> {self.directory}/starts; "
            f"while [ ! -e {self.directory}/{name}-$GPU_PLATFORM_ATTEMPT ]; do sleep 0.05; done; "
            'if [ "$GPU_PLATFORM_ATTEMPT" = 1 ]; then exit $1; else exit $2; fi'
        )
        request = ResourceRequest(gpus_per_host=gpus)
        spec = JobSpec(name=name, command=["sh", "-c", script], gpus=request, max_retries=retries, grace_s=0.2)
        return await self.platform.submit(spec)

    def let_end(self, *names: str) -> None:
        for name in names:
            (self.directory / name).touch()

    def starts(self) -> list[str]:
        return sorted((self.directory / "starts").read_text().split())

    async def runs(self, job_id: str, attempt: int) -> Job:
        def there() -> Job | None:
            job = self.platform.job(job_id)
            return job if (job.state, job.attempt) == (JobState.RUNNING, attempt) else None

        return await eventually(there, f"{job_id} to run in attempt {attempt}")


def copied(source: str, target: str) -> None:
    with sqlite3.connect(source) as old, sqlite3.connect(target) as new:
        old.backup(new)
    old.close()
    new.close()


async def report(platform: Platform) -> None:
    for node in platform.nodes.values():
        await node.report()


@pytest.mark.long
async def test_an_older_row_is_brought_up_to_date(platform: Platform, tmp_path: Path) -> None:
    jobs = Jobs(platform, tmp_path)
    backup, live = str(tmp_path / "backup.db"), platform.store.url.database or ""
    ends = await jobs.submit("ends", 8)
    retried = await jobs.submit("retried", 4, exit_codes="3 0", retries=1)
    fails = await jobs.submit("fails", 4, exit_codes="4 0")
    for job_id in (ends, retried, fails):
        await jobs.runs(job_id, 1)
    waits = await jobs.submit("waits", 8)
    passes = await jobs.submit("passes", 4)
    for job_id in (waits, passes):
        await platform.reaches(job_id, JobState.QUEUED)
    copied(live, backup)

    jobs.let_end("ends-1", "retried-1", "fails-1", "passes-1")
    await platform.ends(ends, JobState.COMPLETED)
    before = await jobs.runs(waits, 1)
    await platform.ends(fails, JobState.FAILED)
    await platform.ends(passes, JobState.COMPLETED)
    retry = await jobs.runs(retried, 2)
    later = await jobs.submit("later", 4)
    jobs.let_end("later-1")
    await platform.ends(later, JobState.COMPLETED)
    runs = await jobs.submit("runs", 4)
    await jobs.runs(runs, 1)
    last = await jobs.submit("last", 8)
    await platform.reaches(last, JobState.QUEUED)

    copied(backup, live)
    await report(platform)
    assert {host.state for host in hosts.list_hosts(platform.store, datetime.now(UTC))} == {HostState.LOST}
    await platform.change_leader()
    assert (await jobs.runs(retried, 2)).placement == retry.placement
    assert (await jobs.runs(waits, 1)).placement == before.placement
    ended = {ends: JobState.COMPLETED, passes: JobState.COMPLETED, fails: JobState.FAILED, later: JobState.COMPLETED}
    await eventually(lambda: len(restoring.rows_of(platform.store, [later, runs, last])) == 3, "jobs that had no row")
    for job_id, state in ended.items():
        await platform.reaches(job_id, state)
    assert (platform.job(fails).exit_code, platform.job(fails).attempt) == (4, 1)
    await jobs.runs(runs, 1)
    await report(platform)
    assert {host.state for host in hosts.list_hosts(platform.store, datetime.now(UTC))} == {HostState.READY}
    jobs.let_end("waits-1", "runs-1", "last-1", "retried-2")
    for job_id in (waits, retried, runs, last):
        await platform.ends(job_id, JobState.COMPLETED)
    assert platform.job(retried).user_retries == 1
    assert jobs.starts() == sorted(
        ["ends-1", "retried-1", "retried-2", "fails-1", "passes-1", "waits-1", "later-1", "runs-1", "last-1"]
    )
    await platform.nothing_leaked()
    note = restoring.last_restore(platform.store, datetime.now(UTC))
    assert note is not None
    restored = {job_id for job_id in (*ended, retried, waits, runs, last) if platform.events(job_id, "job.restored")}
    assert len(restored) == 8
    assert 1 <= note.jobs <= 8, "the next step of a job may bring its row up before the leader does"


async def test_a_step_of_the_workflow_brings_its_row_up_to_date_without_the_leader(
    platform: Platform, tmp_path: Path
) -> None:
    """Only the row is older, and nothing else shows it: the leader does not look again in this test."""
    jobs = Jobs(platform, tmp_path)
    backup, live = str(tmp_path / "backup.db"), platform.store.url.database or ""
    completes = await jobs.submit("completes", 4)
    retried = await jobs.submit("retried", 4, exit_codes="3 0", retries=1)
    await platform.reaches(retried, JobState.QUEUED, JobState.ALLOCATED, JobState.STARTING, JobState.RUNNING)
    copied(live, backup)
    await jobs.runs(completes, 1)
    await jobs.runs(retried, 1)
    jobs.let_end("retried-1")
    await jobs.runs(retried, 2)
    copied(backup, live)
    jobs.let_end("completes-1", "retried-2")
    for job_id, attempts in ((completes, 1), (retried, 2)):
        ended = await platform.ends(job_id, JobState.COMPLETED, within_s=60)
        assert ended.attempt == attempts
    assert jobs.starts() == ["completes-1", "retried-1", "retried-2"]
    await platform.nothing_leaked()


async def test_an_older_workflow_learns_that_its_attempt_runs(platform: Platform, tmp_path: Path) -> None:
    """Temporal is restored to before a gang was launched. One rank has ended since, the other runs."""
    script = f"echo $RANK >> {tmp_path}/starts; while [ ! -e {tmp_path}/end-$RANK ]; do sleep 0.05; done"
    spec = JobSpec(command=["sh", "-c", script], gpus=ResourceRequest(hosts=2, gpus_per_host=1))
    job_id = await platform.submit(spec)
    await platform.reaches(job_id, JobState.RUNNING)
    (tmp_path / "end-0").touch()
    first = (platform.job(job_id).placement or pytest.fail("no placement")).hosts[0]
    await eventually(lambda: not platform.nodes[first].worker.attempts(), "the first rank's host to be done")
    await restored_to_before(platform, job_id, "launch_ranks")
    await eventually(lambda: watched(platform, job_id), "the older workflow to watch the rank that runs")
    assert platform.job(job_id).state is JobState.RUNNING
    (tmp_path / "end-1").touch()
    ended = await platform.ends(job_id, JobState.COMPLETED)
    assert ended.attempt == 1
    assert sorted((tmp_path / "starts").read_text().split()) == ["0", "1"]
    await platform.nothing_leaked()


@pytest.mark.long
async def test_an_older_workflow_of_an_attempt_that_is_over_begins_again(platform: Platform, tmp_path: Path) -> None:
    jobs = Jobs(platform, tmp_path)
    retried = await jobs.submit("retried", 4, exit_codes="3 0", retries=1)
    await jobs.runs(retried, 1)
    jobs.let_end("retried-1")
    await jobs.runs(retried, 2)
    await restored_to_before(platform, retried, "mark_running")
    await jobs.runs(retried, 3)  # the second was stopped
    jobs.let_end("retried-3")
    ended = await platform.ends(retried, JobState.COMPLETED)
    assert (ended.attempt, ended.user_retries, ended.hardware_retries) == (3, 1, 1)
    assert jobs.starts() == ["retried-1", "retried-2", "retried-3"]
    await platform.nothing_leaked()


async def restored_to_before(platform: Platform, job_id: str, step: str) -> None:
    """The job's workflow forgets its first ``step`` and all after it."""
    last_task = 0
    async for event in platform.workflow(job_id).fetch_history_events():
        scheduled = event.activity_task_scheduled_event_attributes.activity_type.name
        marked = event.marker_recorded_event_attributes
        if step == scheduled or any(step in str(given) for given in marked.details.values()):
            break
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            last_task = event.event_id
    await platform.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=platform.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=job_id),
            workflow_task_finish_event_id=last_task,
            request_id=uuid.uuid4().hex,
        )
    )


async def watched(platform: Platform, job_id: str) -> bool:
    described = await platform.workflow(job_id).describe()
    pending = described.raw_description.pending_activities
    return any(one.activity_type.name == "watch_ranks" for one in pending)
