"""XIDs of simulated GPUs: injected as files (``fault_injection``). Each is delivered to one waiter, once."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gpu_platform.node.system.watch_directory import DirectoryWatch


class SimulatedEventSet:
    """Injected XIDs, oldest first. Each is delivered to one waiter, once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._watch = DirectoryWatch(directory)
        self.listening: set[int] = set()

    def wait(self, timeout_s: float) -> tuple[int, int] | None:
        """(GPU index, XID) of the next event. None: the time is up."""
        event = self._take()
        if event is None and self._watch.wait(timeout_s):
            event = self._take()
        return event

    def _take(self) -> tuple[int, int] | None:
        for name in sorted(os.listdir(self._directory)):
            if name.startswith("."):
                continue
            path = self._directory / name
            event = json.loads(path.read_bytes())
            if event["gpu"] in self.listening:
                path.unlink()
                return event["gpu"], event["xid"]
        return None

    def close(self) -> None:
        """Stop watching the directory."""
        self._watch.close()
