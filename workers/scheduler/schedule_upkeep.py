"""Keeps Temporal's schedules as the database has them: what a service left half done, and what Temporal has lost."""

from __future__ import annotations

import asyncio
import time

import structlog
from temporalio.client import Client

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.store import Store
from gpu_platform.store.jobs import schedules
from gpu_platform.temporal.schedules import TemporalSchedules

log = structlog.get_logger()

COMPARE_S = 15.0
"""How often all schedules are compared. A new leader begins with it."""


class ScheduleUpkeep:
    """The database decides: a schedule that Temporal lost is made again, and one that was deleted is removed there. One
    that the database lost is restored."""

    def __init__(self, store: Store, client: Client) -> None:
        self._store = store
        self._temporal = TemporalSchedules(store, client)
        self._compare_at = 0.0

    async def sweep(self) -> None:
        """Apply what was not applied. Raises ``RPCError`` without Temporal, ``Unavailable`` without the database."""
        late = await asyncio.to_thread(schedules.not_applied, self._store)
        if time.monotonic() >= self._compare_at:
            self._compare_at = time.monotonic() + COMPARE_S
            there = await self._temporal.paused()
            wanted = await asyncio.to_thread(schedules.paused, self._store)
            both = wanted.keys() & there.keys()
            changed = {one for one in both if wanted[one] != there[one]}
            if differ := sorted((wanted.keys() ^ there.keys()) | changed):
                missing, unknown = sorted(wanted.keys() - both), sorted(there.keys() - both)
                log.warning("schedule.differs", missing=missing, unknown=unknown, changed=sorted(changed))
            late = sorted({*late, *differ})
        for schedule_id in late:
            try:
                await self._temporal.apply(schedule_id)
            except InvalidRequest as error:  # a release of Temporal that takes less than the one before
                log.error("schedule.refused", schedule=schedule_id, error=error.message)
