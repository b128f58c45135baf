"""Group commit for SQLite: transactions of many threads are made durable by one fsync.

SQLite itself runs with ``synchronous=NORMAL``: a COMMIT writes its frames to the end of the write-ahead log (WAL) and
returns; nothing is synced while the write lock is held. Who must be sure waits here, after the lock was given back.

Why an fsync of the WAL file that begins after the COMMIT returned is enough: the frames are either still in that file,
with every frame before them (recovery reads them in order and stops at the first that is broken), or a checkpoint has
moved all of them to the database. In NORMAL mode a checkpoint syncs the WAL before it writes to the database, and the
database before the WAL may be overwritten or removed; the header of a WAL that starts over is synced before its first
frame. So there is no moment at which a synced frame is only in the page cache.
(https://sqlite.org/wal.html#performance_considerations, https://sqlite.org/walformat.html)
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from gpu_platform.domain.errors import Unavailable
from gpu_platform.process_end import end_for_restart

_NOT_TRIED = (errno.EMFILE, errno.ENFILE)
"""This process, or this machine, has too many files open: nothing was synced, and nothing was forgotten."""


class GroupCommit:
    """``wait()`` returns when every commit of this process that returned before the call is on disk.

    Threads that wait while an fsync is under way are all served by the next one.
    """

    def __init__(self, database: Path) -> None:
        self._wal = Path(f"{database}-wal")
        self._counting = threading.Lock()
        self._syncing = threading.Lock()
        self._asked = 0
        self._synced = 0
        self._fd: int | None = None
        self._failure: OSError | None = None

    def wait(self) -> None:
        """Raises :class:`Unavailable` when the disk refused: then nobody knows whether the commit will survive."""
        with self._counting:
            self._asked += 1
            mine = self._asked
        with self._syncing:
            if self._synced >= mine:
                return
            with self._counting:
                upto = self._asked
            self._sync()
            self._synced = upto

    def close(self) -> None:
        """Close the file. A later ``wait()`` opens it again."""
        with self._syncing:
            self._close()

    def _sync(self) -> None:
        # After a failed fsync the kernel forgets what it could not write, and the next one reports success: so this
        # process can promise nothing any more (https://wiki.postgresql.org/wiki/Fsync_Errors).
        if self._failure is None:
            try:
                self._open()
                if self._fd is not None:
                    os.fdatasync(self._fd)
                return
            except OSError as error:
                if error.errno in _NOT_TRIED:
                    raise Unavailable(f"{self._wal} cannot be synced now ({error.strerror}): try again") from error
                self._failure = error
                end_for_restart(f"the disk did not keep what was written to {self._wal} ({error.strerror}): see to it")
        raise Unavailable(
            f"the disk does not keep what is written to {self._wal} ({self._failure.strerror}): nothing can be "
            "acknowledged; this process ends and must be started again. See to the disk"
        ) from self._failure

    def _open(self) -> None:
        """Have the WAL open that is there now. It is removed, and made again, when no connection is left."""
        try:
            there = os.stat(self._wal)
        except FileNotFoundError:  # checkpointed and synced by whoever removed it
            self._close()
            return
        if self._fd is not None and os.path.samestat(there, os.fstat(self._fd)):
            return
        self._close()
        directory = os.open(self._wal.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            wal = os.open(self._wal, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)  # the names of the WAL and of a database that is new
            except OSError:
                os.close(wal)
                raise
        finally:
            os.close(directory)
        self._fd = wal

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
