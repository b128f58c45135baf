"""The guard of a host: it only watches the lease and ends ranks, so that nothing else has to work for that.

The node worker starts it. It forks the spawner, so all supervisors and ranks are below it, and then it does nothing but
look at the host's page (``system/lease_page.py``)::

    the lease has ended         -> kill every rank that ends with it, MARGIN_S later: supervisors come first, since they
                                   record how a rank ended. Before ``LeaseTimes.end_s`` is over.
    a supervisor was killed     -> kill what it left. The guard is a subreaper: that falls to the spawner, or to it
    the node worker is gone     -> go on while there are ranks, and until the lease has ended

After its start it opens no file outside of ``/proc`` and the cgroups, and waits for no process. It is locked in memory,
is the last that a lack of memory ends, and is in a cgroup of its own, so that the node worker's can be frozen or
throttled. Not with a real-time policy: a process that has one keeps the kernel from sharing out CPUs between cgroups.
If it is killed, or stands still (the page says when it last looked), the node worker starts another one, which finds
the ranks in the page. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import mmap
import os
import select
import signal

from gpu_platform.node.isolation.cgroups.cgroup import CGROUP_ROOT, Cgroup, Hierarchies, find_hierarchies
from gpu_platform.node.processes.ending import Orphans, clear_up, end_ranks
from gpu_platform.node.system import lease_page
from gpu_platform.node.system.lease_page import LEASED, GuardSeen
from gpu_platform.node.system.process_tree import boot_id, is_alive, read_stat
from gpu_platform.node.system.records import boot_clock_s

MARGIN_S = 0.1
"""It kills so long after the end of the lease. Less than ``LeaseTimes.end_s`` of the shortest lease, 0.25 s."""
LOOK_S = 1.0
"""It looks at least this often: the lease may have become shorter."""
_AGAIN_S = 0.05
"""Until the next look while something does not die."""
_CGROUP = f"{CGROUP_ROOT}-guard"
_PR_SET_DUMPABLE = 4
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER, _PR_SET_IO_FLUSHER = 15, 36, 57
_MCL_CURRENT, _MCL_FUTURE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


def main(page_fd: int, page_path: str, life_fd: int, *, forks: bool) -> None:
    """Be the guard of the host with this page, until neither it nor ranks are left.

    ``page_path``: where it removes the page. Empty: nowhere. ``life_fd``: a pipe whose other end the node worker has.
    ``forks``: fork the spawner, which has stdin and stdout from then on. A line on stdout says who is there.
    """
    os.setsid()
    os.chdir("/")
    boot_id()
    _libc.prctl(_PR_SET_NAME, b"gpu-guard", 0, 0, 0)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spawner = None
    if forks:
        spawner = os.fork()
        if spawner == 0:
            os.close(life_fd)
            from gpu_platform.node.processes import spawner as program  # the guard stays small

            program.main(page_fd)
            os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    page = mmap.mmap(page_fd, lease_page.SIZE_BYTES)
    without = _protect()
    with contextlib.suppress(OSError):  # the node worker is gone already
        os.write(1, json.dumps({"guard": os.getpid(), "spawner": spawner, "without": without}).encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in (0, 1, 2):  # the spawner's; and nobody reads what a guard says
        os.dup2(null, fd)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # a rank of the same account must not trace it
    gc.freeze()
    guard = _Guard(page_fd, page, life_fd, spawner)
    while guard.is_needed:
        # Whatever is wrong now (no memory, no descriptors), the next look may end a rank.
        with contextlib.suppress(Exception):
            guard.look()
        guard.wait()
    page.close()
    if page_path:
        lease_page.remove_unused(page_fd, page_path)


class _Guard:
    def __init__(self, page_fd: int, page: mmap.mmap, life_fd: int, spawner: int | None) -> None:
        self._page_fd, self._page, self._life_fd, self._spawner = page_fd, page, life_fd, spawner
        self._hierarchies = _hierarchies()
        me = read_stat("self")
        assert me is not None
        self._me = me.process
        self._has_node_worker = True
        self._wait_s = 0.0
        self.is_needed = True
        self._wakes, wake = os.pipe()
        os.set_blocking(self._wakes, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll = select.poll()
        self._poll.register(self._wakes, select.POLLIN)
        self._poll.register(life_fd, select.POLLHUP)

    def look(self) -> None:
        """Kill what must end now."""
        self._wait_s = _AGAIN_S  # if something fails
        now = boot_clock_s()
        if self._has_node_worker or not self._is_replaced():
            lease_page.note_guard(self._page_fd, GuardSeen(self._me, now))
        left = self._end_without_lease(now)
        has_children = self._reap()
        adopters = [os.getpid(), *([] if self._spawner is None else [self._spawner])]
        left |= clear_up(self._page_fd, self._read, self._hierarchies, Orphans(adopters, self._read))
        self._wait_s = _AGAIN_S if left else self._until_due_s(now)
        self.is_needed = has_children or self._has_node_worker or not self._is_over(now)

    def wait(self) -> None:
        """Until something is due, a child has ended, or the node worker is gone."""
        for fd, _ in self._poll.poll(int(self._wait_s * 1000) + 1):
            if fd == self._life_fd:
                self._poll.unregister(fd)
                self._has_node_worker = False
            else:
                os.read(fd, 4096)

    def _end_without_lease(self, now: float) -> bool:
        """End the ranks whose lease has ended. True: there were some."""
        held = lease_page.held_by(self._read)
        if held is None:
            return False
        slots = [slot for _, slot in lease_page.taken_slots(self._read) if slot.state == LEASED]
        return end_ranks([slot for slot in slots if held.left_s(now - MARGIN_S, slot.since_s) <= 0], self._hierarchies)

    def _until_due_s(self, looked_s: float) -> float:
        """Until the lease ends, unless it had when the guard looked."""
        held = lease_page.held_by(self._read)
        if held is None or held.left_s(looked_s - MARGIN_S, looked_s) <= 0:
            return LOOK_S
        return min(LOOK_S, held.left_s(boot_clock_s() - MARGIN_S, looked_s))

    def _reap(self) -> bool:
        """Reap children that have ended. True: some are left."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._spawner:
                self._spawner = None

    def _is_over(self, now: float) -> bool:
        """True if nobody needs this guard any more, now that the node worker is gone."""
        if self._is_replaced():
            return True  # that one ends the ranks
        if any(True for _ in lease_page.taken_slots(self._read)):
            return False
        held = lease_page.held_by(self._read)
        return held is None or now > held.lease.run_until_s

    def _is_replaced(self) -> bool:
        """True if there is a newer guard. This one has been left by its node worker, which sees it no more."""
        newest = lease_page.newest_guard(self._read)
        return newest is not None and newest.process != self._me and is_alive(newest.process)

    def _read(self, at: int, size: int) -> bytes:
        return self._page[at : at + size]


def _protect() -> list[str]:
    """Take this process out of what stops others. Returns what it could not have, and why."""
    without = []

    def attempt(what: str, step: object) -> None:
        try:
            step()  # type: ignore[operator]
        except OSError as error:
            without.append(f"{what}: {error.strerror or error}")

    attempt("a cgroup of its own", _enter_cgroup)
    attempt("protection from a lack of memory", _never_out_of_memory)
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
    attempt("memory without I/O", lambda: _call(_libc.prctl(_PR_SET_IO_FLUSHER, 1, 0, 0, 0)))
    attempt("locked memory", lambda: _call(_libc.mlockall(_MCL_CURRENT | _MCL_FUTURE)))
    return without


def _enter_cgroup() -> None:
    hierarchies = find_hierarchies()
    cgroup = Cgroup(hierarchies._replace(v2=[]), _CGROUP)
    cgroup.create()
    cgroup.enter()
    if hierarchies.unified is not None:
        with open(f"{cgroup.path}/cgroup.procs", "w") as file:
            file.write("0")


def _never_out_of_memory() -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")


def _call(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _hierarchies() -> Hierarchies | None:
    found = find_hierarchies()
    return found if found.unified is not None or "freezer" in found.v1 else None
