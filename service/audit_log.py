"""Writes the audit log: one thread per service process, in batches, so that nobody holds a lock while a job waits.

A request that changes something waits until its entry is on disk, and fails if it cannot be written: what is not in the
log has not happened. The entries of requests that only read are written soon after.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

from gpu_platform.domain.audit import AuditEntry, ChainHead
from gpu_platform.domain.errors import StorageFull, Unavailable
from gpu_platform.observability import get_logger
from gpu_platform.store import Store, audit

MAX_BATCH = 500
MAX_WAITING = 10_000
"""Entries that wait to be written. With more, requests are refused: the log would have gaps."""
GATHER_S = 0.2
"""How long entries of requests that only read wait for others."""
PATIENCE_S = 10.0
HEAD_EVERY = 1000
"""So often, in records, the head goes to the process's log, where whoever changes the database cannot reach it."""

log = get_logger(__name__)


@dataclass
class _Waiting:
    entry: AuditEntry
    written: Future[ChainHead] | None = field(default=None)


class AuditLog:
    """The audit log of one process. Its thread starts with the first entry."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(MAX_WAITING)
        self._hurry = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._head_logged = 0

    def record(self, entry: AuditEntry, *, wait: bool) -> None:
        """Add an entry. ``wait``: until it is on disk. Called in a thread, never in the event loop.

        Raises :class:`Unavailable` if it cannot be written.
        """
        written: Future[ChainHead] | None = Future() if wait else None
        try:
            self._waiting.put_nowait(_Waiting(entry, written))
        except queue.Full as error:
            raise Unavailable("the audit log cannot be written fast enough; try again in a moment") from error
        self._start()
        if written is not None:
            self._hurry.set()
            try:
                written.result(PATIENCE_S)
            except TimeoutError as error:
                raise Unavailable("the audit log does not answer; nothing was done") from error

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._starting:
            thread = self._thread
        if thread is not None:
            self._waiting.put(None)
            self._hurry.set()
            thread.join(PATIENCE_S)

    def _start(self) -> None:
        if self._thread is not None:
            return
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        over = False
        while not over:
            first = self._waiting.get()
            if first is None:
                return
            self._hurry.wait(GATHER_S)
            self._hurry.clear()
            batch = [first]
            while len(batch) < MAX_BATCH:
                try:
                    more = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    over = True
                    break
                batch.append(more)
            self._write(batch)

    def _write(self, batch: list[_Waiting]) -> None:
        try:
            head = audit.append(self._store, [one.entry for one in batch])
        except Exception as error:
            # Whoever waits is told. Entries that nobody waits for are in the process's log at least.
            log.error("audit.not_written", error=str(error), lost=[one.entry.canonical() for one in batch])
            for one in batch:
                if one.written is not None:
                    one.written.set_exception(_told(error))
            return
        for one in batch:
            if one.written is not None:
                one.written.set_result(head)
        if head.seq - self._head_logged >= HEAD_EVERY or not self._head_logged:
            self._head_logged = head.seq
            log.info("audit.head", seq=head.seq, hash=head.hash)


def _told(error: Exception) -> Unavailable:
    """What the request that waited is told. Each gets an exception of its own."""
    kind = StorageFull if isinstance(error, StorageFull) else Unavailable
    return kind(f"the audit log cannot be written: {error}")
