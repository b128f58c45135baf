"""Clocks of single processes, stepped and drifting, by a shim that each of them is started with.

Temporal's server asks the kernel itself and keeps the right time: to it, everybody else is wrong.
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.truth import boottime
from workers.local.cluster import LocalCluster

SOURCE = Path(__file__).with_name("clock_shim.c")


@dataclass
class Clock:
    """One process's clocks."""

    path: Path
    step_s: float = 0.0
    gained_s: float = 0.0
    _drifting: list[float] = field(default_factory=list)

    @contextlib.contextmanager
    def stepped(self, seconds: float) -> Iterator[None]:
        """Stepped now, and put right at the end of the block."""
        self.step_s += seconds
        self._write()
        try:
            yield
        finally:
            self.step_s -= seconds
            self._write()

    @contextlib.contextmanager
    def too_fast(self, seconds_per_second: float) -> Iterator[None]:
        """What the steady clock gained, it keeps."""
        since = boottime()
        self._write(seconds_per_second, since)
        try:
            yield
        finally:
            self.gained_s += (boottime() - since) * seconds_per_second
            self._write()

    def _write(self, too_fast: float = 0.0, since: float = 0.0) -> None:
        # In place: processes have mapped it.
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.write(struct.pack("4d", self.step_s, too_fast, since, self.gained_s))


def build_shim(directory: Path) -> Path | None:
    """The shim of the clocks. None: there is no C compiler here."""
    return built(SOURCE, directory)


def built(source: Path, directory: Path) -> Path | None:
    """A library of that file. None: there is no C compiler here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    shim = directory / f"{source.stem}.so"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    return shim


def hand_out(cluster: LocalCluster, directory: Path) -> dict[str, Clock]:
    """Before the cluster starts: clocks by the name of the process. Empty where there is no C compiler."""
    shim = build_shim(directory)
    clocks: dict[str, Clock] = {}
    for child in cluster.children if shim else ():
        if child is cluster.temporal:
            continue
        clock = clocks[child.name] = Clock(directory / f"clock-{child.name}")
        clock._write()
        before = child.env.get("LD_PRELOAD")
        child.env["LD_PRELOAD"] = f"{before}:{shim}" if before else str(shim)
        child.env["CHAOS_CLOCK"] = str(clock.path)
    return clocks
