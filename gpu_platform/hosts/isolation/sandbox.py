"""What a jailed attempt sees of the host: made by bubblewrap, entered by each of its ranks.

bubblewrap (bwrap(1)) makes the mount, PID and IPC namespaces and holds them with a process that
does nothing. Ranks of one attempt on one host share them: NCCL and CUDA exchange handles and shared
memory between ranks, which must therefore see one ``/dev/shm`` and each other's pids. Each rank
enters by setns(2) and executes its program itself, so that a program that cannot start, and how it
ends, is known as exactly as without a jail. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
from typing import NamedTuple, NoReturn

from gpu_platform.hosts.isolation.cgroup import Cgroup
from gpu_platform.hosts.system.process_tree import Process, read_stat

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWPID = 0x0002_0000, 0x0800_0000, 0x2000_0000
_MOUNT_TIMEOUT_S = 20.0
_CAPABILITIES = "nvidia-caps"
_libc = ctypes.CDLL(None, use_errno=True)

_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
"""Directories that are never writable, whatever a job names as its working directory."""


class Mounts(NamedTuple):
    """What a sandbox shows. Paths are absolute. It can be sent as JSON."""

    writable: list[str]
    hidden: list[str]
    """Directories that appear empty."""
    readable: list[str]
    """Directories that are shown read-only although they are below a hidden one."""
    devices: list[str]
    """Device nodes of the attempt's GPUs. Each appears as ``/dev/<its name>``, a capability below ``nvidia-caps``."""
    tmp_mib: int
    shm: str | None = None
    """The directory that appears as ``/dev/shm``. None: an empty one of its own."""


def bwrap_command(program: str, mounts: Mounts, *, info_fd: int, ready_fd: int) -> list[str]:
    """The command line: all read-only, then the exceptions, outer directories first so that none hides an inner one."""
    shm = ["--perms", "1777", "--tmpfs", "/dev/shm"] if mounts.shm is None else ["--bind", mounts.shm, "/dev/shm"]
    tmp = ["--perms", "1777", "--size", str(mounts.tmp_mib << 20), "--tmpfs"]
    places: list[tuple[str, list[str]]] = [
        ("/tmp", [*tmp, "/tmp"]),
        ("/var/tmp", [*tmp, "/var/tmp"]),
        ("/run", ["--tmpfs", "/run"]),
        ("/run/systemd/resolve", ["--ro-bind-try", "/run/systemd/resolve", "/run/systemd/resolve"]),
        *((path, _bind(path, "--bind-try" if may_be_writable(path) else "--ro-bind-try")) for path in mounts.writable),
        *((path, ["--tmpfs", path]) for path in mounts.hidden),
        *((path, _bind(path, "--ro-bind")) for path in mounts.readable),
    ]
    places.sort(key=lambda place: place[0].rstrip("/").count("/"))
    return [
        program,
        *("--unshare-pid", "--unshare-ipc", "--new-session", "--cap-drop", "ALL"),
        *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"),
        *(
            "--ro-bind",
            "/proc/sys",
            "/proc/sys",
        ),  # bwrap leaves it writable, and uid 0 may write there without any capability
        *(word for path in mounts.devices for word in ("--dev-bind", path, _place_of_node(path))),
        *(*shm, "--remount-ro", "/dev"),
        *(word for _, words in places for word in words),
        *("--info-fd", str(info_fd), "--block-fd", str(ready_fd)),
        *("--", "sleep", "infinity"),
    ]


def _place_of_node(path: str) -> str:
    directory, name = os.path.split(path)
    below = _CAPABILITIES if os.path.basename(directory) == _CAPABILITIES else ""
    return os.path.join("/dev", below, name)


def _bind(path: str, option: str) -> list[str]:
    """The options that bind ``path`` and its parents. In a new tmpfs bwrap would make the parents for root alone."""
    return ["--perms", "0755", "--dir", os.path.dirname(path), option, path, path]


def may_be_writable(path: str) -> bool:
    """False for the root directory and the directories of the system: no job may ever write there."""
    path = os.path.realpath(path)
    return path != "/" and not any(path == system or path.startswith(f"{system}/") for system in _SYSTEM)


def start_sandbox(mounts: Mounts, cgroup: Cgroup, log_path: str) -> Process:
    """Start the sandbox. Returns the process that holds the namespaces, after all is mounted. It is pid 1 inside.

    Raises ``OSError`` with the message of bubblewrap. The caller does not wait for the process: it ends with the
    attempt.
    """
    program = shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")
    if program is None:
        raise FileNotFoundError(2, "bubblewrap is not installed", "bwrap")
    # bwrap sends no message after it has mounted everything, but then it reads from "block-fd" and closes it. So we see
    # the other end of a socket close.
    ready, blocks = socket.socketpair()
    info, info_end = os.pipe()
    ready.send(b"1")  # bwrap reads this byte
    pid = cgroup.fork()
    if pid == 0:
        _become_bwrap(
            bwrap_command(program, mounts, info_fd=info_end, ready_fd=blocks.fileno()), log_path, info_end, blocks
        )
    os.close(info_end)
    blocks.close()
    # The kernel's first move of a process between v1 cgroups takes 10 ms. Do it now, while bwrap works: then the moves
    # of the ranks, soon after, take no time. With v2 alone this does nothing.
    cgroup.enter()
    with open(info, "rb") as file, ready:
        text = file.read()
        ready.settimeout(_MOUNT_TIMEOUT_S)
        try:
            is_ready = ready.recv(1) == b""
        except OSError:  # bwrap ended without reading our byte, or hangs on a dead network file system
            is_ready = False
    holder = read_stat(json.loads(text)["child-pid"]) if text and is_ready else None
    if holder is None or holder.zombie:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        with open(log_path) as file:
            raise OSError(5, f"bubblewrap could not make the jail: {file.read()[-400:].strip()}")
    return holder.process


def _become_bwrap(command: list[str], log_path: str, info_end: int, blocks: socket.socket) -> NoReturn:
    try:
        os.setsid()
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for target, source in ((0, null), (1, null), (2, log)):
            os.dup2(source, target)
        for fd in (info_end, blocks.fileno()):
            os.set_inheritable(fd, True)
        os.chdir("/")
        os.execve(command[0], command, {"PATH": "/usr/bin:/bin"})
    finally:
        os._exit(127)


def share_pids(holder_fd: int) -> None:
    """Put children that this process forks from now on into the PID namespace of the sandbox."""
    _setns(holder_fd, _CLONE_NEWPID)


def keep_own_pids() -> None:
    """Undo :func:`share_pids`. Before that the kernel lets this process start no threads (clone(2), EINVAL)."""
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _setns(own, _CLONE_NEWPID)
    finally:
        os.close(own)


def enter(holder_fd: int) -> None:
    """Let this process see the sandbox's files and IPC. It must have only one thread."""
    _setns(holder_fd, _CLONE_NEWNS | _CLONE_NEWIPC)


def _setns(holder_fd: int, kinds: int) -> None:
    if _libc.setns(holder_fd, kinds) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setns(2): {os.strerror(code)}")
