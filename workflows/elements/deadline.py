"""The deadline of an array: which of its elements have become too late to start."""

from __future__ import annotations

from datetime import timedelta

from temporalio import workflow

from activities.arrays import ArrayActivities
from gpu_platform.domain.jobs.deadline import latest_start
from gpu_platform.domain.jobs.spec import JobSpec
from workflows.elements.making import ElementMaking
from workflows.elements.under_way import ElementsUnderWay
from workflows.steps import database_step, sleep_until


class ArrayDeadline:
    """Watches the deadline of an array. What runs is ended by its host."""

    def __init__(self, array_id: str, spec: JobSpec) -> None:
        self._id, self._spec = array_id, spec
        self._limits_told = False
        """Time limits of elements may have changed, so others may be too late for the deadline."""

    def note_limits(self) -> None:
        """Time limits may have changed. Without a deadline nothing here counts on them."""
        if self._spec.deadline_at is not None:
            self._limits_told = True

    async def watch(self, making: ElementMaking, elements: ElementsUnderWay, *, continued: bool) -> None:
        """Tell the elements when they have become too late to start. ``continued``: this run continues another one,
        which may have been told of time limits."""
        start = latest_start(self._spec)
        if start is None:
            return
        if continued:
            self.note_limits()
        while start is not None:
            await sleep_until(start, lambda: self._limits_told)
            self._limits_told = False
            found = await database_step(ArrayActivities.late_elements, self._id, summary="Who is too late?")
            making.left = making.left and not found.no_more
            elements.too_late(found.late)
            start = None if found.look_at is None else max(found.look_at, workflow.now() + timedelta(seconds=1))
