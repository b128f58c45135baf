"""What is read of a cluster to judge it: its store, Temporal and the machine, past every process of the platform."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.service import RPCError, RPCStatusCode

from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.errors import NotFound
from gpu_platform.domain.events import Event
from gpu_platform.domain.jobs.job import Job
from gpu_platform.domain.jobs.spec import JobSpec
from gpu_platform.domain.jobs.usage import AttemptUsage
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store, events
from gpu_platform.store.jobs import arrays, jobs, queue, usage
from gpu_platform.store.reservations import allocations
from tests.builders import ONE_GPU
from tests.chaos.checks import double_holds
from tests.chaos.facts import Kind, Violation
from tests.support.proc import environs_of_processes
from workers.local.cluster import LocalCluster

CLOSED_AS = {
    JobState.COMPLETED: WorkflowExecutionStatus.COMPLETED,
    JobState.CANCELLED: WorkflowExecutionStatus.COMPLETED,
    JobState.FAILED: WorkflowExecutionStatus.FAILED,
}


class Ledger:
    """A file to which shell programs append ``job attempt rank`` when they begin."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def spec(self, script: str, **fields: object) -> JobSpec:
        note = f'echo "$GPU_PLATFORM_JOB_ID $GPU_PLATFORM_ATTEMPT $RANK" >> "{self._path}"; '
        return JobSpec.model_validate(
            {"command": ["/bin/sh", "-c", note + script], "gpus": ONE_GPU, "grace_s": 1, **fields}
        )

    def runs(self) -> Counter[tuple[str, int, int]]:
        """How often each rank of each attempt began."""
        lines = (line.split() for line in self._path.read_text().splitlines())
        return Counter((job_id, int(attempt), int(rank)) for job_id, attempt, rank in lines)

    def repeated(self) -> list[Violation]:
        return [Violation(Kind.RANK_REPEATED, str(key)) for key, count in self.runs().items() if count > 1]


class Audit:
    """A cluster's store and Temporal, opened directly."""

    def __init__(self, database_url: str, temporal_address: str, state_dir: Path) -> None:
        self.database_url = database_url
        self.store = Store(database_url)
        self._temporal_address = temporal_address
        self._state_dir = state_dir

    @classmethod
    def of(cls, cluster: LocalCluster) -> Audit:
        return cls(cluster.database_url, cluster.temporal_address, cluster.config.state_dir)

    async def temporal(self) -> Client:
        return await Client.connect(self._temporal_address, data_converter=pydantic_data_converter)

    def close(self) -> None:
        self.store.close()

    def reopen(self) -> None:
        """After :meth:`close`: a store that was closed keeps no connection open."""
        self.store = Store(self.database_url)

    def jobs(self, job_ids: Collection[str]) -> dict[str, Job]:
        """Those that are known."""
        found: dict[str, Job] = {}
        for job_id in job_ids:
            try:
                found[job_id] = jobs.get_job(self.store, job_id)
            except NotFound:
                continue
        return found

    def usage(self, job_ids: Collection[str]) -> dict[tuple[str, int], AttemptUsage]:
        attempts = [attempt for job_id in job_ids for attempt in usage.usage_of_job(self.store, job_id).attempts]
        return {(attempt.job_id, attempt.attempt): attempt for attempt in attempts}

    async def open_jobs(self, job_ids: Collection[str], *, temporal_is_older: bool = False) -> dict[str, str]:
        """Jobs that are not terminal in the store, or whose workflow is open or closed in another way.

        ``temporal_is_older``: it was restored to an older point, and may not know how jobs ended, or them at all.
        """
        limit = asyncio.Semaphore(16)
        temporal = await self.temporal()

        async def check(job: Job) -> str | None:
            async with limit:
                status = await _status(temporal, job.id)
            if temporal_is_older and job.state.is_terminal and status is not WorkflowExecutionStatus.RUNNING:
                return None
            if status is None and job.state.is_terminal and array_of(job.id) is not None:
                return None  # its array's workflow drove it to its end
            if not job.state.is_terminal or status is not CLOSED_AS[job.state]:
                return f"{job.state} in the store, {status.name if status else None} in Temporal; {job.failure}"
            return None

        found = list((await asyncio.to_thread(self.jobs, job_ids)).values())
        answers = await asyncio.gather(*[check(job) for job in found])
        open_jobs = {job.id: answer for job, answer in zip(found, answers, strict=True) if answer}
        return open_jobs | await self._open_arrays(temporal, job_ids, temporal_is_older=temporal_is_older)

    async def _open_arrays(
        self, temporal: Client, job_ids: Collection[str], *, temporal_is_older: bool
    ) -> dict[str, str]:
        """Elements whose array is not terminal, or whose array's workflow is open or closed in another way."""
        elements = {job_id: array_id for job_id in job_ids if (array_id := array_of(job_id)) is not None}
        answers: dict[str, str] = {}
        for array_id in set(elements.values()):
            state = (await asyncio.to_thread(arrays.get_array, self.store, array_id)).state
            status = await _status(temporal, array_id)
            if temporal_is_older and state.is_terminal and status is not WorkflowExecutionStatus.RUNNING:
                continue
            if not state.is_terminal or status is not CLOSED_AS[JobState(state.value)]:
                answers[array_id] = f"its array is {state} in the store, {status.name if status else None} in Temporal"
        return {job_id: answers[array_id] for job_id, array_id in elements.items() if array_id in answers}

    def leftovers(self) -> list[Violation]:
        """Of what must be gone once every job has ended."""
        found = [f"{key} still holds GPUs" for key in allocations.held_attempts(self.store)]
        found += [f"{row.job_id} still waits" for row in queue.read_queue(self.store)]
        found += [f"process {pid} of {attempt} lives" for pid, attempt in self.ranks_alive().items()]
        twice = [Violation(Kind.GPU_TWICE, text) for text in double_holds(self.events())]
        return [Violation(Kind.LEFTOVER, text) for text in found] + twice

    def events(self) -> Iterator[Event]:
        after = 0
        while batch := events.read_events(self.store, after):
            yield from batch
            after = batch[-1].seq

    def ranks_alive(self) -> dict[int, str]:
        """Processes that carry an attempt of this cluster in their environment."""
        home = str(self._state_dir)
        environs = environs_of_processes()
        return {
            pid: environ.get("GPU_PLATFORM_ATTEMPT_ID", "?")
            for pid, environ in environs.items()
            if environ.get("GPU_PLATFORM_NODE_DIR", "").startswith(home)
        }


async def _status(temporal: Client, job_id: str) -> WorkflowExecutionStatus | None:
    try:
        return (await temporal.get_workflow_handle(job_id).describe()).status
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return None
