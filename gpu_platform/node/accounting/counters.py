"""What the processes of a rank have used so far, from the kernel's own counters.

For a jailed rank these are the counters of its cgroup. For a plain process they are those of all descendants of its
supervisor: the CPU time of living ones, and that of ended ones, which the supervisor inherited when it reaped them
(proc(5), ``/proc/<pid>/stat``: utime, stime, cutime, cstime).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from gpu_platform.node.isolation.jail import Jail
from gpu_platform.node.processes.ranks import RankProcess
from gpu_platform.node.system.process_tree import FoundProcess, Stat, all_processes, descendants
from gpu_platform.node.system.records import LOG

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_UTIME, _STIME, _CUTIME, _CSTIME, _RSS = 11, 12, 13, 14, 21
"""Fields of /proc/<pid>/stat after the name, counted from 0."""


class Counters(NamedTuple):
    """What a rank has used since its start. Only the memory is that of now."""

    cpu_s: float
    memory_bytes: int
    io_bytes: int
    """Bytes read and written through system calls, files and sockets alike. 0 if they were not asked for."""
    output_bytes: int


def read_counters(rank: RankProcess, jail: Jail | None, table: ProcessTable, *, with_io: bool) -> Counters | None:
    """The counters of a rank. None if it does not live. ``table`` is one look at all processes, shared by many
    ranks."""
    if rank.main_process is None:
        return None
    output = _size(rank.directory / LOG)
    if jail is not None:
        cgroup = jail.cgroup.child(f"rank-{rank.rank}")
        io = sum(_io_bytes(pid) for pid in cgroup.processes()) if with_io else 0
        return Counters(cgroup.cpu_s(), cgroup.memory_bytes(), io, output)
    supervisor = _supervisor(rank, table)
    if supervisor is None:
        return None
    living = descendants([supervisor.pid], table.all())
    reads = [read for process in living if (read := _times_and_rss(process)) is not None]
    inherited = _times_and_rss(supervisor)
    before = rank.reaped_cpu_s
    cpu_s = sum(own + waited for own, waited, _ in reads) + (max(0.0, inherited[1] - before) if inherited else 0.0)
    io = sum(_io_bytes(process.pid) for process in living) if with_io else 0
    return Counters(cpu_s, sum(rss for _, _, rss in reads), io, output)


def rank_pids(rank: RankProcess, jail: Jail | None, table: ProcessTable) -> set[int]:
    """Pids of the rank's processes in the host's PID namespace."""
    if jail is not None:
        return jail.cgroup.child(f"rank-{rank.rank}").processes()
    supervisor = _supervisor(rank, table)
    return set() if supervisor is None else {process.pid for process in descendants([supervisor.pid], table.all())}


def _supervisor(rank: RankProcess, table: ProcessTable) -> FoundProcess | None:
    """The supervisor of a plain process, if it had this rank when the table was read: it may have had another one.
    That shows by the rank's main process, which is its child for as long as the rank lasts. If only others of the rank
    are left, nothing is counted any more: they are about to be killed."""
    main, supervisor = rank.main_process, rank.supervisor
    if main is None or supervisor is None:
        return None
    stat = table.all().get(main.pid)
    return supervisor if stat is not None and (stat.process, stat.parent) == (main, supervisor.pid) else None


class ProcessTable:
    """All processes of the host, read at most once."""

    def __init__(self) -> None:
        self._table: dict[int, Stat] | None = None

    def all(self) -> dict[int, Stat]:
        """Every process of this host, by pid. Read from ``/proc`` at the first call."""
        if self._table is None:
            self._table = all_processes()
        return self._table


def _times_and_rss(process: FoundProcess) -> tuple[float, float, int] | None:
    """(its own CPU seconds, those of its reaped children, resident bytes)."""
    try:
        text = Path(f"/proc/{process.pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()
    own = int(fields[_UTIME]) + int(fields[_STIME])
    waited = int(fields[_CUTIME]) + int(fields[_CSTIME])
    return own / _TICKS_PER_S, waited / _TICKS_PER_S, int(fields[_RSS]) * _PAGE


def _io_bytes(pid: int) -> int:
    """The sum of rchar and wchar. 0 if the process is gone or may not be read."""
    with contextlib.suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/io").read_bytes().splitlines()
        return int(lines[0].split()[1]) + int(lines[1].split()[1])
    return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
