"""The root file system of a container, as the jail of an attempt shows it instead of the host's.

The directory that holds it is never written. An overlay (kernel: Documentation/filesystems/overlayfs.rst) lies on it,
whose upper layer is in memory and has only the places where something is mounted later. They are made here, part by
part and without following any link: who made the image must not lead a process of ours, which is root, to a file of the
host. From then on such a place is a directory of the upper layer, whatever happens below.

All of this is in a mount namespace of the process that makes the jail, so nothing is left when it ends. Standard
library only: the spawner imports it.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

from gpu_platform.node.isolation.workdirs import RefusedDirectory

HOLDER_DIR = "/run/gpu-platform-holder"
"""Where the jail shows the host's programs that its holder executes: those of the image must never run as root."""
_MS_NOSUID, _MS_NODEV, _MS_REC, _MS_PRIVATE = 2, 4, 1 << 14, 1 << 18
_CLONE_NEWNS = 0x0002_0000
_UPPER_BYTES = 16 << 20
_libc = ctypes.CDLL(None, use_errno=True)
_OF_JAIL = ("/proc", "/dev", "/sys", "/tmp", "/var/tmp", "/run")


def leave_mounts_of_host() -> None:
    """Give this process mounts of its own. An overlay takes only directories that were opened after that."""
    if _libc.unshare(_CLONE_NEWNS) != 0:
        raise _failed("unshare(2)")
    _mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None)


def mount_root(root_fd: int, place: str, directories: Iterable[str], files: Iterable[str]) -> str:
    """Mount the root file system that ``root_fd`` names. Call :func:`leave_mounts_of_host` first.

    ``place``: a directory that nobody else enters. ``directories``, ``files``: absolute places that must exist in it.
    Returns where it is. Raises :class:`RefusedDirectory` for an image that cannot have them, and ``OSError``.
    """
    os.makedirs(place, 0o700, exist_ok=True)
    _mount(b"tmpfs", os.fsencode(place), b"tmpfs", _MS_NOSUID | _MS_NODEV, f"size={_UPPER_BYTES},mode=700".encode())
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir(place)  # then no path is in the options, in which some characters mean something
        for name in ("upper", "work", "root"):
            os.mkdir(name, 0o755)
        options = f"lowerdir=/proc/self/fd/{root_fd},upperdir=upper,workdir=work".encode()
        _mount(b"overlay", b"root", b"overlay", _MS_NOSUID | _MS_NODEV, options)
        merged = os.open("root", os.O_RDONLY | os.O_DIRECTORY)
        try:
            for path in sorted({*_OF_JAIL, *directories}):
                _make(merged, path, is_file=False)
            for path in sorted(set(files)):
                _make(merged, path, is_file=True)
        finally:
            os.close(merged)
    finally:
        os.fchdir(before)
        os.close(before)
    return os.path.join(place, "root")


def _make(merged: int, path: str, *, is_file: bool) -> None:
    """Make a directory, or an empty file, and all above it. What is there already is kept, and copied up."""
    parts = [part for part in path.split("/") if part]
    if ".." in parts or not parts:
        raise RefusedDirectory(f"nothing is mounted at {path!r} in a container")
    fd = os.dup(merged)
    try:
        for number, part in enumerate(parts, start=1):
            is_last = number == len(parts)
            if is_last and is_file:
                _make_file(fd, part, path)
                return
            inner = _enter(fd, part, path, may_replace=is_last)
            os.close(fd)
            fd = inner
    finally:
        os.close(fd)


def _enter(above: int, part: str, path: str, *, may_replace: bool) -> int:
    found = _lstat(above, part)
    if found is not None and stat.S_ISLNK(found.st_mode) and may_replace:
        os.unlink(part, dir_fd=above)
        found = None
    if found is None:
        os.mkdir(part, 0o755, dir_fd=above)
    elif not stat.S_ISDIR(found.st_mode):
        what = "a link" if stat.S_ISLNK(found.st_mode) else "a file"
        raise RefusedDirectory(
            f"the container has {what} where {path} must be ({part!r} in it): the job needs a directory there. Choose "
            "another working directory, or another image"
        )
    fd = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    # A change of a directory copies it up, so what becomes of it below does not matter any more.
    os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | 0o111)
    return fd


def _make_file(above: int, part: str, path: str) -> None:
    found = _lstat(above, part)
    if found is not None and stat.S_ISDIR(found.st_mode):
        raise RefusedDirectory(f"the container has a directory where the file {path} must be: choose another image")
    if found is not None:
        os.unlink(part, dir_fd=above)
    os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=above))


def _lstat(above: int, part: str) -> os.stat_result | None:
    try:
        return os.stat(part, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return None


def holder_files(programs: Iterable[str]) -> list[tuple[str, str]]:
    """(file of the host, place in the jail) of programs of the host and all that they load. The loader is called
    ``ld.so``, and a program by its name.

    Raises ``OSError`` for what is no dynamic program of this machine.
    """
    found: dict[str, str] = {}
    for program in programs:
        real = os.path.realpath(program)
        loader = _loader_of(real)
        found[f"{HOLDER_DIR}/{os.path.basename(program)}"] = real
        found[f"{HOLDER_DIR}/ld.so"] = os.path.realpath(loader)
        for library in _libraries_of(loader, real):
            found[f"{HOLDER_DIR}/{os.path.basename(library)}"] = os.path.realpath(library)
    return [(file, place) for place, file in found.items()]


def holder_command(program: str, arguments: list[str]) -> list[str]:
    """The command that executes a program of :func:`holder_files` in the jail, with nothing of the image."""
    return [f"{HOLDER_DIR}/ld.so", "--library-path", HOLDER_DIR, f"{HOLDER_DIR}/{program}", *arguments]


def _loader_of(program: str) -> str:
    """PT_INTERP of a 64-bit ELF file (elf(5))."""
    with open(program, "rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            raise OSError(8, "it is no 64-bit ELF program", program)
        [offset] = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        file.seek(offset)
        table = file.read(size * count)
        for start in range(0, size * count, size):
            kind, _, at, _, _, length = struct.unpack_from("<IIQQQQ", table, start)
            if kind == 3:
                file.seek(at)
                return os.fsdecode(file.read(length).rstrip(b"\0"))
    raise OSError(8, "it names no loader", program)


def _libraries_of(loader: str, program: str) -> list[str]:
    """The libraries that the host's loader finds for a program of the host."""
    ours, theirs = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, theirs, 1), (os.POSIX_SPAWN_CLOSE, ours)]
    pid = os.posix_spawn(loader, [loader, "--list", program], {}, file_actions=actions)
    os.close(theirs)
    with open(ours, "rb") as file:
        lines = file.read().decode(errors="surrogateescape").splitlines()
    os.waitpid(pid, 0)
    words = [line.split() for line in lines]
    return [word[2] for word in words if len(word) >= 3 and word[1] == "=>" and word[2].startswith("/")]


def _mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, options: bytes | None) -> None:
    if _libc.mount(source, target, kind, flags, options) != 0:
        raise _failed(f"mount(2) of {(kind or b'namespaces').decode()} for a container")


def _failed(what: str) -> OSError:
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")
