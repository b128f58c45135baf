"""When each attempt here last saved its work. Preemption uses this to choose victims. See ``store``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.lease import SavedCheckpoint
from gpu_platform.lanes import LastKnown
from gpu_platform.node.checkpoints.store import CheckpointStore, marked
from gpu_platform.node.system.paths import checkpoint_dir

PATIENCE_S = 0.5
"""Seconds to wait for the file system. One that hangs must not cost the host its lease."""


class CheckpointTimes:
    """Finds the newest checkpoint of each attempt. ``root`` may be on a network file system."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._store = CheckpointStore(root)
        self._known = LastKnown[dict[AttemptKey, tuple[str, float]]]({}, "checkpoints", patience_s=PATIENCE_S)
        self.root_id: str | None = None
        """See :meth:`CheckpointStore.identity`, as of the last look."""

    def newest(self, keys: Sequence[AttemptKey]) -> list[SavedCheckpoint]:
        """The newest complete checkpoints of ``keys``. If the file system is too slow, those found last time."""
        known = self._known.read(lambda: self._look(keys))
        return [SavedCheckpoint(key=key, name=known[key][0], written_at=known[key][1]) for key in keys if key in known]

    def _look(self, keys: Sequence[AttemptKey]) -> dict[AttemptKey, tuple[str, float]]:
        self.root_id = self._store.identity()
        found = ((key, newest_mark(checkpoint_dir(self._root, key))) for key in keys)
        return {key: mark for key, mark in found if mark is not None}


def newest_mark(directory: Path) -> tuple[str, float] | None:
    """Name and Unix time (at most now) of the newest complete checkpoint. None: there is none, or it cannot be read.

    It looks only at the directory itself and follows no link: a user may have made it.
    """
    marks = marked(directory)
    if not marks:
        return None
    name, at = max(marks, key=lambda mark: (mark[1], mark[0]))
    return name, max(0.0, min(at, time.time()))  # a user can set any time
