"""Ended jobs go into files of an archive, and then out of the database.

A file is whole, on disk, and never changed: its name is made once, and only then the rows of its jobs are deleted. A
leader that finds the next file there already, because the leader before it died, reads from it what is to be deleted.
So nothing is lost, and nothing is in two files.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from gpu_platform.private_files import make_private_directory, write_new_file
from gpu_platform.store import Store, archiving
from gpu_platform.store.archiving import KINDS, ArchivedEntry, Kind
from gpu_platform.store.jobs.owners import archive_name

SPARED = timedelta(days=1)
"""Nothing is archived before there is so much more to archive: a file for each look would be a file of few jobs."""
AT_ONCE: dict[Kind, int] = {"pipeline": 100, "array": 20, "job": 2000}
"""The most of one file. Parameters of an array may have many MiB."""
_LINES_AT_ONCE = 250
_REMOVED_AT_ONCE = 250
"""Jobs of one transaction, which holds SQLite's write lock."""

log = structlog.get_logger()


class JobArchive:
    """Keeps jobs for a time after their end, and moves older ones into files of a directory.

    ``at_once``: the most of one file.
    """

    def __init__(self, store: Store, keep: timedelta, directory: Path, at_once: dict[Kind, int] | None = None) -> None:
        self._store = store
        self._keep = keep
        self._directory = directory
        self._at_once = at_once or AT_ONCE

    def look(self, now: datetime) -> bool:
        """Move one file of jobs. True: there may be more to do.

        Raises :class:`OSError` if the file cannot be written, or one that is there cannot be read: then nothing goes.
        """
        before = now - self._keep
        number = archiving.last_number(self._store) + 1
        path = self._directory / archive_name(number)
        if path.exists():  # the leader that wrote it did not come to the end
            self._remove(number, path, now)
            return True
        oldest = archiving.oldest_end(self._store, before)
        if oldest is None or oldest > before - SPARED:
            return False
        ids: dict[Kind, list[str]] = {
            kind: archiving.may_go(self._store, kind, before, self._at_once[kind]) for kind in KINDS
        }
        make_private_directory(self._directory)
        write_new_file(path, self._packed(ids))  # not made: another leader was faster, and its file counts
        self._remove(number, path, now)
        return True

    def _packed(self, ids: dict[Kind, list[str]]) -> bytes:
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0) as file:
            for kind, names in ids.items():
                for begin in range(0, len(names), _LINES_AT_ONCE):
                    for line in archiving.lines_of(self._store, kind, names[begin : begin + _LINES_AT_ONCE]):
                        file.write(line.text.encode() + b"\n")
        return packed.getvalue()

    def _remove(self, number: int, path: Path, now: datetime) -> None:
        """Delete what the file has, as it is on disk."""
        entries = read_entries(path)
        gone = 0
        for begin in range(0, len(entries), _REMOVED_AT_ONCE):
            gone += archiving.remove(self._store, number, entries[begin : begin + _REMOVED_AT_ONCE], now)
        archiving.finish(self._store, number, len(entries), now)
        for draft in self._directory.glob(f".{path.name}.*"):  # of a leader that was killed while it wrote
            draft.unlink(missing_ok=True)
        log.info("jobs.archived", file=str(path), entries=len(entries), removed=gone)


def read_entries(path: Path) -> list[ArchivedEntry]:
    """What a file of the archive has. Raises :class:`OSError` for one that is damaged."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return list(_entries(file))
    except (EOFError, zlib.error, ValueError, KeyError) as error:
        raise OSError(f"{path} is damaged: {error}. Restore it from a backup, or move it away") from error


def _entries(lines: Iterable[str]) -> Iterable[ArchivedEntry]:
    for line in lines:
        row = json.loads(line)
        yield ArchivedEntry(row["entry"], row["id"], row["namespace"], row["user"])
