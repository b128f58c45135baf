"""CPU time of processes, from ``/proc``."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_of(pid: int) -> tuple[float, float]:
    """CPU seconds of a process, and those of its children that it has reaped. Zeros if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    own, reaped = int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])
    return own / _TICKS_PER_S, reaped / _TICKS_PER_S


def children_of(pid: int) -> list[int]:
    """The living children of a process, of all its threads."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [int(child) for task in tasks for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def cpu_below(pid: int) -> float:
    """CPU seconds of a living process and of all that is or was below it."""
    return sum(cpu_of(pid)) + sum(cpu_below(child) for child in children_of(pid))
