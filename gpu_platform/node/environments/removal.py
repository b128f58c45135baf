"""Removes directories in which a job may have made anything. No attempt, and so no GPU, waits for that."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import threading
from collections.abc import Iterable
from pathlib import Path

import structlog

from gpu_platform.node.processes.step_process import Bounds, StepProgram, run

_REMOVED = ".removed-"
_BOUNDS = Bounds(wall_s=3600.0)

log = structlog.get_logger(__name__)


def remove_tree(path: Path) -> None:
    """Remove a directory: trees of any depth, links to anywhere. Its name is free at once; its files go meanwhile, in a
    process that yields to all others, one tree after the other."""
    doomed = path.with_name(f"{_REMOVED}{secrets.token_hex(8)}")
    try:
        os.rename(path, doomed)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("tree.not_removed", path=str(path), error=str(error))
        doomed = path
    _REMOVER.remove(doomed)


def remove_what_is_left(parents: Iterable[Path]) -> None:
    """Remove what an earlier node worker did not come to, in these directories."""
    for parent in parents:
        for left in parent.glob(f"{_REMOVED}*"):
            _REMOVER.remove(left)


class _Remover:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._works = False

    def remove(self, path: Path) -> None:
        self._waiting.put(path)
        with self._lock:
            if not self._works:
                self._works = True
                threading.Thread(target=self._work, name="remove trees", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                try:
                    path = self._waiting.get_nowait()
                except queue.Empty:
                    self._works = False
                    return
            said = ""
            with contextlib.suppress(Exception):
                said = run(
                    StepProgram(["nice", "-n", "19", "rm", "-rf", "--one-file-system", "--", str(path)]), _BOUNDS
                ).said
            if os.path.lexists(path):
                log.warning("tree.not_removed", path=str(path), error=said[-200:])


_REMOVER = _Remover()
