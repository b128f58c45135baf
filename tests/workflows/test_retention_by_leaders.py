"""What is old is removed however short a leader leads, but never before jobs are restored that may need it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client

from gpu_platform.domain.contracts import CONTROL_TASK_QUEUE
from gpu_platform.domain.jobs.job import JobInput
from gpu_platform.scheduling.policy_file import read_policy
from gpu_platform.settings import SchedulerSettings
from gpu_platform.store import Store, uploads
from gpu_platform.store.uploads import UploadKey, UploadLimits, UploadPart
from tests.support.harness import LEASE_TTL_S
from tests.support.store_cluster import NOW, spec
from tests.support.waiting import eventually
from workers.scheduler import housekeeping, job_restorer
from workers.scheduler.housekeeping import Housekeeping
from workers.scheduler.retention import Retention

CODE = b"code that nobody used for long"
KEY = UploadKey("default", "ada", hashlib.sha256(CODE).hexdigest())


@pytest.fixture
def store(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """With code that may go. A leader that begins looks for such at once."""
    part = UploadPart(KEY, 0, len(CODE), CODE)
    uploads.add_part(sqlite_store, part, UploadLimits(1000, 1000), actor="ada", now=NOW)
    uploads.complete(sqlite_store, KEY)
    monkeypatch.setattr(housekeeping, "FIRST_PRUNE_S", 0.0, raising=False)
    return sqlite_store


@asynccontextmanager
async def leading(store: Store, client: Client, archive: Path) -> AsyncIterator[None]:
    """A leader of this block does its work besides deciding."""
    retention = Retention(store, SchedulerSettings(), archive, lambda: read_policy({}))
    task = asyncio.create_task(Housekeeping(store, client, LEASE_TTL_S, retention).run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def is_kept(store: Store) -> bool:
    return uploads.find_upload(store, KEY, 1000).complete


async def test_a_leader_that_is_soon_replaced_has_removed_what_is_old(
    temporal: Client, store: Store, tmp_path: Path
) -> None:
    async with leading(store, temporal, tmp_path / "archive"):
        await eventually(lambda: not is_kept(store), "the code to be removed")


async def test_nothing_is_removed_while_a_job_is_not_restored(
    temporal: Client, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database is an older copy, and no control worker says yet what the job needs."""
    monkeypatch.setattr(job_restorer, "QUERY_TIMEOUT", timedelta(seconds=1))
    lost = await temporal.start_workflow(
        "JobWorkflow", JobInput(job_id="j-lost", spec=spec()), id="j-lost", task_queue=CONTROL_TASK_QUEUE
    )
    with capture_logs() as logs:

        def looks() -> int:
            return sum(line["event"] == "job.restore_delayed" for line in logs)

        async with leading(store, temporal, tmp_path / "archive"):
            await eventually(lambda: looks() > 1, "two sweeps")
    assert is_kept(store)
    await lost.terminate()
