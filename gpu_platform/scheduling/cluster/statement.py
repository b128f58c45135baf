"""Trials on a snapshot. Every step can be undone, so that a trial never leaves anything half done.

The idea is that of savepoints in a transaction (and of KAI-Scheduler's ``framework/statement.go``)::

    with Statement(snapshot) as attempt:
        attempt.hold(HostSlice(host="a", …), namespace)
        before = attempt.checkpoint()
        attempt.hold(HostSlice(host="b", …), namespace)
        attempt.rollback(before)
        attempt.commit()

Steps that are not committed are undone at the end of the block. Nobody else may write to the snapshot meanwhile.
"""

from __future__ import annotations

from types import TracebackType

from gpu_platform.domain.jobs.placement import HostSlice
from gpu_platform.domain.placing.scheduler_input import RunningRow
from gpu_platform.scheduling.cluster.snapshot import SavedHostState, Snapshot


class Statement:
    """A list of steps on a snapshot that can be undone or committed."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._log: list[tuple[int, SavedHostState]] = []
        self._version = snapshot.version

    def __enter__(self) -> Statement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rollback()

    def hold(self, host_slice: HostSlice, namespace: str) -> None:
        """Hold what a placement takes of one host."""
        host_index = self._snapshot.host_index(host_slice.host)
        assert host_index is not None, f"{host_slice.host} is not known"
        self._remember(host_index)
        self._snapshot.hold(host_slice, namespace)
        self._version = self._snapshot.version

    def end(self, job: RunningRow) -> None:
        """Free what a job has, as if it had ended. What it has on unknown hosts is ignored."""
        for host_index in self._snapshot.host_indices_of(job):
            self._remember(host_index)
        self._snapshot.simulate_release(job)
        self._version = self._snapshot.version

    def empty(self, host_index: int) -> None:
        """Free a host, as if every job on it had ended."""
        self._remember(host_index)
        self._snapshot.simulate_empty(host_index)
        self._version = self._snapshot.version

    def checkpoint(self) -> int:
        """Return a mark for :meth:`rollback`."""
        return len(self._log)

    def rollback(self, to: int = 0) -> None:
        """Undo all steps since the mark. Without a mark, undo all."""
        self._check()
        while len(self._log) > to:
            self._snapshot.restore_host_state(*self._log.pop())
        self._version = self._snapshot.version

    def commit(self) -> None:
        """Keep all steps. They cannot be undone after this."""
        self._check()
        self._log.clear()

    def _remember(self, host_index: int) -> None:
        self._check()
        self._log.append((host_index, self._snapshot.save_host_state(host_index)))

    def _check(self) -> None:
        if self._log and self._snapshot.version != self._version:
            raise RuntimeError("the snapshot was changed by somebody else while a statement tried things on it")
