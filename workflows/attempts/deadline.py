"""The deadline of a job: when it has become too late to start, and when it has passed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime

from temporalio import workflow

from activities.reservation import ReservationActivities
from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.deadline import latest_start
from gpu_platform.domain.jobs.spec import JobSpec
from workflows.attempts.attempt import Stop
from workflows.steps import database_step, sleep_until


class LatestStart:
    """Looks whether it has become too late to start by a deadline: when that time has come, and whenever a time limit
    may have changed."""

    def __init__(self) -> None:
        self._limit_told = False

    def note_limit(self) -> None:
        """A time limit may have changed: it may be too late now, or not yet. Without a deadline nobody looks."""
        self._limit_told = True

    async def watch_start(self, start: datetime | None, look: Callable[[], Awaitable[datetime | None]]) -> None:
        """``look`` says when to look again. None: never."""
        while start is not None:
            await sleep_until(start, lambda: self._limit_told)
            self._limit_told = False
            start = await look()


class JobDeadline(LatestStart):
    """Watches the deadline of a job, and writes into ``stop`` what has come.

    ``spec``: the job as it is now. ``take_limit``: hears of another time limit.
    """

    def __init__(
        self, job_id: str, stop: Stop, spec: Callable[[], JobSpec], take_limit: Callable[[LimitChange], None]
    ) -> None:
        super().__init__()
        self._id, self._stop, self._spec, self._take_limit = job_id, stop, spec, take_limit

    async def watch(self) -> None:
        """Note when the job has become too late to start, and when its deadline has passed. Steps look at that."""
        deadline = self._spec().deadline_at
        assert deadline is not None
        await self.watch_start(latest_start(self._spec()), self._look)
        await sleep_until(deadline)
        self._stop.deadline_passed = True

    async def _look(self) -> datetime | None:
        change = await database_step(
            ReservationActivities.changed_limit, self._id, summary="Has its time limit changed?"
        )
        if change is not None:
            self._take_limit(change)
        start = latest_start(self._spec())
        self._stop.too_late = start is not None and start <= workflow.now()
        return None if self._stop.too_late else start
