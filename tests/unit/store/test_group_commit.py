"""Commits of SQLite are on disk when they return, and threads share the fsync."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_platform.domain.errors import Unavailable
from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.store import Store
from gpu_platform.store.group_commit import GroupCommit
from gpu_platform.store.jobs import jobs, queue

THREADS, EACH = 8, 4


class Disk:
    """Counts what is synced, slowly."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began: list[float] = []
        self.error: OSError | None = None
        self._lock = threading.Lock()
        self._real = os.fdatasync
        monkeypatch.setattr(os, "fdatasync", self._sync)

    def _sync(self, fd: int) -> None:
        with self._lock:
            self.began.append(time.monotonic())
        time.sleep(0.02)
        if self.error is not None:
            raise self.error
        self._real(fd)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def submit(store: Store, job_id: str) -> None:
    now = datetime.now(UTC)
    jobs.submit_job(
        store,
        job_id,
        JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1)),
        actor="ada",
        now=now,
        idempotency_key=None,
    )


def test_an_fsync_begins_after_the_commit_and_before_the_answer(sqlite_store: Store, disk: Disk) -> None:
    for number in range(3):
        asked = time.monotonic()
        submit(sqlite_store, f"j-{number}")
        assert asked < disk.began[-1] < time.monotonic()
    assert len(disk.began) == 3


def test_threads_share_fsyncs(sqlite_store: Store, disk: Disk) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda number: submit(sqlite_store, f"j-{number}"), range(THREADS * EACH)))
    assert len(disk.began) <= THREADS * EACH / 2


def test_what_nobody_was_promised_waits_for_no_disk(sqlite_store: Store, disk: Disk) -> None:
    queue.set_reasons(sqlite_store, {}, datetime.now(UTC))
    assert disk.began == []


def test_a_disk_that_failed_once_is_not_trusted_again(sqlite_store: Store, disk: Disk) -> None:
    disk.error = OSError(errno.EIO, os.strerror(errno.EIO))
    with pytest.raises(Unavailable, match="this process ends and must be started again"):
        submit(sqlite_store, "j-1")
    disk.error = None  # the kernel has forgotten what it could not write
    with pytest.raises(Unavailable, match="this process ends and must be started again"):
        submit(sqlite_store, "j-2")


def test_a_disk_is_trusted_again_when_files_can_be_opened_again(sqlite_store: Store) -> None:
    """Nothing was synced, so the kernel has forgotten nothing."""
    submit(sqlite_store, "j-1")
    commit = GroupCommit(Path(sqlite_store.url.database or ""))
    with no_more_files(), pytest.raises(Unavailable, match="Too many open files"):
        commit.wait()
    commit.wait()
    commit.close()


@contextmanager
def no_more_files() -> Iterator[None]:
    """Nobody opens a file in this block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as next_one:
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_one.fileno(), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
