"""Restores jobs of which Temporal knows more than the database. The leader does this first.

A new leader lists the open workflows. A job without a row, or whose row is behind its workflow's search attributes,
is restored from its workflow's status. One such job proves that the database is an older copy. So does a host that
reports a later round, a heartbeat of the previous leader with later writes, or one of the newest closed workflows
whose job has no row. Then all workflows are asked, and jobs that ended since are restored as well. Nothing is placed
before that is done (:meth:`JobRestorer.may_place`): GPUs that look free may be in use.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import structlog
from pydantic import BaseModel
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowQueryFailedError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from gpu_platform.clock import utc_now
from gpu_platform.domain.errors import ReservationConflict
from gpu_platform.domain.jobs.array import ArraySpec
from gpu_platform.domain.jobs.array_steps import ArrayInput, RememberedArray
from gpu_platform.domain.jobs.job import Failure, JobInput, JobProgress
from gpu_platform.domain.jobs.placement import Placement
from gpu_platform.domain.packing import unpack
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import elements, jobs
from gpu_platform.store.restoring import restored_arrays, restoring
from gpu_platform.store.restoring.orphans import JobRow
from gpu_platform.store.restoring.restored_arrays import SubmittedArray
from gpu_platform.store.restoring.restoring import SPARED_FOR, RememberedJob
from gpu_platform.temporal.job_workflows import NotOurs, TemporalJobWorkflows, arguments_of
from workers.scheduler.metrics import JOBS_RESTORED

log = structlog.get_logger()
T = TypeVar("T")
G = TypeVar("G", bound=BaseModel)

LAST_TRY_S = SPARED_FOR.total_seconds() / 2
"""A job that could not be restored with its GPUs by then is restored as waiting: its ranks are stopped, and it is
tried again."""
EVERY_S = 60.0
"""How often open workflows are listed, after the first minute."""
QUERY_TIMEOUT = timedelta(seconds=10)
PARALLEL = 16
MOST_ENDED = 20_000
"""How many jobs that ended are restored at most, the newest first."""
NEWEST_ENDED = 50
"""How many of the workflows that closed last a new leader looks at: it may be that no other job shows that the
database is an older copy."""
ENDED_FOR = timedelta(days=1)
"""Jobs that ended earlier are not restored: retention may have removed their rows (it keeps each a day or longer)."""
ENDED_GRACE = timedelta(seconds=30)
"""The workflow of a job that has ended is closed within this time, unless it is older than the row."""
_OPEN_JOBS = "WorkflowType = 'JobWorkflow' AND ExecutionStatus = 'Running'"
_CLOSED_JOBS = (
    "WorkflowType = 'JobWorkflow' AND ExecutionStatus IN ('Completed', 'Failed', 'Canceled') AND CloseTime > '{}'"
)
_OPEN_ARRAYS = "WorkflowType = 'ArrayWorkflow' AND ExecutionStatus = 'Running'"
_CLOSED_ARRAYS = _CLOSED_JOBS.replace("'JobWorkflow'", "'ArrayWorkflow'")
_STATE = "GpuPlatformState"
_BY_ITSELF = (
    WorkflowExecutionStatus.COMPLETED,
    WorkflowExecutionStatus.FAILED,
    WorkflowExecutionStatus.CANCELED,
)


NEVER = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class DatabaseDoubt:
    """Whether a new leader has a reason to think that its database is an old copy."""

    is_older: bool = False
    """It may be an old copy, or is one."""
    is_proved: bool = False
    """The previous leader told Temporal of a round that this database has not reached."""
    written_until: datetime = NEVER
    """The time of the last write of a leader. Jobs that ended later may be missing."""


@dataclass(frozen=True)
class _Open:
    started: datetime
    ran: bool
    """It was RUNNING at some time."""


class _Status(BaseModel):
    """The fields of the answer to JobWorkflow's query ``status`` that are needed here."""

    state: JobState
    placement: Placement | None
    progress: JobProgress


class JobRestorer:
    """Restores jobs that an older or lost database does not know. For one leader. ``clock``: seconds that only grow."""

    def __init__(
        self,
        store: Store,
        client: Client,
        clock: Callable[[], float] = time.monotonic,
        doubt: DatabaseDoubt | None = None,
    ) -> None:
        self._store = store
        self._client = client
        self._workflows = TemporalJobWorkflows(client)
        self._clock = clock
        self._began = clock()
        self._doubt = doubt or DatabaseDoubt()
        self._looked_at = -EVERY_S
        self._older = self._doubt.is_older
        self._is_proved = False
        self._proved_at: datetime | None = None
        """The newest proof that was acted on."""
        self._asked: set[str] = set()
        """Open workflows that were compared since the database was found to be older."""
        self._tried_since: dict[str, float] = {}
        self._newest_compared = False
        self._ended_restored = False
        self._compared = False
        self._compared_for: datetime | None = None
        """The newest proof that was acted on when all had been compared."""
        self.settled = asyncio.Event()
        """Set when every open workflow that is ahead of its row was handled, since the database was found to be
        older."""
        self._unsettled_since = clock()

    def may_place(self) -> bool:
        """True if a GPU that looks free may be given away. Thread-safe. It is False for ``LAST_TRY_S`` at most."""
        return self.settled.is_set() or self._clock() - self._unsettled_since > LAST_TRY_S

    @property
    def has_compared(self) -> bool:
        """True if no job is known of which Temporal knows more than the database."""
        return self._compared

    async def look_if_due(self) -> None:
        """Look, if it is time. Call it every few seconds. Raises ``RPCError`` without Temporal."""
        if self._doubt.is_proved:
            await self._found_older("the leader before this one had come further")
        proved_at = await asyncio.to_thread(restoring.older_seen_at, self._store)
        if proved_at is not None and proved_at != self._proved_at:
            self._proved_at = proved_at
            if (utc_now() - proved_at) < SPARED_FOR:
                self._began = self._clock()
                await self._found_older("a host reported a later round than the database has")
        young = self._clock() - self._began <= SPARED_FOR.total_seconds()
        if young or self._clock() - self._looked_at >= EVERY_S:
            self._looked_at = self._clock()
            await self.look()

    async def look(self) -> None:
        """Compare open workflows with their rows, and restore. Hosts register one after the other, so a conflict is
        tried again at the next look."""
        proved_at = self._proved_at  # this look finds nothing out about a later proof
        found = {
            one.id: _Open(one.start_time, one.search_attributes.get(_STATE) == [JobState.RUNNING.value])
            async for one in self._client.list_workflows(_OPEN_JOBS)
        }
        rows = await asyncio.to_thread(restoring.rows_of, self._store, list(found))
        if any(job_id not in rows for job_id in found):
            # Asked again: a submission that was just withdrawn proves nothing.
            self._asked -= {job_id for job_id in found if job_id not in rows}
        suspects = [job_id for job_id in found if self._is_suspect(job_id, found[job_id], rows.get(job_id))]
        left = sum(await self._all(self._restore_open(job_id, found[job_id].started) for job_id in suspects))
        if self._older and len(self._asked) < len(found):
            suspects = [job_id for job_id in found if self._is_suspect(job_id, found[job_id], rows.get(job_id))]
            left += sum(await self._all(self._restore_open(job_id, found[job_id].started) for job_id in suspects))
        left += await self._restore_arrays()
        await self._close(found, rows)
        if not self._newest_compared:
            self._newest_compared = await self._restore_newest()
        if left == 0:
            self.settled.set()
        if self._older and not self._ended_restored:
            self._ended_restored = await self._restore_ended()
        is_new = not self._compared or self._compared_for != proved_at
        if left == 0 and is_new and (self._ended_restored or not self._older):
            await asyncio.to_thread(restoring.end_comparing, self._store, proved_at, utc_now())
            self._compared, self._compared_for = True, proved_at

    def _is_suspect(self, job_id: str, one: _Open, row: JobRow | None) -> bool:
        """True if the workflow is worth asking. A waiting row whose workflow was RUNNING may also be a job that is
        retried."""
        if row is None:
            return True
        if row.state.is_terminal or job_id in self._asked:
            return False
        return self._older or job_id in self._tried_since or (one.ran and not row.state.holds_gpus)

    async def _restore_open(self, job_id: str, started: datetime) -> bool:
        """Restore the job of an open workflow. True: it must be tried again."""
        try:
            spec = (await self._input(job_id)).spec
            status = await self._status(job_id)
            if status.state.is_terminal or (status.state is JobState.PENDING and not await self._is_lost(job_id)):
                # A job that is just ending, or is just being admitted or withdrawn.
                self._asked.add(job_id)
                return False
        except NotOurs as error:
            log.warning("job.not_ours", job=job_id, error=str(error))
            self._asked.add(job_id)
            return False
        except (RPCError, WorkflowQueryFailedError) as error:  # the workflow closed, or no control worker runs yet
            log.warning("job.restore_delayed", job=job_id, error=str(error))
            return self._may_try(job_id)
        placement = status.placement if status.state.holds_gpus else None
        state = JobState.QUEUED if status.state is JobState.PENDING else status.state
        return await self._restore(RememberedJob(job_id, spec, state, status.progress, placement, created_at=started))

    async def _restore(self, found: RememberedJob) -> bool:
        """Write one job. True: it must be tried again."""
        job_id = found.job_id
        try:
            restored = await asyncio.to_thread(restoring.restore_job, self._store, found, utc_now())
        except ReservationConflict as conflict:
            log.warning("job.restore_delayed", job=job_id, error=conflict.message)
            if self._may_try(job_id):
                return True
            waiting = replace(found, state=JobState.QUEUED, placement=None, displaced=True)
            restored = await asyncio.to_thread(restoring.restore_job, self._store, waiting, utc_now())
        self._asked.add(job_id)
        self._tried_since.pop(job_id, None)
        if restored:
            await self._count(found)
        return False

    async def _is_lost(self, job_id: str) -> bool:
        """True if the job was submitted and not withdrawn, but has no row."""
        if await asyncio.to_thread(restoring.rows_of, self._store, [job_id]):
            return False
        return not await asyncio.to_thread(jobs.was_withdrawn, self._store, job_id)

    def _may_try(self, job_id: str) -> bool:
        now = self._clock()
        return now - self._tried_since.setdefault(job_id, now) < LAST_TRY_S

    async def _count(self, found: RememberedJob) -> None:
        await self._found_older(f"{found.job_id} is ahead of its row")
        JOBS_RESTORED.inc()
        log.warning("job.restored", job=found.job_id, state=found.state.value, attempt=found.progress.attempt)
        await asyncio.to_thread(restoring.note_restored, self._store, 1, utc_now())

    async def _found_older(self, why: str) -> None:
        if not self._is_proved:
            self._is_proved = True
            await self._report_older(why)
        if self._older:
            return
        self._older, self._ended_restored, self._compared = True, False, False
        self._asked.clear()
        self._unsettled_since = self._clock()
        self.settled.clear()
        self._looked_at = -EVERY_S  # so that the next look comes at once

    async def _report_older(self, why: str) -> None:
        await asyncio.to_thread(restoring.note_older, self._store, utc_now())
        log.error(
            "store.older_than_temporal",
            why=why,
            message="the database knows less of jobs than Temporal does: it was lost or restored to an older point. "
            "They are restored; idempotency keys, events and usage are gone",
        )

    async def _close(self, found: dict[str, _Open], rows: dict[str, JobRow]) -> None:
        """Handle a Temporal that is the older one: the workflow of a job that has ended asks again, and learns that
        it is over."""
        now = utc_now()
        for job_id in found:
            row = rows.get(job_id)
            if row is not None and row.state.is_terminal and now - row.state_at > ENDED_GRACE:
                log.warning("job.ended_but_open", job=job_id)
                await self._workflows.ask_again(job_id)

    # -- arrays --------------------------------------------------------------------------------

    async def _restore_arrays(self) -> int:
        """Restore arrays that have no row, or, once the database is known to be older, whose row may be behind.
        Returns how many jobs and arrays must be tried again."""
        since = max(utc_now() - ENDED_FOR, self._doubt.written_until - timedelta(minutes=1))
        closed = _CLOSED_ARRAYS.format(since.strftime("%Y-%m-%dT%H:%M:%SZ"))
        found = {one.id: one async for one in self._client.list_workflows(_OPEN_ARRAYS)}
        if self._older or not self._newest_compared:
            found |= {one.id: one async for one in self._client.list_workflows(closed, limit=MOST_ENDED)}
        states = await asyncio.to_thread(restored_arrays.array_states, self._store, list(found))
        left = 0
        for array_id, one in found.items():
            state = states.get(array_id)
            is_open = one.status is WorkflowExecutionStatus.RUNNING
            if array_id in self._asked or (state is not None and (state.is_terminal or not self._older)):
                continue
            if state is None and await asyncio.to_thread(jobs.was_withdrawn, self._store, array_id):
                continue
            left += await self._restore_array(array_id, one.start_time, is_open=is_open)
        return left

    async def _restore_array(self, array_id: str, started: datetime, *, is_open: bool) -> int:
        handle = self._client.get_workflow_handle(array_id)
        try:
            given = await self._given(array_id, ArrayInput)
            remembered = await handle.query("remembered", result_type=RememberedArray, rpc_timeout=QUERY_TIMEOUT)
        except NotOurs as error:
            log.warning("array.not_ours", array=array_id, error=str(error))
            self._asked.add(array_id)
            return 0
        except (RPCError, WorkflowQueryFailedError) as error:  # no control worker runs yet
            log.warning("array.restore_delayed", array=array_id, error=str(error))
            return int(self._may_try(array_id))
        if given.packed is None:
            log.error(
                "array.not_restored", array=array_id, why="what was submitted is too large to be kept in Temporal"
            )
            self._asked.add(array_id)
            return 0
        whole = ArraySpec.model_validate_json(unpack(given.packed))
        submitted = SubmittedArray(given.spec, whole, given.repeats, started)
        done = await asyncio.to_thread(
            restored_arrays.restore_array, self._store, array_id, submitted, remembered, utc_now()
        )
        if done.restored:
            await self._found_older(f"{array_id} is ahead of its row")
            log.warning("array.restored", array=array_id, position=remembered.carried.position)
            await asyncio.to_thread(restoring.note_restored, self._store, 1, utc_now())
        left = sum(await self._all(self._restore(one) for one in done.elements))
        if not left:
            self._asked.add(array_id)
            if not is_open:
                await asyncio.to_thread(elements.end_array, self._store, array_id, utc_now())
        return left

    # -- jobs that ended -----------------------------------------------------------------------

    async def _restore_newest(self) -> bool:
        """Restore those of the newest closed workflows whose job has no row. True: all of them are restored.

        A submission that was withdrawn has no row either. It is not restored, and proves nothing.
        """
        # An hour of distance: what is a day old here may be older for the retention, whose clock is another.
        found = await self._closed_since(utc_now() - ENDED_FOR + timedelta(hours=1), NEWEST_ENDED)
        rows = await asyncio.to_thread(restoring.rows_of, self._store, found)
        return None not in await self._all(self._write_end(job_id) for job_id in found if job_id not in rows)

    async def _restore_ended(self) -> bool:
        """Restore jobs that ended. True: all of them are restored."""
        until, now = self._doubt.written_until, utc_now()
        since = now - ENDED_FOR
        if until < now:
            since = max(since, until - timedelta(minutes=1))
        found = await self._closed_since(since, MOST_ENDED)
        rows = await asyncio.to_thread(restoring.rows_of, self._store, found)
        behind = [job_id for job_id in found if job_id not in rows or not rows[job_id].state.is_terminal]
        return None not in await self._all(self._write_end(job_id) for job_id in behind)

    async def _closed_since(self, since: datetime, most: int) -> list[str]:
        """Ids of the jobs whose workflows closed since then, the newest first, ``most`` at most."""
        query = _CLOSED_JOBS.format(since.strftime("%Y-%m-%dT%H:%M:%SZ"))
        return list({one.id: None async for one in self._client.list_workflows(query, limit=most)})

    async def restore_end(self, job_id: str) -> bool:
        """Write how a closed workflow ended its job. False: Temporal does not know it, or the row has ended, too."""
        return bool(await self._write_end(job_id))

    async def _write_end(self, job_id: str) -> bool | None:
        """Write the end of one job. None: the workflow could not be asked."""
        try:
            described = await self._client.get_workflow_handle(job_id).describe(rpc_timeout=QUERY_TIMEOUT)
            if described.status not in _BY_ITSELF:
                return False
            status = await self._status(job_id)
            exit_code, failure = await self._outcome(job_id)
            spec = (await self._input(job_id)).spec
        except NotOurs as error:
            log.warning("job.not_ours", job=job_id, error=str(error))
            return False
        except (RPCError, WorkflowQueryFailedError) as error:
            log.warning("job.restore_delayed", job=job_id, error=str(error))
            return None
        if not status.state.is_terminal:
            return False  # it was withdrawn, or did not end by its own steps
        found = RememberedJob(
            job_id, spec, status.state, status.progress, None, described.start_time, exit_code, failure
        )
        if not await asyncio.to_thread(restoring.restore_job, self._store, found, utc_now()):
            return False
        await self._count(found)
        return True

    async def _outcome(self, job_id: str) -> tuple[int | None, Failure | None]:
        try:
            result = await self._client.get_workflow_handle(job_id).result(rpc_timeout=QUERY_TIMEOUT)
        except WorkflowFailureError as error:
            cause = error.cause
            if not isinstance(cause, ApplicationError) or not cause.details:
                return None, None
            failure = Failure.model_validate(cause.details[0])
            return failure.exit_code, failure
        return result.get("exit_code"), None

    # -- what Temporal knows -------------------------------------------------------------------

    async def _status(self, job_id: str) -> _Status:
        handle = self._client.get_workflow_handle(job_id)
        return await handle.query("status", result_type=_Status, rpc_timeout=QUERY_TIMEOUT)

    async def _input(self, job_id: str) -> JobInput:
        return await self._given(job_id, JobInput)

    async def _given(self, job_id: str, kind: type[G]) -> G:
        """The workflow's argument, from the first event of its history."""
        [given] = await arguments_of(self._client, job_id, [kind], QUERY_TIMEOUT)
        return given

    async def _all(self, looks: Iterable[Awaitable[T]]) -> list[T]:
        limit = asyncio.Semaphore(PARALLEL)

        async def one(look: Awaitable[T]) -> T:
            async with limit:
                return await look

        return list(await asyncio.gather(*[one(look) for look in looks]))
