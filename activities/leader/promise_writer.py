"""Writes what the scheduler core promises: only the differences, and nothing if nothing changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import structlog

from activities.clock import utc_now
from activities.leader.metrics import PROMISES
from gpu_platform.domain.placing.promise import PromiseChange, PromisedStart, PromiseOutcome
from gpu_platform.store import Store
from gpu_platform.store.jobs import promises

log = structlog.get_logger()


class PromiseWriter:
    """Knows what is in the database, as long as its leader leads."""

    def __init__(self, store: Store, epoch: int) -> None:
        self._store, self._epoch = store, epoch
        self._written: dict[str, PromisedStart] = {}

    def begin(self, written: Iterable[PromisedStart]) -> None:
        """Begin with what was read from the database."""
        self._written = {one.job_id: one for one in written}

    def write(self, promised: Mapping[str, PromisedStart], changes: Sequence[PromiseChange]) -> None:
        """Write what a decision changed, before anybody is told. Raises StaleEpoch."""
        changed = [one for job_id, one in promised.items() if self._written.get(job_id) != one]
        gone = self._written.keys() - promised.keys()
        if changed or gone or changes:
            promises.write_promises(self._store, self._epoch, changed, gone, changes, utc_now())
            self._written = dict(promised)
        for change in changes:
            PROMISES.labels(outcome=change.outcome, reason=change.code or "").inc()
            if change.outcome is PromiseOutcome.BROKEN:
                log.error("scheduler.promise_broken", job=change.job_id, attempt=change.attempt, promised=change.start)
