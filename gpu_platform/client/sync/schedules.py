# Generated from aio/schedules.py (make client): do not edit, change that one.
"""Schedules, as ``client.schedules``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_platform.client import models
from gpu_platform.client import schedule_calls as calls

if TYPE_CHECKING:
    from gpu_platform.client.sync import Client
    from gpu_platform.domain.jobs.schedule import Backfill, Schedule, ScheduleRequest


class Schedules:
    """Makes, shows and changes schedules. Every method but :meth:`create` raises :class:`NotFound` for one that is not
    there."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, request: ScheduleRequest) -> Schedule:
        """Make a schedule."""
        return self._client.send(calls.create(request), models.Schedule)

    def list(self, *, namespace: str | None = None) -> Iterator[Schedule]:
        """All schedules that one may see, oldest first."""
        return self._client.pages(models.Page[models.Schedule], lambda cursor: calls.schedules(namespace, cursor))

    def get(self, schedule_id: str) -> Schedule:
        """One schedule, with its next times and its newest firings."""
        return self._client.send(calls.schedule(schedule_id), models.Schedule)

    def pause(self, schedule_id: str, reason: str = "") -> Schedule:
        """Stop firing."""
        return self._client.send(calls.set_paused(schedule_id, True, reason), models.Schedule)

    def resume(self, schedule_id: str, reason: str = "") -> Schedule:
        """Fire again."""
        return self._client.send(calls.set_paused(schedule_id, False, reason), models.Schedule)

    def trigger(self, schedule_id: str) -> None:
        """Fire now."""
        self._client.answer(calls.trigger(schedule_id))

    def backfill(self, schedule_id: str, span: Backfill) -> None:
        """Fire for the times of a past span."""
        self._client.answer(calls.backfill(schedule_id, span))

    def delete(self, schedule_id: str) -> None:
        """Forget the schedule. Its jobs stay."""
        self._client.answer(calls.delete(schedule_id))
