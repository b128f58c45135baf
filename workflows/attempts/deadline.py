"""The deadline of a job: when it has become too late to start, and when it has passed."""

from __future__ import annotations

from collections.abc import Callable

from temporalio import workflow

from activities.reservation import ReservationActivities
from gpu_platform.domain.jobs.changes import LimitChange
from gpu_platform.domain.jobs.deadline import latest_start
from gpu_platform.domain.jobs.spec import JobSpec
from workflows.attempts.attempt import Stop
from workflows.steps import database_step, sleep_until


class JobDeadline:
    """Watches the deadline of a job, and writes into ``stop`` what has come.

    ``spec``: the job as it is now. ``take_limit``: hears of another time limit.
    """

    def __init__(
        self, job_id: str, stop: Stop, spec: Callable[[], JobSpec], take_limit: Callable[[LimitChange], None]
    ) -> None:
        self._id, self._stop, self._spec, self._take_limit = job_id, stop, spec, take_limit
        self._limit_told = False
        """Its time limit may have changed, so it may be too late for its deadline, or not yet."""

    def note_limit(self) -> None:
        """The job's time limit may have changed. Without a deadline it learns that with its reservation."""
        if self._spec().deadline_at is not None:
            self._limit_told = True

    async def watch(self) -> None:
        """Note when the job has become too late to start, and when its deadline has passed. Steps look at that."""
        deadline = self._spec().deadline_at
        assert deadline is not None
        while not self._stop.too_late:
            start = latest_start(self._spec())
            assert start is not None
            await sleep_until(start, lambda: self._limit_told)
            self._limit_told = False
            change = await database_step(
                ReservationActivities.changed_limit, self._id, summary="Has its time limit changed?"
            )
            if change is not None:
                self._take_limit(change)
            start = latest_start(self._spec())
            self._stop.too_late = start is not None and start <= workflow.now()
        await sleep_until(deadline)
        self._stop.deadline_passed = True
