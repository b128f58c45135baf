"""The reconciler compares jobs in the database with their workflows in Temporal, and corrects what differs.

::

    row             workflow           what is done
    not terminal    open               nothing
    not terminal,   open, waits        signal to ask again: the workflow is older than the row, sees it, and takes over
     holds GPUs      for a place
    not terminal    closed             write its end, if it is known; else CleanupWorkflow: stop, release, FAILED
    not terminal    unknown            start JobWorkflow from the row: it goes on, or cleans up and retries
    terminal,       closed, unknown    CleanupWorkflow: stop, release
     holds GPUs     open               the workflow is just ending the job; after a minute it is killed

One look proves nothing. Temporal answers NOT_FOUND for a workflow that is just being started, and a row may change
while Temporal is asked. So the row is read before and after, and only what a second look finds unchanged is corrected.
The cleanup looks again by itself, and Temporal refuses a start while a workflow of the job is open. So a mistake here
cannot harm a healthy job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from gpu_platform.domain.array_ids import array_of
from gpu_platform.domain.jobs.job import Interrupt, JobInput, JobProgress
from gpu_platform.domain.states import JobState
from gpu_platform.store import Store
from gpu_platform.store.jobs import arrays, jobs
from gpu_platform.store.restoring import orphans
from gpu_platform.store.restoring.orphans import HeldAttempt, JobRow
from gpu_platform.temporal.job_workflows import (
    CleanupInput,
    InThread,
    JobWorkflowsView,
    WorkflowLife,
    WorkflowView,
    cleanup_keys,
)

log = structlog.get_logger()

CLOSED_GRACE_S = 4.0
"""A job whose workflow is closed is cleaned up if a second look after this time finds the same."""
UNKNOWN_GRACE_S = 9.0
"""The service starts a workflow within this time after it wrote the row. If not, it died in between."""
ENDING_GRACE_S = 60.0
"""A job that has ended but holds GPUs is killed if its workflow is still open after this time."""
EVERY_S = 60.0
"""How often each job is looked at. Jobs that look wrong are looked at in every sweep."""
PARALLEL = 16
WRONG_AT_ONCE = 200
OTHERS_AT_ONCE = 100
"""Jobs that look right, at each sweep. A look asks Temporal once or twice."""
"""How many suspicious jobs one sweep checks. The leader must do its other work even if Temporal lost its database."""


@dataclass(frozen=True)
class _Suspicion:
    what: Hashable
    since: float


class Reconciler:
    """Compares the jobs in the database with their workflows in Temporal, and corrects what differs.

    ``clock``: seconds that only grow. ``in_thread`` runs a blocking call in a thread.
    """

    def __init__(
        self,
        store: Store,
        workflows: JobWorkflowsView,
        *,
        clock: Callable[[], float] = time.monotonic,
        in_thread: InThread = asyncio.to_thread,
        restore_end: Callable[[str], Awaitable[bool]] | None = None,
    ) -> None:
        """``restore_end`` writes how a job's closed workflow ended the job. It returns False if it does not know."""
        self._store = store
        self._workflows = workflows
        self._clock = clock
        self._in_thread = in_thread
        self._restore_end = restore_end
        self._suspicions: dict[str, _Suspicion] = {}
        self._looked_at: dict[str, float] = {}

    async def sweep(self) -> None:
        """Look at the jobs that are due, and at everything that is held for nothing. Call it every few seconds."""
        live: dict[str, JobState] = await self._in_thread(orphans.live_jobs, self._store)
        held: list[HeldAttempt] = await self._in_thread(orphans.held_without_owner, self._store)
        self._forget(set(live), {str(one.key) for one in held})
        await _all(self._look_at_job(job_id) for job_id in self._due(live))
        await _all(self._look_at_held(one) for one in held)

    async def _look_at_job(self, job_id: str) -> None:
        began = self._clock()
        before = await self._row(job_id)
        view = await self._workflows.look(job_id)
        self._looked_at[job_id] = began
        goes_on = view.life is WorkflowLife.OPEN and not (
            before and before.state.holds_gpus and view.waits_for_placement
        )
        if goes_on or await self._row(job_id) != before or before is None or before.state.is_terminal:
            self._suspicions.pop(job_id, None)
            return
        grace_s = CLOSED_GRACE_S if view.life is WorkflowLife.CLOSED else UNKNOWN_GRACE_S
        if not self._seen_before(job_id, (before, view), began, grace_s):
            return
        if view.life is WorkflowLife.UNKNOWN:
            if (array_id := array_of(job_id)) is not None and await self._in_thread(
                arrays.is_open, self._store, array_id
            ):
                return  # its array's workflow is unknown, too: the one that takes over starts this one as its child
            await self._take_over(before)
        elif view.life is WorkflowLife.OPEN:
            log.warning("job.workflow_is_older", job=job_id, state=before.state.value, attempt=before.attempt)
            await self._workflows.ask_again(job_id)
        elif self._restore_end is None or not await self._restore_end(job_id):
            await self._clean_up(before, view)

    async def _take_over(self, row: JobRow) -> None:
        """Start a workflow that takes the job over. Temporal refuses it if the job has a workflow after all."""
        job = await self._in_thread(jobs.get_job, self._store, row.job_id)
        log.warning("job.begun_again", job=row.job_id, state=row.state.value, attempt=row.attempt)
        known = None if row.state is JobState.PENDING else JobProgress.of(job)
        await self._workflows.start(JobInput(job_id=job.id, spec=job.spec, progress=known, takes_over=True))

    async def _clean_up(self, row: JobRow, view: WorkflowView) -> None:
        held: list[HeldAttempt] = await self._in_thread(orphans.held_of_job, self._store, row.job_id)
        log.warning("job.orphaned", job=row.job_id, workflow=view.ended, held=[str(one.key) for one in held])
        message = f"its workflow was {view.ended} before the job had ended"
        for key in cleanup_keys(row.job_id, row.attempt, held):
            await self._workflows.clean_up(CleanupInput(key=key, message=message))

    async def _look_at_held(self, held: HeldAttempt) -> None:
        began = self._clock()
        row = await self._row(held.key.job_id)
        view = await self._workflows.look(held.key.job_id)
        past = row is not None and row.attempt > held.key.attempt
        waits = view.life is WorkflowLife.OPEN and not past
        if waits and row is not None and not row.state.is_terminal:
            return  # its workflow goes on with it
        if not self._seen_before(str(held.key), (row, view, held), began, ENDING_GRACE_S if waits else CLOSED_GRACE_S):
            return
        if waits:
            log.warning("job.ended_but_runs", job=held.key.job_id, attempt=held.key.attempt)
            await self._workflows.kill(held.key.job_id, Interrupt(actor="cleanup", reason="the job has ended"))
            return
        log.warning("gang.leaked", job=held.key.job_id, attempt=held.key.attempt, hosts=held.hosts)
        await self._workflows.clean_up(CleanupInput(key=held.key, message="it held GPUs after its end"))

    async def _row(self, job_id: str) -> JobRow | None:
        return await self._in_thread(orphans.job_row, self._store, job_id)

    def _seen_before(self, subject: str, what: Hashable, looked_at: float, grace_s: float) -> bool:
        """True if an earlier look saw the same, it ended at least ``grace_s`` before this one began, and so did all
        looks in between."""
        first = self._suspicions.get(subject)
        if first is None or first.what != what:
            self._suspicions[subject] = _Suspicion(what, self._clock())
            return False
        return looked_at - first.since >= grace_s

    def _due(self, live: dict[str, JobState]) -> list[str]:
        """All jobs, if they are few. Otherwise those that are PENDING or look wrong, and those not looked at for
        longest."""
        if len(live) <= PARALLEL:
            return list(live)
        due_since = self._clock() - EVERY_S
        for job_id in live:  # one that is new is due, after those that have waited for longer
            self._looked_at.setdefault(job_id, due_since)
        last_look = self._looked_at
        oldest_first = sorted(live, key=lambda job_id: last_look[job_id])
        wrong = [name for name in oldest_first if live[name] is JobState.PENDING or name in self._suspicions]
        others = [name for name in oldest_first if last_look[name] <= due_since]
        # A tenth of the others at each sweep, and not too many: thousands of jobs stay cheap.
        some = min(max(PARALLEL, len(live) // 10), OTHERS_AT_ONCE)
        return list(dict.fromkeys(wrong[:WRONG_AT_ONCE] + others[:some]))

    def _forget(self, live: set[str], held: set[str]) -> None:
        self._suspicions = {name: seen for name, seen in self._suspicions.items() if name in live or name in held}
        self._looked_at = {job_id: at for job_id, at in self._looked_at.items() if job_id in live}


async def _all(looks: Iterable[Coroutine[Any, Any, None]]) -> None:
    limit = asyncio.Semaphore(PARALLEL)

    async def one(look: Coroutine[Any, Any, None]) -> None:
        async with limit:
            await look

    await asyncio.gather(*[one(look) for look in looks])
