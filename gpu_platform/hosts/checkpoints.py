"""When each attempt here last saved its work, for who chooses whom to stop. See ``preflight.COMPLETE``."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from gpu_platform.domain.attempt import AttemptKey
from gpu_platform.domain.lease import Checkpoint
from gpu_platform.hosts.paths import checkpoint_dir
from gpu_platform.hosts.preflight import COMPLETE

PATIENCE_S = 0.5
"""A file system that hangs must not cost the host its lease."""


class CheckpointTimes:
    """For one caller at a time. ``root`` may be on a network file system."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._known: dict[AttemptKey, float] = {}
        self._looking: threading.Thread | None = None

    def newest(self, keys: Sequence[AttemptKey]) -> list[Checkpoint]:
        """The complete checkpoints of ``keys``: one ``lstat`` each. What takes too long is as it was last seen."""
        if self._looking is None or not self._looking.is_alive():
            self._looking = threading.Thread(target=self._look, args=(keys,), name="checkpoints", daemon=True)
            self._looking.start()
        self._looking.join(PATIENCE_S)
        known = self._known
        return [Checkpoint(key=key, written_at=known[key]) for key in keys if key in known]

    def _look(self, keys: Sequence[AttemptKey]) -> None:
        found = ((key, written_at(checkpoint_dir(self._root, key))) for key in keys)
        self._known = {key: at for key, at in found if at is not None}


def written_at(directory: Path) -> float | None:
    """Unix seconds, not after now; None: the directory holds no complete checkpoint, or cannot be read."""
    try:
        at = os.lstat(directory / COMPLETE).st_mtime  # lstat: where a user's link points is none of our business
    except OSError:
        return None
    return max(0.0, min(at, time.time()))  # users set times as they like
