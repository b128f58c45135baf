"""How every process of a rank is ended, whoever is left to do it: its supervisor, the spawner, or the guard.

Nothing here waits for a disk, a pipe, a lock or another process. ``/proc`` is read where the kernel asks nobody for it:
``stat``, ``cgroup`` and ``children``, but not ``environ`` or ``cmdline``, which wait for a process that hangs in the
kernel. Standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Collection, Iterable

from gpu_platform.node.isolation.cgroups.cgroup import CGROUP_ROOT, Cgroup, Hierarchies
from gpu_platform.node.system.lease_page import (
    IDLE,
    Read,
    SlotContent,
    clear_slot,
    is_left_by_killed,
    is_registered,
    taken_slots,
)
from gpu_platform.node.system.process_tree import (
    FoundProcess,
    Stat,
    all_processes,
    descendants,
    read_stat,
    send_signal,
)

_IN_VAIN, _CHASED = 20, 2000
"""It looks for processes that fork and end all the time, which no list of all processes has, until it saw so often
nothing but killed ones, or has killed so many: then others get their turn."""
_DIES_S = 0.001
_IN_JAIL = f"/{CGROUP_ROOT}/".encode()
"""Part of the cgroup of every jailed process."""


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process, zombies included (proc(5), ``children``)."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):  # it, or a thread, has ended: its children are its parent's now
        pass
    return found


def kill_below(
    roots: Collection[int], also: Iterable[FoundProcess] = (), is_foreign: Callable[[Stat], bool] = lambda stat: False
) -> bool:
    """Send SIGKILL to every process below ``roots``, and to ``also`` with what is below those. True: some were there.

    ``roots`` are subreapers. ``is_foreign`` says which children of theirs live on, with all that is below them.
    """
    table = all_processes()
    first = {pid for pid, stat in table.items() if stat.parent in roots and not is_foreign(stat)}
    first |= {process.pid for process in also if process.pid in table and table[process.pid].process == process}
    found = descendants((), table, also=first.__contains__)
    # Parents first: a shell would go on after its child was killed.
    for process in sorted(found, key=lambda process: process.pid):
        send_signal(process, signal.SIGKILL)
    if found:
        _chase(roots, is_foreign)
    return bool(found)


def _chase(roots: Collection[int], is_foreign: Callable[[Stat], bool]) -> None:
    """Kill processes that fork and end all the time: each is the child of a root for a moment, since roots adopt.

    A process that was sent SIGKILL forks no more (fork(2) fails), so its children are all that it has.
    """
    killed: set[FoundProcess] = set()
    in_vain = 0
    while in_vain < _IN_VAIN and len(killed) < _CHASED:
        before, is_living = len(killed), False
        waiting = [(pid, root) for root in roots for pid in children_of(root)]
        while waiting:
            pid, parent = waiting.pop()
            stat = read_stat(pid)
            if stat is None or stat.zombie or stat.parent != parent or (parent in roots and is_foreign(stat)):
                continue
            is_living = True
            if stat.process not in killed:
                send_signal(stat.process, signal.SIGKILL)
                killed.add(stat.process)
            waiting += [(child, pid) for child in children_of(pid)]
        if not is_living:
            return
        in_vain = 0 if len(killed) > before else in_vain + 1
        if in_vain:
            time.sleep(_DIES_S)


def ask_ranks(slots: Collection[SlotContent]) -> None:
    """Send SIGTERM to the processes of the ranks of these slots."""
    below = descendants([slot.owner.pid for slot in slots if not is_left_by_killed(slot)], all_processes())
    for process in below:
        send_signal(process, signal.SIGTERM)


def end_ranks(slots: Collection[SlotContent], hierarchies: Hierarchies | None) -> bool:
    """Kill the ranks of these slots. Their supervisors live on. True: there was a process to kill."""
    if not slots:
        return False
    ranks = [slot.rank for slot in slots if slot.rank is not None]
    found = kill_below({slot.owner.pid for slot in slots if not is_left_by_killed(slot)}, ranks)
    for slot in slots:
        if slot.cgroup and hierarchies is not None:
            cgroup = Cgroup(hierarchies, slot.cgroup)
            found |= not cgroup.is_empty
            cgroup.kill()
    return found


class Orphans:
    """What killed supervisors left: children of ``adopters`` (subreapers) that nobody registered.

    Whoever the spawner forks is in its session until it has registered itself in the page, and no rank can get into
    that session. What is in a jail ends with its cgroup.
    """

    def __init__(self, adopters: Collection[int], read: Read) -> None:
        self._adopters, self._read = adopters, read
        self._session = os.getsid(0)

    def end(self) -> bool:
        """Kill them, and all that is below them. True: there were some."""
        return any(not self._is_foreign(stat) for stat in self._children()) and kill_below(
            self._adopters, is_foreign=self._is_foreign
        )

    def _children(self) -> Iterable[Stat]:
        stats = (read_stat(pid) for adopter in self._adopters for pid in children_of(adopter))
        return [stat for stat in stats if stat is not None and not stat.zombie]

    def _is_foreign(self, stat: Stat) -> bool:
        # In this order: it leaves the session only after it has registered itself.
        return stat.session == self._session or is_registered(self._read, stat.process) or _is_jailed(stat.process.pid)


def clear_up(fd: int, read: Read, hierarchies: Hierarchies | None, orphans: Orphans) -> bool:
    """End the ranks of supervisors that were killed, and free their slots. True: something may be left.

    ``fd``: the page, which ``read`` reads.
    """
    killed = [(number, slot) for number, slot in taken_slots(read) if is_left_by_killed(slot)]
    left = orphans.end()
    left |= end_ranks([slot for _, slot in killed if slot.state != IDLE], hierarchies)
    if not left:
        for number, slot in killed:
            clear_slot(fd, number, slot)
    return left


def _is_jailed(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cgroup", "rb") as file:
            return _IN_JAIL in file.read()
    except (FileNotFoundError, ProcessLookupError):
        return False
