"""Writes down what people ask of a workflow in Temporal, as the service writes down what they ask there."""

from __future__ import annotations

from pydantic import BaseModel
from temporalio import activity

from gpu_platform.clock import utc_now
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.store import Store
from gpu_platform.store.jobs import interrupts

ACTOR = "temporal"
"""Who asked, as events and jobs say it. Temporal does not tell a workflow who cancelled it."""


class CancelledInTemporal(BaseModel):
    """A job, or an array, whose workflow somebody cancelled in Temporal."""

    key: AttemptKey
    reason: str
    """What was given to Temporal, after what it is."""


class InterruptActivities:
    """Hosts stop ranks only if the database knows who asked for it, so this comes before the stop."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @activity.defn
    def note_cancel(self, asked: CancelledInTemporal) -> None:
        """Write down that the job is cancelled, unless somebody has asked for its end before. It may be repeated."""
        if not interrupts.is_cancelled(self._store, asked.key.job_id):
            interrupts.record_interrupt(self._store, asked.key, "cancel", ACTOR, asked.reason, utc_now())
