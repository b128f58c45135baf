"""Asks the database whether somebody asked for what Temporal says: many may cancel a workflow in Temporal."""

from __future__ import annotations

from temporalio import activity

from gpu_platform.store import Store
from gpu_platform.store.jobs import interrupts


class InterruptActivities:
    """``asks``: only what the service recorded counts, because hosts obey signed orders only."""

    def __init__(self, store: Store, *, asks: bool) -> None:
        self._store, self._asks = store, asks

    @activity.defn
    def may_cancel(self, job_id: str) -> bool:
        """True if a workflow that was cancelled in Temporal may end its job."""
        return not self._asks or interrupts.is_cancelled(self._store, job_id)
