"""What must be true of a cluster whatever was done to it, read from its store, Temporal, and the machine."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.contrib.pydantic import pydantic_data_converter

from gpu_platform.domain.job import Job, JobEvent, JobSpec
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, allocations, events, jobs, queue
from workers.cluster import LocalCluster

CLOSED_AS = {
    JobState.COMPLETED: WorkflowExecutionStatus.COMPLETED,
    JobState.CANCELLED: WorkflowExecutionStatus.COMPLETED,
    JobState.FAILED: WorkflowExecutionStatus.FAILED,
}


class Ledger:
    """A file to which every rank appends ``job attempt rank`` when it begins."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def spec(self, script: str, **fields: object) -> JobSpec:
        note = f'echo "$GPU_PLATFORM_JOB_ID $GPU_PLATFORM_ATTEMPT $RANK" >> "{self._path}"; '
        return JobSpec.model_validate({"command": ["/bin/sh", "-c", note + script], "grace_s": 1, **fields})

    def runs(self) -> Counter[tuple[str, int, int]]:
        """How often each rank of each attempt began."""
        lines = (line.split() for line in self._path.read_text().splitlines())
        return Counter((job_id, int(attempt), int(rank)) for job_id, attempt, rank in lines)


class Truth:
    """A cluster's store and Temporal, opened directly: no process of the platform stands in between."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.store = Store(cluster.database_url)

    async def temporal(self) -> Client:
        return await Client.connect(self._cluster.temporal_address, data_converter=pydantic_data_converter)

    def close(self) -> None:
        self.store.close()

    def jobs(self, job_ids: Collection[str]) -> list[Job]:
        return [jobs.get_job(self.store, job_id) for job_id in job_ids]

    async def open_jobs(self, job_ids: Collection[str]) -> dict[str, str]:
        """Jobs that are not terminal in the store, or whose workflow is open or closed in another way."""
        limit = asyncio.Semaphore(16)
        temporal = await self.temporal()

        async def check(job: Job) -> str | None:
            async with limit:
                status = (await temporal.get_workflow_handle(job.id).describe()).status
            if not job.state.is_terminal or status is not CLOSED_AS[job.state]:
                return f"{job.state} in the store, {status.name if status else None} in Temporal; {job.failure}"
            return None

        found = await asyncio.to_thread(self.jobs, job_ids)
        answers = await asyncio.gather(*[check(job) for job in found])
        return {job.id: answer for job, answer in zip(found, answers, strict=True) if answer}

    def violations(self, ledger: Ledger) -> list[str]:
        """Of what holds once every job has ended."""
        found = [f"{key} ran {count} times" for key, count in ledger.runs().items() if count > 1]
        found += double_holds(self.events())
        found += [f"{key} still holds GPUs" for key in allocations.held_attempts(self.store)]
        found += [f"{row.job_id} still waits" for row in queue.read_queue(self.store)]
        found += [f"process {pid} of {attempt} lives" for pid, attempt in self.ranks_alive().items()]
        return found

    def events(self) -> Iterator[JobEvent]:
        after = 0
        while batch := events.read_events(self.store, after):
            yield from batch
            after = batch[-1].seq

    def ranks_alive(self) -> dict[int, str]:
        """Processes that carry an attempt of this cluster in their environment."""
        home = str(self._cluster.config.state_dir)
        found: dict[int, str] = {}
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                try:
                    pairs = Path(entry.path, "environ").read_bytes().decode(errors="replace").split("\0")
                except OSError:  # gone meanwhile
                    continue
                environ = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
                if environ.get("GPU_PLATFORM_NODE_DIR", "").startswith(home):
                    found[int(entry.name)] = environ.get("GPU_PLATFORM_ATTEMPT_ID", "?")
        return found


def double_holds(log: Iterable[JobEvent]) -> list[str]:
    """GPUs that the event log gives to an attempt while another one has them, or that are never given back."""
    holder: dict[str, str] = {}
    found: list[str] = []
    for event in log:
        attempt = f"{event.job_id}#{event.attempt}"
        for uuid in event.data["gpus"] if event.kind.startswith("gang.") else ():
            if event.kind == "gang.reserved":
                if uuid in holder:
                    found.append(f"{uuid}: {attempt} reserved it while {holder[uuid]} held it")
                holder[uuid] = attempt
            elif holder.pop(uuid, None) != attempt:
                found.append(f"{uuid}: {attempt} released it without holding it")
    return found + [f"{uuid}: {attempt} never released it" for uuid, attempt in holder.items()]
