"""Trying things on a snapshot: every step can be taken back, so that nothing is ever half done.

The idea is that of a transaction's savepoints (and of KAI-Scheduler's ``framework/statement.go``)::

    with Statement(snapshot) as attempt:
        attempt.hold(3, 0b1111)
        before = attempt.checkpoint()
        attempt.hold(4, 0b1111)
        attempt.rollback(before)
        attempt.commit()

What is not committed is undone at the end of the block. Nothing else may write to the snapshot meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

import numpy as np

from gpu_platform.scheduling.snapshot import Snapshot


class Statement:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._log: list[tuple[int, tuple[np.generic, ...]]] = []
        self._version = snapshot.version

    def __enter__(self) -> Statement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.rollback()

    def hold(self, slot: int, gpus: int) -> None:
        """Take a set of a host's GPUs."""
        self._remember(slot)
        self._snapshot.hold(slot, gpus)
        self._version = self._snapshot.version

    def free(self, gpu_uuids: Iterable[str]) -> None:
        """As if whoever has these GPUs had ended. Those of unknown hosts are ignored."""
        gpus: dict[int, int] = {}
        for uuid in gpu_uuids:
            place = self._snapshot.locate(uuid)
            if place is not None:
                gpus[place[0]] = gpus.get(place[0], 0) | 1 << place[1]
        for slot, bits in gpus.items():
            self._remember(slot)
            self._snapshot.imagine_free(slot, bits)
            self._version = self._snapshot.version

    def checkpoint(self) -> int:
        """A mark to :meth:`rollback` to."""
        return len(self._log)

    def rollback(self, to: int = 0) -> None:
        """Undo what was done since the mark; without one, everything."""
        self._check()
        while len(self._log) > to:
            self._snapshot.restore(*self._log.pop())
        self._version = self._snapshot.version

    def commit(self) -> None:
        """Let what was done stand."""
        self._check()
        self._log.clear()

    def _remember(self, slot: int) -> None:
        self._check()
        self._log.append((slot, self._snapshot.stakes(slot)))

    def _check(self) -> None:
        if self._log and self._snapshot.version != self._version:
            raise RuntimeError("the snapshot was changed by somebody else while a statement tried things on it")
