"""Writes what the scheduler core promises: only what changed, and nothing if nothing changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import structlog

from gpu_platform.clock import utc_now
from gpu_platform.domain.placing.promise import PromiseChange, PromisedStart, PromiseOutcome
from gpu_platform.store import Store
from gpu_platform.store.jobs import promises
from workers.scheduler.metrics import PROMISES

log = structlog.get_logger()


def write_promises(
    store: Store, epoch: int, promised: Mapping[str, PromisedStart | None], changes: Sequence[PromiseChange]
) -> None:
    """Write what a decision changed, before anybody is told. ``promised``: ``Scheduler.take_changed_promises``.

    If it fails, the core knows more than the database: load it again. Raises StaleEpoch.
    """
    changed = [one for one in promised.values() if one is not None]
    gone = [job_id for job_id, one in promised.items() if one is None]
    if promised or changes:
        promises.write_promises(store, epoch, changed, gone, changes, utc_now())
    for change in changes:
        PROMISES.labels(outcome=change.outcome, reason=change.code or "").inc()
        if change.outcome is PromiseOutcome.BROKEN:
            log.error("scheduler.promise_broken", job=change.job_id, attempt=change.attempt, promised=change.start)
