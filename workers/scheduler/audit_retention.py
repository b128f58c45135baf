"""Old records of the audit log go into an archive, and then out of the database.

Each archive is a file of records, one a line, as ``gpu-platform audit export`` writes them. The log itself says up to
where it was cut, so what stays can still be verified, and the archives by the same command.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import structlog

from gpu_platform.domain.audit import AuditRecord, ChainCheck, ChainHead, cut_entry
from gpu_platform.private_files import make_private_directory, write_file
from gpu_platform.store import Store, audit

AT_ONCE = 20_000
"""The most records of one archive, about 10 MB."""
SPARED = timedelta(days=1)
"""Nothing is cut before there is so much more to cut: each cut is an entry of the log, too."""
_PAGE = 1000
_DELETED_AT_ONCE = 500

log = structlog.get_logger()


class AuditRetention:
    """Keeps the records of a time in the database, and moves older ones into files of a directory."""

    def __init__(self, store: Store, keep: timedelta, directory: Path) -> None:
        self._store = store
        self._keep = keep
        self._directory = directory
        self._damaged_after: int | None = None

    def look(self, now: datetime) -> bool:
        """Move a batch of old records. True: there may be more to do.

        A log with a wrong hash is not cut: the evidence stays where it is.
        """
        if audit.delete_removed(self._store, _DELETED_AT_ONCE):
            return True
        before = audit.read_cut(self._store)
        first = audit.read_records(self._store, before.seq, 1)
        if not first or before.seq == self._damaged_after or first[0].decoded().at > now - self._keep - SPARED:
            return False
        records = self._old_records(before, now)
        if not records or not self._are_intact(before, records):
            return False
        path = self._directory / f"audit-{records[0].seq:012}.jsonl"
        make_private_directory(self._directory)
        write_file(path, "".join(record.model_dump_json() + "\n" for record in records).encode())
        removed = ChainHead(seq=records[-1].seq, hash=records[-1].hash)
        if audit.cut(self._store, removed, cut_entry(removed, path.name, now, "scheduler")):
            log.info("audit.cut", archive=str(path), first=records[0].seq, last=removed.seq)
        return True

    def _old_records(self, before: ChainHead, now: datetime) -> list[AuditRecord]:
        until = audit.first_since(self._store, (now - self._keep).timestamp())
        found: list[AuditRecord] = []
        after = before.seq
        while len(found) < AT_ONCE and after < until - 1:
            page = audit.read_records(self._store, after, min(_PAGE, until - 1 - after))
            if not page:
                break
            found += page
            after = page[-1].seq
        return found

    def _are_intact(self, before: ChainHead, records: list[AuditRecord]) -> bool:
        check = ChainCheck(start=before)
        for record in records:
            check.take(record)
        problems = check.finish()
        if problems:
            self._damaged_after = before.seq
            log.error("audit.not_cut", problems=problems[:5], hint="run `gpu-platform audit verify`")
        return not problems
