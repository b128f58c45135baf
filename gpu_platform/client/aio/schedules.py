"""Schedules, as ``client.schedules``. ``sync/schedules.py`` is generated from this file: run ``make client``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from gpu_platform.client import models
from gpu_platform.client import schedule_calls as calls

if TYPE_CHECKING:
    from gpu_platform.client.aio import AsyncClient
    from gpu_platform.domain.jobs.schedule import Backfill, Schedule, ScheduleRequest


class AsyncSchedules:
    """Makes, shows and changes schedules. Every method but :meth:`create` raises :class:`NotFound` for one that is not
    there."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, request: ScheduleRequest) -> Schedule:
        """Make a schedule."""
        return await self._client.send(calls.create(request), models.Schedule)

    def list(self, *, namespace: str | None = None) -> AsyncIterator[Schedule]:
        """All schedules that one may see, oldest first."""
        return self._client.pages(models.Page[models.Schedule], lambda cursor: calls.schedules(namespace, cursor))

    async def get(self, schedule_id: str) -> Schedule:
        """One schedule, with its next times and its newest firings."""
        return await self._client.send(calls.schedule(schedule_id), models.Schedule)

    async def pause(self, schedule_id: str, reason: str = "") -> Schedule:
        """Stop firing."""
        return await self._client.send(calls.set_paused(schedule_id, True, reason), models.Schedule)

    async def resume(self, schedule_id: str, reason: str = "") -> Schedule:
        """Fire again."""
        return await self._client.send(calls.set_paused(schedule_id, False, reason), models.Schedule)

    async def trigger(self, schedule_id: str) -> None:
        """Fire now."""
        await self._client.answer(calls.trigger(schedule_id))

    async def backfill(self, schedule_id: str, span: Backfill) -> None:
        """Fire for the times of a past span."""
        await self._client.answer(calls.backfill(schedule_id, span))

    async def delete(self, schedule_id: str) -> None:
        """Forget the schedule. Its jobs stay."""
        await self._client.answer(calls.delete(schedule_id))
