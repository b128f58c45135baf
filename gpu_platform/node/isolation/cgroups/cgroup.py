"""Control groups: they say which processes belong together, limit what these use, and can kill all of them for sure.

The kernel may offer cgroup v2, v1, or both at once ("hybrid": a v2 tree without some controllers
and v1 trees beside it). Where they are mounted is read, never assumed, and each controller is
used in the tree that has it. Membership and killing use the v2 tree; without one, the v1 freezer's.
Kernel: Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import struct
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

CGROUP_ROOT = "gpu-platform"
"""Every cgroup of ranks is below this one."""

USED = ("memory", "pids", "cpuset", "cpu", "io", "devices", "freezer")
"""The controllers that we use. The last two exist only in v1."""
WEIGHTS = ("cpu", "io")
"""Controllers that a jail can do without: they share a host out, but keep nobody from anything."""

_V1_NAMES = {"io": "blkio"}
"""Controllers that cgroup v1 calls otherwise."""

_POLL_S = 0.005
_GONE = (errno.ENOENT, errno.ESRCH, errno.ENODEV)
"""There is no such cgroup or process, or the cgroup was removed meanwhile."""
_SYS_CLONE3 = 435
"""The number of clone3(2), the same on every architecture."""
_CLONE_INTO_CGROUP = 0x2_0000_0000
_python = ctypes.pythonapi
_keeps_gil = ctypes.PyDLL(None, use_errno=True)
"""Calls through it keep the interpreter's lock. A fork must not release it: the child could not take it again."""


class Hierarchies(NamedTuple):
    """Where cgroups are mounted on this host. It can be sent as JSON: the spawner gets it like that."""

    unified: str | None
    """The mount point of cgroup v2. None: there is no v2."""
    v2: list[str]
    """Controllers of the v2 tree."""
    v1: dict[str, str]
    """Controller -> mount point of its v1 tree."""

    def has(self, controller: str) -> bool:
        """True if the host offers the controller, in v2 or v1."""
        return controller in self.v2 or controller in self.v1


def find_hierarchies(mountinfo: str = "/proc/self/mountinfo") -> Hierarchies:
    """Find them in mountinfo (proc(5))."""
    unified: str | None = None
    v1: dict[str, str] = {}
    with open(mountinfo) as file:
        for line in file:
            left, _, right = line.partition(" - ")
            mount_point = left.split()[4].encode().decode("unicode_escape")
            kind, _, options = right.split()[:3]
            if kind == "cgroup2" and unified is None:
                unified = mount_point
            elif kind == "cgroup":
                for controller in USED:
                    if _V1_NAMES.get(controller, controller) in options.split(","):
                        v1.setdefault(controller, mount_point)
    v2: list[str] = []
    if unified is not None:
        v2 = [name for name in _read(f"{unified}/cgroup.controllers").split() if name in USED]
        v1.pop("freezer", None)  # cgroup.kill and cgroup.freeze are better
    return Hierarchies(unified, v2, v1)


def without_unusable(hierarchies: Hierarchies, root: str) -> Hierarchies:
    """Leave out the controllers of :data:`WEIGHTS` that the v2 tree refuses to hand to cgroups below ``root``.

    The kernel does so, e.g., while a process with real-time priority is outside of the root cgroup.
    """
    usable = list(hierarchies.v2)
    for controller in WEIGHTS:
        try:
            if controller in usable:
                Cgroup(hierarchies._replace(v2=[controller], v1={}), root).create(domain=True)
        except OSError:
            usable.remove(controller)
    return hierarchies._replace(v2=usable)


class Cgroup:
    """The cgroup ``name`` (a relative path) in every tree that we use."""

    def __init__(self, hierarchies: Hierarchies, name: str) -> None:
        self.hierarchies = hierarchies
        self.name = name
        tracking = hierarchies.unified or hierarchies.v1.get("freezer")
        if tracking is None:
            raise OSError(errno.ENOSYS, "neither cgroup v2 nor the v1 freezer is mounted")
        self.path = os.path.join(tracking, name)
        """Its directory in the tree that tracks which processes belong to it."""

    def child(self, name: str) -> Cgroup:
        """The cgroup of this name below this one. It need not exist."""
        return Cgroup(self.hierarchies, f"{self.name}/{name}")

    def create(self, *, domain: bool = False) -> None:
        """Make the cgroup and its parents. ``domain``: it will hold cgroups, not processes. It may be repeated."""
        if self.hierarchies.unified is not None:
            self._create_v2(domain)
        for mount_point in set(self.hierarchies.v1.values()):
            os.makedirs(os.path.join(mount_point, self.name), exist_ok=True)
        if "cpuset" in self.hierarchies.v1:
            self._fill_cpuset_v1()

    def fork(self) -> int:
        """As ``os.fork()``, but with v2 the child is in this cgroup from its first instruction (clone3(2)).

        Moving a process later costs a grace period of the kernel's RCU, about 10 ms on an idle machine. To start in the
        cgroup costs nothing. The child must still :meth:`enter` the v1 trees.
        """
        if self.hierarchies.unified is None:
            return os.fork()
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _fork_into(fd)
        finally:
            os.close(fd)

    def enter(self, pid: int = 0) -> None:
        """Move a process that :meth:`fork` made into the v1 trees too. 0: the calling process."""
        for path in self.paths():
            if path != self.path or self.hierarchies.unified is None:
                write_control(f"{path}/cgroup.procs", str(pid))

    def processes(self) -> set[int]:
        """Pids in the cgroup and in all cgroups below it, zombies included."""
        pids: set[int] = set()
        for directory in self._tree():
            try:
                pids |= {int(line) for line in _read(f"{directory}/cgroup.procs").split()}
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        pids.discard(0)  # 0 is a process of a PID namespace that we cannot see
        return pids

    @property
    def is_empty(self) -> bool:
        """True if no process lives here or below. Also True if the cgroup does not exist."""
        try:
            return "populated 0" in _read(f"{self.path}/cgroup.events")
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return not self.processes()  # v1 has no file that says so

    def kill(self) -> None:
        """Send SIGKILL to all processes, also to those that are forked meanwhile. They may need a moment to end."""
        try:
            write_control(f"{self.path}/cgroup.kill", "1")
        except OSError as error:  # before Linux 5.14, or with v1: freeze them first, so that none escapes by forking
            if error.errno not in _GONE:
                raise
            with _suppress_gone():
                self._freeze(True)
            for pid in self.processes():
                with _suppress_gone():
                    os.kill(pid, signal.SIGKILL)
            with _suppress_gone():
                self._freeze(False)  # v1 delivers the signal only after this

    def wait_empty(self, timeout_s: float) -> bool:
        """Wait until no process is left in it. False: the time was up first."""
        deadline = time.monotonic() + timeout_s
        try:
            events = os.open(f"{self.path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            events = None
        try:
            while not self.is_empty:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                if events is None:
                    time.sleep(min(_POLL_S, remaining))
                else:
                    with _suppress_gone():
                        os.pread(events, 256, 0)  # after this read a change wakes the poll
                        poll = select.poll()
                        poll.register(events, select.POLLPRI)
                        if not self.is_empty:
                            poll.poll(remaining * 1000)
            return True
        finally:
            if events is not None:
                os.close(events)

    def remove(self) -> bool:
        """Remove it and all cgroups below it. False: something is left, because it was not empty."""
        gone = True
        for path in self.paths():
            for directory in reversed(list(_walk(path))):
                try:
                    os.rmdir(directory)
                except FileNotFoundError:
                    continue
                except OSError:
                    gone = False
        return gone

    def path_of(self, controller: str) -> str | None:
        """Its directory in the tree that has the controller. None: the host does not offer the controller."""
        mount_point = self.hierarchies.v1.get(controller)
        if controller in self.hierarchies.v2:
            mount_point = self.hierarchies.unified
        return None if mount_point is None else os.path.join(mount_point, self.name)

    def out_of_memory_kills(self) -> int:
        """How many of its processes the kernel killed because it was at its memory limit."""
        path = self.path_of("memory")
        name = "memory.events" if "memory" in self.hierarchies.v2 else "memory.oom_control"
        try:
            fields = dict(line.split() for line in _read(f"{path}/{name}").splitlines())
        except OSError:
            return 0
        return int(fields.get("oom_kill", 0))

    def cpu_s(self) -> float:
        """CPU seconds used so far, ended processes included. 0 on hosts that have only cgroup v1."""
        try:
            fields = dict(line.split() for line in _read(f"{self.path}/cpu.stat").splitlines())
        except OSError:
            return 0.0
        return int(fields.get("usage_usec", 0)) / 1e6

    def memory_bytes(self) -> int:
        """Bytes of memory in use now."""
        return self._memory("memory.current", "memory.usage_in_bytes")

    def peak_memory_bytes(self) -> int:
        """The most bytes of memory that were in use. Before Linux 5.19: what is in use now."""
        return self._memory("memory.peak", "memory.max_usage_in_bytes") or self.memory_bytes()

    def _memory(self, v2: str, v1: str) -> int:
        path = self.path_of("memory")
        try:
            return int(_read(f"{path}/{v2 if 'memory' in self.hierarchies.v2 else v1}"))
        except OSError:
            return 0

    def _create_v2(self, domain: bool) -> None:
        unified = self.hierarchies.unified or ""
        wanted = " ".join(f"+{controller}" for controller in self.hierarchies.v2)
        parts = self.name.split("/")
        for depth in range(len(parts) + 1):
            directory = os.path.join(unified, *parts[:depth])
            os.makedirs(directory, exist_ok=True)
            if wanted and (depth < len(parts) or domain):
                enabled = _read(f"{directory}/cgroup.subtree_control").split()
                if not set(self.hierarchies.v2) <= set(enabled):
                    write_control(f"{directory}/cgroup.subtree_control", wanted)

    def _fill_cpuset_v1(self) -> None:
        """Fill the cpuset. A new v1 cpuset has no CPUs and takes no process, so each level copies those of its
        parent."""
        directory = self.hierarchies.v1["cpuset"]
        for part in self.name.split("/"):
            parent, directory = directory, os.path.join(directory, part)
            for file in ("cpuset.cpus", "cpuset.mems"):
                if not _read(f"{directory}/{file}").strip():
                    write_control(f"{directory}/{file}", _read(f"{parent}/{file}").strip())

    def _freeze(self, frozen: bool) -> None:
        if self.hierarchies.unified is not None:
            write_control(f"{self.path}/cgroup.freeze", "1" if frozen else "0")
        else:
            write_control(f"{self.path}/freezer.state", "FROZEN" if frozen else "THAWED")

    def paths(self) -> list[str]:
        """Its directory in each tree. The tree that tracks processes is last.

        A process joins the trees in this order. So a process that is in the last tree is in all of them.
        """
        others = {os.path.join(mount_point, self.name) for mount_point in self.hierarchies.v1.values()} - {self.path}
        return [*sorted(others), self.path]

    def _tree(self) -> Iterator[str]:
        return _walk(self.path)


def _walk(path: str) -> Iterator[str]:
    yield path
    try:
        entries = list(os.scandir(path))
    except OSError:
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)


def _fork_into(cgroup_fd: int) -> int:
    """Fork into a cgroup. ``struct clone_args`` has flags, exit_signal and cgroup as its words 0, 4 and 10."""
    arguments = struct.pack("<11Q", _CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, cgroup_fd)
    _python.PyOS_BeforeFork()
    pid = _keeps_gil.syscall(_SYS_CLONE3, arguments, len(arguments))
    code = ctypes.get_errno()
    if pid == 0:
        _python.PyOS_AfterFork_Child()
    else:
        _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, f"clone3(2): {os.strerror(code)}")
    return pid


class _suppress_gone:
    """Ignores errors that say that the cgroup or process is gone. It does without the import of ``contextlib``."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        return isinstance(error, OSError) and error.errno in _GONE


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()


def write_control(path: str, text: str) -> None:
    """Write to a control file of a cgroup. Raises ``OSError``."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # never O_CREAT: a control file cannot be made
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def parse_cpu_list(text: str) -> set[int]:
    """The numbers in a kernel list: ``0-2,8`` is ``{0, 1, 2, 8}``."""
    numbers: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def cpu_list(numbers: Iterable[int]) -> str:
    """The numbers as a kernel list: ``[0, 1, 2, 8]`` is ``0-2,8``."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
