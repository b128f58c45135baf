"""Submits jobs from several threads until it is killed; prints each id once the submission is acknowledged."""

from __future__ import annotations

import os
import sys
import threading
from datetime import UTC, datetime

from gpu_platform.domain.jobs.resources import ResourceRequest
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.store import Store
from gpu_platform.store.group_commit import GroupCommit
from gpu_platform.store.jobs import jobs

THREADS = 4


def main(url: str, mode: str) -> None:
    if mode == "unsynced":
        GroupCommit.wait = lambda self: None  # as it was with synchronous=NORMAL alone
    store = Store(url)
    store.migrate()
    spec = JobSpec(command=["true"], gpus=ResourceRequest(gpus_per_host=1))

    def submit(thread: int) -> None:
        number = 0
        while True:
            job_id = f"j-{os.getpid()}-{thread}-{number}"
            jobs.submit_job(store, job_id, spec, actor="ada", now=datetime.now(UTC), idempotency_key=job_id)
            os.write(1, f"{job_id}\n".encode())
            number += 1

    for thread in range(THREADS):
        threading.Thread(target=submit, args=(thread,)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
