"""What ``/proc`` says about other processes. Those that end meanwhile are left out."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def environs_of_processes() -> dict[int, dict[str, str]]:
    """The variables with which each process executed its program, by process id."""
    found: dict[int, dict[str, str]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                pairs = Path(entry.path, "environ").read_bytes().decode(errors="replace").split("\0")
            except OSError:  # gone meanwhile
                continue
            found[int(entry.name)] = {name: value for name, _, value in (pair.partition("=") for pair in pairs)}
    return found


def processes_named(prefix: str) -> list[int]:
    """Process ids of those whose name (``/proc/PID/comm``) begins so."""
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if Path(entry.path, "comm").read_text().startswith(prefix):
                    found.append(int(entry.name))
    return found


def open_files(pid: int) -> Iterator[str]:
    """Paths of the files that a process has open."""
    with contextlib.suppress(OSError):  # it is gone, or closed the file meanwhile
        for number in os.listdir(f"/proc/{pid}/fd"):
            yield os.readlink(f"/proc/{pid}/fd/{number}")
