"""What a jailed attempt sees of the host: made by bubblewrap, entered by each of its ranks.

bubblewrap (bwrap(1)) makes the mount, PID and IPC namespaces and holds them with a process that
does nothing. It is started in the attempt's network namespace, if that has one of its own. Ranks of one
attempt on one host share them: NCCL and CUDA exchange handles and shared memory between ranks, which
must therefore see one ``/dev/shm`` and each other's pids. Each rank enters by setns(2) and executes its
program itself, so that a program that cannot start, and how it ends, is known as exactly as without a
jail. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from gpu_platform.node.isolation.cgroups.cgroup import Cgroup
from gpu_platform.node.isolation.filters import seccomp
from gpu_platform.node.isolation.image_root import holder_command
from gpu_platform.node.isolation.passwd import HOLDER_UID
from gpu_platform.node.isolation.workdirs import is_below, is_system
from gpu_platform.node.system.process_tree import FoundProcess, is_alive, read_stat

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWPID, _CLONE_NEWNET = 0x0002_0000, 0x0800_0000, 0x2000_0000, 0x4000_0000
_MOUNT_TIMEOUT_S = 20.0
_HOLDER_TIMEOUT_S = 20.0
_HOLDER_POLL_S = 0.0002
_FOLDERS = ("nvidia-caps", "nvidia-caps-imex-channels", "infiniband")
"""Directories of ``/dev`` in which device nodes lie."""
_SMALL = ["--size", str(16 << 20)]
"""Of directories that are only there to hide others."""
_SYS_FSCONFIG, _SYS_FSPICK = 431, 433
"""Numbers of fsconfig(2) and fspick(2), the same on every architecture."""
_AT_FDCWD, _SET_STRING, _RECONFIGURE = -100, 1, 7
_libc = ctypes.CDLL(None, use_errno=True)

HOLDER_PROGRAMS = ("/usr/bin/setpriv", "/usr/bin/sleep")
"""What the process that holds a container executes. They are the host's."""
_EMPTY = ("/tmp", "/var/tmp", "/run")
"""Directories of the host that every jail has for itself, empty at first."""


_RESOLVER = "/run/systemd/resolve"
"""The sockets of systemd-resolved and its files. Ranks with a network of their own do not see it."""


class Mounts(NamedTuple):
    """What a sandbox shows. Paths are absolute. It can be sent as JSON."""

    writable: list[str]
    hidden: list[str]
    """Directories that appear empty."""
    readable: list[str]
    """Directories that are shown read-only although they are below a hidden one."""
    devices: list[str]
    """Device nodes of the attempt. Each appears as ``/dev/<its name>``, or in the directory of ``/dev`` that it has."""
    tmp_mib: int
    shm: str | None = None
    """The directory that appears as ``/dev/shm``. None: an empty one of its own."""
    tmp_files: int | None = None
    """The most files in each of ``/tmp``, ``/var/tmp`` and ``/dev/shm``. None: what the kernel gives."""
    shm_mib: int | None = None
    """Size of ``/dev/shm``. None: half of the host's memory, the kernel's default."""
    files: list[list[str]] | None = None
    """Files that are shown read-only in another place: [file, place]. The place exists on the host. None: nothing is
    replaced."""


def are_files(value: object) -> bool:
    """True for a list of pairs of absolute paths, as :attr:`Mounts.files` is sent."""
    return isinstance(value, list) and all(
        isinstance(pair, list) and [isinstance(path, str) and os.path.isabs(path) for path in pair] == [True, True]
        for pair in value
    )


class Extras(NamedTuple):
    """What a sandbox has besides its mounts."""

    places: Sequence[str] = ()
    """Directories that are mounted later, by descriptor; see ``furnishing``."""
    files: Sequence[tuple[str, bytes]] = ()
    """(path, content) of files that appear instead of the host's."""
    root: str | None = None
    """Where the root file system of a container is mounted. None: the host's is shown. See ``image_root``."""
    holder_files: Sequence[tuple[str, str]] = ()
    """(file of the host, place) of what the holder executes in a container."""


class _Descriptors(NamedTuple):
    """What bubblewrap is told by numbers: where it writes what it did, waits, and reads the system call filter."""

    info: int
    ready: int
    seccomp: int
    files: Sequence[tuple[str, int]] = ()
    """(path, descriptor of its content)."""

    @property
    def numbers(self) -> list[int]:
        """All descriptors."""
        return [self.info, self.ready, self.seccomp, *(fd for _, fd in self.files)]


def bwrap_command(program: str, mounts: Mounts, fds: _Descriptors, extras: Extras = Extras()) -> list[str]:  # noqa: B008
    """The command line: all read-only, then the exceptions, outer directories first so that none hides an inner one.

    In a container nothing of the host is there that must be hidden, and places in its root are made already.
    """
    if extras.root is not None:
        mounts = mounts._replace(hidden=[], files=[*(mounts.files or []), *map(list, extras.holder_files)])
    size = [] if mounts.shm_mib is None else ["--size", str(mounts.shm_mib << 20)]
    shm = ["--perms", "1777", *size, "--tmpfs", "/dev/shm"]
    if mounts.shm is not None:
        shm = ["--bind", mounts.shm, "/dev/shm"]
    tmp = ["--perms", "1777", "--size", str(mounts.tmp_mib << 20), "--tmpfs"]
    emptied = [*_EMPTY, *mounts.hidden]
    made: list[tuple[str, list[str]]] = [
        ("/tmp", [*tmp, "/tmp"]),
        ("/var/tmp", [*tmp, "/var/tmp"]),
        ("/run", [*_SMALL, "--tmpfs", "/run"]),
        *([] if mounts.files else [(_RESOLVER, ["--ro-bind-try", _RESOLVER, _RESOLVER])]),
        *((place, [*_parents_in_run(place), "--ro-bind", file, place]) for file, place in mounts.files or ()),
        *((path, _bind(path, "--bind-try" if may_be_writable(path) else "--ro-bind-try")) for path in mounts.writable),
        *((path, [*_SMALL, "--tmpfs", path]) for path in mounts.hidden),
        *((path, _bind(path, "--ro-bind")) for path in mounts.readable),
        # Elsewhere the host's own directory is there already.
        *(
            (path, ["--perms", "0755", "--dir", path])
            for path in extras.places
            if any(is_below(path, one) for one in emptied)
        ),
    ]
    made.sort(key=lambda place: place[0].rstrip("/").count("/"))
    return [
        program,
        *("--unshare-pid", "--unshare-ipc", "--new-session", "--cap-drop", "ALL"),
        # The holder becomes another user with these, and has none after that.
        *("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"),
        *("--as-pid-1", "--seccomp", str(fds.seccomp)),
        *(
            ("--ro-bind", "/", "/")
            if extras.root is None
            else ("--bind", extras.root, "/", "--ro-bind", "/sys", "/sys")
        ),
        *("--proc", "/proc", "--dev", "/dev"),
        *(
            "--ro-bind",
            "/proc/sys",
            "/proc/sys",
        ),  # bwrap leaves it writable, and uid 0 may write there without any capability
        *(word for path in mounts.devices for word in _bind_node(path)),
        *(*shm, "--remount-ro", "/dev"),
        *(word for _, words in made for word in words),
        *(word for path, fd in fds.files for word in ("--perms", "0644", "--ro-bind-data", str(fd), path)),
        *(() if extras.root is None else ("--remount-ro", "/")),
        *("--info-fd", str(fds.info), "--block-fd", str(fds.ready), "--"),
        *_holder_command(extras),
    ]


def _holder_command(extras: Extras) -> list[str]:
    limits = [f"--reuid={HOLDER_UID}", f"--regid={HOLDER_UID}", "--clear-groups", "--inh-caps=-all"]
    limits.append("--bounding-set=-all")
    if extras.root is None:
        return ["setpriv", *limits, "sleep", "infinity"]
    return holder_command("setpriv", [*limits, *holder_command("sleep", ["infinity"])])


def places_in_root(mounts: Mounts, extras: Extras) -> tuple[list[str], list[str]]:
    """The directories and files that must exist in the root file system of a container, so that bubblewrap makes
    nothing in it."""
    bound = [path for path in (*mounts.writable, *mounts.readable) if os.path.lexists(path)]
    directories = [path for path in bound if os.path.isdir(path)]
    inside = [place for _, place in mounts.files or [] if not is_below(place, "/run")]
    files = [*(path for path in bound if not os.path.isdir(path)), *inside, *(path for path, _ in extras.files)]
    above = [os.path.dirname(path) for path in (*bound, *files) if os.path.dirname(path) != "/"]
    return [*directories, *above, *extras.places], files


def _bind_node(path: str) -> list[str]:
    directory, name = os.path.split(path)
    folder = os.path.basename(directory)
    if folder not in _FOLDERS:
        return ["--dev-bind", path, f"/dev/{name}"]
    return ["--perms", "0755", "--dir", f"/dev/{folder}", "--dev-bind", path, f"/dev/{folder}/{name}"]


def _parents_in_run(place: str) -> list[str]:
    """The options that make the directory of a file in the jail's own ``/run``, for everybody to enter."""
    made: list[str] = []
    while is_below(place := os.path.dirname(place), "/run") and place != "/run":
        made = ["--perms", "0755", "--dir", place, *made]
    return made


def _bind(path: str, option: str) -> list[str]:
    """The options that bind ``path`` and its parents. In a new tmpfs bwrap would make the parents for root alone."""
    return ["--perms", "0755", "--dir", os.path.dirname(path), option, path, path]


def may_be_writable(path: str) -> bool:
    """False for the root directory and the directories of the system: no job may ever write there. The path has no
    link in it: ``workdirs.look_at`` refuses one that has."""
    return not is_system(os.path.normpath(path))


def start_sandbox(
    mounts: Mounts,
    cgroup: Cgroup,
    log_path: str,
    extras: Extras = Extras(),  # noqa: B008
    *,
    meanwhile: Callable[[], object] = lambda: None,
) -> FoundProcess:
    """Start the sandbox. Returns the process that holds the namespaces, after all is mounted. It is pid 1 inside.
    ``meanwhile`` is called while bubblewrap mounts.

    It has a uid of its own, no capabilities and the system call filter: whoever gets into it has gained nothing.
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
    files = [(path, _memory_file(content)) for path, content in extras.files]
    fds = _Descriptors(info_end, blocks.fileno(), seccomp.program_file(), files)
    command = bwrap_command(program, mounts, fds, extras)
    pid = cgroup.fork()
    if pid == 0:
        _become_bwrap(command, log_path, fds)
    for fd in (fds.info, fds.seccomp, *(fd for _, fd in files)):
        os.close(fd)
    blocks.close()
    try:
        _enter_and(meanwhile, cgroup)
    except OSError:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        raise
    with open(info, "rb") as file, ready:
        text = file.read()
        ready.settimeout(_MOUNT_TIMEOUT_S)
        try:
            is_ready = ready.recv(1) == b""
        except OSError:  # bwrap ended without reading our byte, or hangs on a dead network file system
            is_ready = False
    holder = read_stat(json.loads(text)["child-pid"]) if text and is_ready else None
    is_ready = holder is not None and _has_settled(holder.process, cgroup)
    # The process that started the holder is outside of the sandbox and only waits for its end.
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    if holder is None or not is_ready:
        with open(log_path) as file:
            raise OSError(5, f"bubblewrap could not make the jail: {file.read()[-400:].strip()}")
    _limit_files(holder.process, mounts)
    return holder.process


def _enter_and(meanwhile: Callable[[], object], cgroup: Cgroup) -> None:
    """Move this process into the cgroup, and call ``meanwhile`` at the same time. Raises ``OSError``.

    The kernel's first move of a process between v1 cgroups takes 10 ms. Do it now, while bwrap works: then the moves
    of the holder and of the ranks, soon after, take no time. With v2 alone this does nothing.
    """
    failures: list[OSError] = []

    def enter() -> None:
        try:
            cgroup.enter()
        except OSError as error:
            failures.append(error)

    entering = threading.Thread(target=enter)
    entering.start()
    try:
        meanwhile()
    finally:
        entering.join()
    if failures:
        raise failures[0]


def _has_settled(holder: FoundProcess, cgroup: Cgroup) -> bool:
    """Wait until the holder has dropped its privileges and does nothing any more. False: it ended, or takes too long.

    The kernel shows its environment as root's until it is another user and has executed its next program (proc(5)).
    """
    deadline = time.monotonic() + _HOLDER_TIMEOUT_S
    try:
        cgroup.enter(holder.pid)
        while os.stat(f"/proc/{holder.pid}/environ").st_uid != HOLDER_UID:
            if time.monotonic() > deadline or not is_alive(holder):
                return False
            time.sleep(_HOLDER_POLL_S)
    except (FileNotFoundError, ProcessLookupError):
        return False
    return True


def _limit_files(holder: FoundProcess, mounts: Mounts) -> None:
    """Limit the number of files in the sandbox's temporary directories: bubblewrap can limit only their size."""
    if mounts.tmp_files is None:
        return
    for path in ("/tmp", "/var/tmp", *(() if mounts.shm else ("/dev/shm",))):
        place = f"/proc/{holder.pid}/root{path}".encode()
        fd = _libc.syscall(_SYS_FSPICK, _AT_FDCWD, place, 0)
        if fd < 0:
            raise _failed("fspick(2)")
        try:
            count = str(mounts.tmp_files).encode()
            if (
                _libc.syscall(_SYS_FSCONFIG, fd, _SET_STRING, b"nr_inodes", count, 0) != 0
                or _libc.syscall(_SYS_FSCONFIG, fd, _RECONFIGURE, None, None, 0) != 0
            ):
                raise _failed("fsconfig(2)")
        finally:
            os.close(fd)


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("gpu-platform", os.MFD_CLOEXEC)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _become_bwrap(command: list[str], log_path: str, fds: _Descriptors) -> NoReturn:
    try:
        os.setsid()
        # The holder inherits it, and with that the kernel removes each ended process whose parent has ended before it.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for target, source in ((0, null), (1, null), (2, log)):
            os.dup2(source, target)
        for fd in fds.numbers:
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
    """Let this process see the sandbox's files, IPC and network. It must have only one thread."""
    _setns(holder_fd, _CLONE_NEWNS | _CLONE_NEWIPC | _CLONE_NEWNET)


def _setns(holder_fd: int, kinds: int) -> None:
    if _libc.setns(holder_fd, kinds) != 0:
        raise _failed("setns(2)")


def _failed(call: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{call}: {os.strerror(code)}")
