"""Logs of ranks on this host: read for the service, kept for a while after the job, then removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import structlog

from gpu_platform import disk_room
from gpu_platform.age_clock import AgeClock
from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound
from gpu_platform.node.processes import rank_log
from gpu_platform.node.system import paths, records

log = structlog.get_logger(__name__)

_DAY_S = 24 * 3600


class LogRead(NamedTuple):
    """Bytes of a rank's log, where they begin, how long the log is, and a note for people."""

    data: bytes
    offset: int
    """Where the bytes begin. It is later than the requested offset if the log's beginning was removed."""
    size: int
    """How many bytes were ever written."""
    note: str | None = None
    """A note for the reader of the log."""


def read_log(home: Path, key: AttemptKey, rank: int, offset: int, limit: int) -> LogRead:
    """Read up to ``limit`` bytes of a rank's log from ``offset`` (negative: from the end).

    Raises ``FileNotFoundError`` while the rank was not started, :class:`NotFound` if its log was removed.
    """
    directory = paths.rank_dir(home, key, rank)
    try:
        found = rank_log.read_log(str(directory), offset, limit)
    except FileNotFoundError:
        attempt = paths.attempt_dir(home, key)
        removed = records.read_record(str(attempt / records.LOGS_REMOVED))
        forgotten = (attempt / records.CLOSED).exists() and not (attempt / records.PLAN).exists()
        if removed is None and (forgotten or (directory / records.STARTED).exists()):
            return LogRead(b"", 0, 0)  # it has written nothing
        if removed is None:
            raise
        when = datetime.fromtimestamp(removed["at_ms"] / 1000, UTC)
        raise NotFound(
            f"the logs of attempt {key.attempt} of job {key.job_id} were removed on {when:%Y-%m-%d %H:%M} UTC: "
            f"{removed['reason']}",
            removed=True,
        ) from None
    notes: list[str] = []
    if found.offset > offset >= 0:
        notes.append(
            f"{found.offset - offset} bytes of output before this are gone: a host keeps the newest of a long log "
            "(node.log_file_bytes, node.log_files)"
        )
    if not (directory / records.EXIT).exists() and disk_room.is_full(
        str(directory), disk_room.KEPT_BY_OUTPUT, rank_log.READ_BYTES
    ):
        notes.append(f"{disk_room.told('the host')}. The rank goes on, and what it writes now is lost")
    return LogRead(found.data, found.offset, found.size, "; ".join(notes) or None)


class LogRetention:
    """Removes logs of ended attempts: those older than ``keep_s``, then the oldest while all need more than
    ``keep_bytes``.

    ``clock``: Unix time in seconds.
    """

    def __init__(self, home: Path, keep_s: float, keep_bytes: int, clock: Callable[[], float] | None = None) -> None:
        self._home = home
        self._keep_s = keep_s
        self._keep_bytes = keep_bytes
        self._clock = clock or AgeClock()

    def sweep(self) -> int:
        """Remove logs. Returns how many bytes became free."""
        now_ms = int(self._clock() * 1000)
        kept = sorted(self._ended(), key=lambda attempt: attempt.ended_at_ms)
        total = sum(attempt.bytes for attempt in kept)
        freed = 0
        for attempt in kept:
            if now_ms - attempt.ended_at_ms > self._keep_s * 1000:
                why = f"logs are kept for {self._keep_s / _DAY_S:g} days"
            elif total - freed > self._keep_bytes:
                why = f"this host keeps {self._keep_bytes >> 20} MiB of logs, the newest"
            else:
                break
            attempt.remove(now_ms, why)
            freed += attempt.bytes
        if freed:
            log.info("logs.removed", bytes=freed, left=total - freed)
        return freed

    def _ended(self) -> Iterator[_Ended]:
        """Attempts that were stopped and have no rank left."""
        for path in self._home.glob(f"jobs/*/*/{records.CLOSED}"):
            directory = path.parent
            record = records.read_record(str(path))
            ranks = [str(rank) for rank in directory.glob("rank-*")]
            if record is None or any(records.is_locked(rank) for rank in ranks):
                continue
            files = [name for rank in ranks for _, name in rank_log.segments(rank)]
            if files:
                size = sum(os.stat(name).st_blocks * 512 for name in files)
                yield _Ended(directory, record["at_ms"], files, size)


class _Ended(NamedTuple):
    directory: Path
    ended_at_ms: int
    files: list[str]
    bytes: int

    def remove(self, now_ms: int, why: str) -> None:
        # Write the record first: without it, a removed log would look like a rank that wrote nothing.
        record = {"at_ms": now_ms, "reason": why}
        records.write_record(str(self.directory / records.LOGS_REMOVED), record, durable=False)
        for name in self.files:
            os.unlink(name)
