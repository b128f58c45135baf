"""Processes as the kernel shows them: identity, descent, and signals that hit the right one.

The kernel uses pids again. So a process is its pid and its start time (proc(5), ``/proc/<pid>/stat`` field 22), and
signals go through a pidfd (pidfd_open(2)) that was checked after it was opened. Standard library only: the supervisor
imports it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from functools import cache
from typing import Literal, NamedTuple


class FoundProcess(NamedTuple):
    """A process: its pid and its start time, because the kernel uses pids again."""

    pid: int
    started: int
    """When it started, in clock ticks since boot."""


class Stat(NamedTuple):
    """A process as the kernel shows it."""

    process: FoundProcess
    parent: int
    zombie: bool
    """It has ended and waits for its parent."""
    session: int = 0
    """Only the process itself can change it, and only to a new one (setsid(2))."""


@cache
def boot_id() -> str:
    """The kernel's id of this boot."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()


def read_stat(pid: int | Literal["self"]) -> Stat | None:
    """Read ``/proc/<pid>/stat``. None: there is no such process. It waits for nobody.

    ``"self"`` gives the pid that ``/proc`` shows, even to a process of an inner PID namespace.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    pid = int(text[: text.index(b" ")])
    # The name is in brackets and may itself contain brackets and spaces.
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(FoundProcess(pid, int(fields[19])), int(fields[1]), fields[0] in (b"Z", b"X"), int(fields[3]))


def is_alive(process: FoundProcess) -> bool:
    """True while exactly this process runs, not another one with the same pid."""
    stat = read_stat(process.pid)
    return stat is not None and stat.process == process and not stat.zombie


def all_processes() -> dict[int, Stat]:
    """Every process of this host, by pid."""
    stats = (read_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {stat.process.pid: stat for stat in stats if stat is not None}


def has_environ(pid: int, entries: Iterable[bytes]) -> bool:
    """True if the process was started with all of these ``NAME=value`` in its environment, and is in no jail.

    It waits for as long as the process hangs in ``execve`` or changes its memory.

    A job chooses its own environment, so it could pass for anybody. Jailed processes are in other PID namespaces.
    """
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            environ = b"\0" + file.read()
        if not all(b"\0" + entry + b"\0" in environ for entry in entries):
            return False
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:  # gone, a zombie, or another user's
        return False


def descendants(
    roots: Iterable[int], table: dict[int, Stat], also: Callable[[int], bool] = lambda pid: False
) -> set[FoundProcess]:
    """Living processes below ``roots``, without the roots; also those that ``also`` picks, and all below them."""
    roots = set(roots)
    children: dict[int, list[int]] = {}
    for pid, stat in table.items():
        children.setdefault(stat.parent, []).append(pid)
    found: set[int] = set()
    waiting = [child for root in roots for child in children.get(root, ())]
    waiting += [pid for pid in table if pid not in roots and also(pid)]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return {table[pid].process for pid in found - roots if not table[pid].zombie}


def open_process(process: FoundProcess) -> int | None:
    """A pidfd of exactly this process. None: it is gone. The pidfd becomes readable when the process ends."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    if not is_alive(process):  # checked after opening: now the pid cannot belong to another process
        os.close(fd)
        return None
    return fd


def send_signal(process: FoundProcess, number: int) -> bool:
    """Send the signal to exactly this process. False: it was gone already."""
    fd = open_process(process)
    if fd is None:
        return False
    try:
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True
