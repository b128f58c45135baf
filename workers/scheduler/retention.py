"""What the leader removes because it is old: rows, jobs, events, usage and audit records, each after its own time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from gpu_platform.scheduling.policy import Policy
from gpu_platform.scheduling.queueing.fair_share import HALF_LIVES
from gpu_platform.settings import SchedulerSettings
from gpu_platform.store import Store, archiving, events, retention, uploads
from workers.scheduler.audit_retention import AuditRetention
from workers.scheduler.job_archive import JobArchive

_ROWS_AT_ONCE = 500
"""Rows of one transaction, which holds SQLite's write lock."""
_TRANSACTIONS = 8
"""Of one kind in one look: what is removed at once is bounded, and others write between two of them."""
_UPLOADS_AT_ONCE = 20
"""Each has up to some hundred rows of 1 MiB."""

log = structlog.get_logger()


class Retention:
    """Removes what is older than the settings say. A look does a part of it."""

    def __init__(
        self, store: Store, settings: SchedulerSettings, job_archive: Path, policy: Callable[[], Policy]
    ) -> None:
        """``policy``: the policy of now. What fair share still counts is kept, however short ``retention_days`` is."""
        self._store = store
        self._policy = policy
        self._rows = _days(settings.retention_days)
        self._events = _days(settings.event_keep_days)
        self._usage = _days(settings.usage_keep_days)
        self._uploads = _days(settings.upload_keep_days)
        self._jobs = _days(settings.job_keep_days)
        self._archive = None if self._jobs is None else JobArchive(store, self._jobs, job_archive)
        audit, directory = _days(settings.audit_keep_days), settings.audit_archive
        self._audit = None if audit is None or directory is None else AuditRetention(store, audit, directory)

    def look(self, now: datetime) -> bool:
        """Remove a part of what is old. True: there is more to remove. Raises :class:`Unavailable`.

        What cannot be archived stays in the database, and the log says why.
        """
        # Every one of them, also if one before it has more to do.
        more = [self._prune(now)]
        for what, look in (("jobs", self._archive_jobs), ("audit", self._cut_audit)):
            try:
                more.append(look(now))
            except OSError as error:
                log.error("retention.not_archived", what=what, error=str(error))
        return any([*more, self._remove_events(now), self._remove_usage(now), self._remove_uploads(now)])

    def _prune(self, now: datetime) -> bool:
        if self._rows is None:
            return False
        policy = self._policy()
        counted = timedelta(seconds=HALF_LIVES * policy.half_life_s) if policy.uses_shares else timedelta(0)
        gone = retention.prune(self._store, now - max(self._rows, counted))
        if gone:
            log.info("housekeeping.pruned", **gone)
        return bool(gone)

    def _remove_events(self, now: datetime) -> bool:
        if self._events is None:
            return False
        before = now - self._events
        return self._repeat("events", lambda: events.remove_old(self._store, before, _ROWS_AT_ONCE))

    def _remove_usage(self, now: datetime) -> bool:
        if self._usage is None:
            return False
        before = now - self._usage
        return self._repeat("usage", lambda: retention.prune_usage(self._store, before, _ROWS_AT_ONCE))

    def _remove_uploads(self, now: datetime) -> bool:
        if self._uploads is None:
            return False
        gone = uploads.remove_unused(self._store, now - self._uploads, _UPLOADS_AT_ONCE)
        if gone:
            log.info("retention.removed", what="uploads", rows=gone)
        return gone >= _UPLOADS_AT_ONCE

    def _archive_jobs(self, now: datetime) -> bool:
        if self._archive is None or self._jobs is None:
            return False
        # In which file a job is, the database says for as long again as it had the job.
        before = now - self._jobs
        more = self._repeat("archived", lambda: archiving.forget_archived(self._store, before, _ROWS_AT_ONCE))
        return self._archive.look(now) or more

    def _cut_audit(self, now: datetime) -> bool:
        return self._audit is not None and self._audit.look(now)

    def _repeat(self, what: str, remove: Callable[[], int]) -> bool:
        """Remove in several short transactions. True: there may be more."""
        gone, full = 0, True
        for _ in range(_TRANSACTIONS):
            removed = remove()
            gone += removed
            full = removed >= _ROWS_AT_ONCE
            if not full:
                break
        if gone:
            log.info("retention.removed", what=what, rows=gone)
        return full


def _days(days: float | None) -> timedelta | None:
    return None if days is None else timedelta(days=days)
