"""Directories of the host that a job names or writes: opened once, checked, and mounted into its jail by descriptor.

A path is looked up once, by openat2(2), which follows no link and does not leave the allowed directory. What was opened
is cloned as a mount (open_tree(2)) and put into the jail (move_mount(2)). So a directory that is swapped for a link
between two steps leads to a refusal, never to another directory. The account's own directories are opened with the
account's rights: the kernel decides what it may enter. Linux 5.12. Standard library only: the spawner imports it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from gpu_platform.node.isolation.passwd import Account

AS_ACCOUNT, OWNED, SHARED, READ = "account", "owned", "shared", "read"
"""How a directory is opened and shown. AS_ACCOUNT: with the account's rights, writable only if the account may write
it. OWNED: it is given to the account first. SHARED: writable as its mode says. READ: read-only."""

_SYS_OPEN_TREE, _SYS_MOVE_MOUNT, _SYS_OPENAT2, _SYS_MOUNT_SETATTR = 428, 429, 437, 442
"""The same on every architecture."""
_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 0x1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 0x04, 0x40
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4
_MS_PRIVATE = 1 << 18
_STATX_ATTR_MOUNT_ROOT = 0x2000
_libc = ctypes.CDLL(None, use_errno=True)

SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")
"""Directories that no job writes, whatever a job or the configuration names."""
HOME_OF_ROOT = "/root"
"""No job works there or sees it."""


class RefusedDirectory(ValueError):
    """A directory that the job may not use. The message says which, why, and what to do."""


class Directory(NamedTuple):
    """A directory of the host that appears in a jail, at the same path. It can be sent as JSON."""

    path: str
    """Absolute, with no link in it."""
    below: str
    """The allowed directory that ``path`` is or is below."""
    access: str

    @property
    def is_valid(self) -> bool:
        """False if the path is not normal, leaves ``below``, or is a directory of the system."""
        normal = all(os.path.isabs(path) and os.path.normpath(path) == path for path in (self.path, self.below))
        roots = self.access == AS_ACCOUNT and is_below(self.path, HOME_OF_ROOT)
        return normal and is_below(self.path, self.below) and not is_system(self.path) and not roots


class Tree(NamedTuple):
    """A directory that was opened and checked, as a mount that hangs nowhere yet."""

    directory: Directory
    fd: int
    place: tuple[int, int]
    """Device and inode of the directory."""


class Named(NamedTuple):
    """A file or directory that bubblewrap mounts by its name, as it was before."""

    path: str
    place: tuple[int, int]
    """Its device and inode."""


def is_directory(value: object) -> bool:
    """True for the values of a :class:`Directory`, as JSON brings them, that a job may have."""
    texts = isinstance(value, list) and all(isinstance(one, str) and "\0" not in one for one in value)
    if not texts or len(value) != len(Directory._fields):  # type: ignore[arg-type]
        return False
    directory = Directory(*value)  # type: ignore[misc]
    return directory.access in (AS_ACCOUNT, OWNED, SHARED, READ) and directory.is_valid


def is_below(path: str, directory: str) -> bool:
    """True if ``path`` is ``directory`` or below it. Both are absolute and normal."""
    return path == directory or path.startswith(f"{directory.rstrip('/')}/")


def is_system(path: str) -> bool:
    """True for the root directory and the directories of the system."""
    return path == "/" or any(is_below(path, system) for system in SYSTEM)


def is_supported() -> bool:
    """True if the kernel has the calls that this module needs (Linux 5.12)."""
    return all(_errno_of(number) != errno.ENOSYS for number in (_SYS_OPENAT2, _SYS_MOUNT_SETATTR))


def open_below(directory: Directory, account: Account | None = None) -> int:
    """Open a directory by its path. Returns a descriptor that only names it (O_PATH).

    ``account``: with the rights of this account. Raises :class:`RefusedDirectory`.
    """
    path, below = directory.path, directory.below
    try:
        root = _openat2(_AT_FDCWD, below, _RESOLVE_NO_SYMLINKS)
    except OSError as error:
        raise RefusedDirectory(f"{below} cannot be opened: {error.strerror}") from error
    try:
        with _rights_of(account):
            fd = _openat2(root, os.path.relpath(path, below), _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
            if account is not None and not os.access(".", os.X_OK, dir_fd=fd, effective_ids=True):
                os.close(fd)
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return fd
    except OSError as error:
        raise RefusedDirectory(_why_not(error, directory, account)) from error
    finally:
        os.close(root)


def open_tree(directory: Directory, account: Account) -> Tree:
    """Open and check a directory, and clone it as a mount that shows it as ``directory.access`` says.

    Raises :class:`RefusedDirectory`, or ``OSError`` if the kernel refuses.
    """
    fd = open_below(directory, account if directory.access == AS_ACCOUNT else None)
    try:
        found = os.fstat(fd)
        writable = directory.access in (OWNED, SHARED)
        if directory.access == AS_ACCOUNT:
            with _rights_of(account):
                writable = os.access(".", os.W_OK, dir_fd=fd, effective_ids=True)
        if directory.access == OWNED and (found.st_uid, found.st_gid) != (account.uid, account.gid):
            _give(fd, directory.path, account)
        tree = _check(_libc.syscall(_SYS_OPEN_TREE, fd, b"", _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH
                                    | _AT_RECURSIVE))  # fmt: skip
    finally:
        os.close(fd)
    flags = _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV | (0 if writable else _MOUNT_ATTR_RDONLY)
    attributes = struct.pack("<QQQQ", flags, 0, _MS_PRIVATE, 0)
    how = _AT_EMPTY_PATH | _AT_RECURSIVE
    _check(_libc.syscall(_SYS_MOUNT_SETATTR, tree, b"", how, attributes, len(attributes)))
    return Tree(directory, tree, (found.st_dev, found.st_ino))


def attach(tree: Tree) -> None:
    """Mount the tree at its path, in the mount namespace of this process.

    Raises :class:`RefusedDirectory` if the path does not lead to it afterwards.
    """
    path = tree.directory.path
    where = Directory(path, "/", READ)
    target = open_below(where)
    try:
        how = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
        _check(_libc.syscall(_SYS_MOVE_MOUNT, tree.fd, b"", target, b"", how))
    finally:
        os.close(target)
    shown = open_below(where)
    try:
        found = os.fstat(shown)
    finally:
        os.close(shown)
    if (found.st_dev, found.st_ino) != tree.place:
        raise RefusedDirectory(f"{path} was replaced while the job started: leave it in place, and start the job again")


def look_at(paths: Iterable[str]) -> list[Named]:
    """What bubblewrap is going to mount at its own path. A path that does not exist is left out: it mounts nothing.

    Raises :class:`RefusedDirectory` for a path with a link in it.
    """
    found: list[Named] = []
    for path in paths:
        try:
            fd = _openat2(_AT_FDCWD, path, _RESOLVE_NO_SYMLINKS, directory=False)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise RefusedDirectory(_why_not(error, Directory(path, path, SHARED), None)) from error
        status = os.fstat(fd)
        os.close(fd)
        found.append(Named(path, (status.st_dev, status.st_ino)))
    return found


def verify(named: Named) -> None:
    """Raise :class:`RefusedDirectory` unless the path is, in this mount namespace, where that very file is mounted.

    So it was swapped neither when bubblewrap looked for what to mount nor when it looked for the place.
    """
    try:
        fd = _openat2(_AT_FDCWD, named.path, _RESOLVE_NO_SYMLINKS, directory=False)
    except OSError as error:
        raise RefusedDirectory(_why_not(error, Directory(named.path, named.path, SHARED), None)) from error
    try:
        status = os.fstat(fd)
        is_mounted = _is_mount_root(fd)
    finally:
        os.close(fd)
    if not is_mounted or (status.st_dev, status.st_ino) != named.place:
        raise RefusedDirectory(
            f"{named.path} was replaced while the job started: leave it in place, and start the job again"
        )


def may_enter(path: str, account: Account) -> None:
    """Raise :class:`RefusedDirectory` unless the account reaches ``path`` by its name."""
    with _rights_of(account):
        reached = os.access(path, os.X_OK, effective_ids=True)
    if not reached:
        raise RefusedDirectory(
            f"the account {account.name} ({account.uid}) does not reach {path}: a directory above it is closed to "
            "other accounts (chmod o+x), or choose another place (node.checkpoint_root, state_dir)"
        )


def _give(fd: int, path: str, account: Account) -> None:
    opened = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
    try:
        os.fchown(opened, account.uid, account.gid)
    except PermissionError as error:
        raise RefusedDirectory(
            f"{path} cannot be given to the account {account.name} ({account.uid}): the file system does not let root "
            "do that. Export it to the GPU hosts with no_root_squash, or give users accounts of their own (node.users)"
        ) from error
    finally:
        os.close(opened)


def _why_not(error: OSError, directory: Directory, account: Account | None) -> str:
    path = f"the working directory {directory.path}" if directory.access == AS_ACCOUNT else directory.path
    if error.errno == errno.ENOENT:
        return f"{path} does not exist"
    if error.errno == errno.ENOTDIR:
        return f"{path} is no directory"
    if error.errno in (errno.ELOOP, errno.EXDEV):
        return f"{path} was replaced by a link while the job started: leave it in place, and start the job again"
    if error.errno in (errno.EACCES, errno.EPERM) and account is not None:
        return (
            f"the account {account.name} ({account.uid}) may not enter {path}: open it to that account, "
            "or let the user's jobs run as the account that owns it (node.users)"
        )
    return f"{path} cannot be opened: {error.strerror}"


@contextmanager
def _rights_of(account: Account | None) -> Iterator[None]:
    """Have the rights of ``account`` inside the block. Only for a process with one thread."""
    if account is None:
        yield
        return
    groups, gid, uid = os.getgroups(), os.getegid(), os.geteuid()
    os.setgroups(account.groups)
    os.setegid(account.gid)
    os.seteuid(account.uid)
    try:
        yield
    finally:
        os.seteuid(uid)
        os.setegid(gid)
        os.setgroups(groups)


def _is_mount_root(fd: int) -> bool:
    """True if something is mounted exactly there (statx(2), Linux 5.8)."""
    buffer = ctypes.create_string_buffer(256)
    _check(_libc.statx(fd, b"", _AT_EMPTY_PATH, 0, buffer))
    [attributes] = struct.unpack_from("<Q", buffer, 8)
    return bool(attributes & _STATX_ATTR_MOUNT_ROOT)


def _openat2(below: int, path: str, resolve: int, *, directory: bool = True) -> int:
    flags = os.O_PATH | os.O_CLOEXEC | (os.O_DIRECTORY if directory else 0)
    how = struct.pack("<QQQ", flags, 0, resolve | _RESOLVE_NO_MAGICLINKS)
    return _check(_libc.syscall(_SYS_OPENAT2, below, os.fsencode(path), how, len(how)))


def _errno_of(number: int) -> int:
    """The error of a system call without arguments."""
    ctypes.set_errno(0)
    _libc.syscall(number, -1, None, 0, None, 0)
    return ctypes.get_errno()


def _check(result: Any) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
