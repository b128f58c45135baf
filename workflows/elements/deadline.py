"""The deadline of an array: which of its elements have become too late to start."""

from __future__ import annotations

from datetime import datetime, timedelta

from temporalio import workflow

from activities.arrays import ArrayActivities
from gpu_platform.domain.jobs.deadline import latest_start
from gpu_platform.domain.jobs.spec import JobSpec
from workflows.attempts.deadline import LatestStart
from workflows.elements.making import ElementMaking
from workflows.elements.under_way import ElementsUnderWay
from workflows.steps import database_step


class ArrayDeadline(LatestStart):
    """Watches the deadline of an array. What runs is ended by its host."""

    def __init__(self, array_id: str, spec: JobSpec) -> None:
        super().__init__()
        self._id, self._spec = array_id, spec

    async def watch(self, making: ElementMaking, elements: ElementsUnderWay, *, continued: bool) -> None:
        """Tell the elements when they have become too late to start. ``continued``: this run continues another one,
        which may have been told of time limits."""

        async def look() -> datetime | None:
            found = await database_step(ArrayActivities.late_elements, self._id, summary="Who is too late?")
            making.left = making.left and not found.no_more
            elements.too_late(found.late)
            return None if found.look_at is None else max(found.look_at, workflow.now() + timedelta(seconds=1))

        if continued:
            self.note_limit()
        await self.watch_start(latest_start(self._spec), look)
