"""The records on disk that node worker, spawner and supervisor share. Standard library only: the spawner imports it.

In a rank's directory::

    claim        the lock of the rank: locked by the supervisor until nothing of the rank is left; its content names
                 it. The lock is what makes a second start of the rank impossible.
    started.json written before the program is executed. Never removed, so a rank starts once. Without a jail the
                 supervisor writes it, first without the pid of the rank: its own is there then.
    order.json   what it was started with (argv, environment, jail), so that ``exec_helper`` can run
                 another program in the same place. Emptied when the rank has ended.
    exec-<id>    the lock of a helper that runs such a program; removed when nothing of it is left.
    exit.json    how it ended, written by the supervisor before it clears up and goes.
    output.log…  stdout and stderr, kept by the supervisor, from the first byte on; see ``rank_log``.

In the attempt's directory::

    plan.json prepared.json    what was asked, without environments, and what was answered.
    closed       the attempt was stopped. A supervisor looks for it after it took its lock, and the
                 node worker looks for locks after it wrote it: one of the two always sees the other.
    finished     nothing of it lives, and all that the host does after an attempt is done.
    usage.json   what it has used so far; after its end, in all.
    logs-removed.json  when and why the logs went; see ``retention``.
    jail.json    the attempt's cgroup and who holds its namespaces; see ``jail``.
    jail.lock    held while the jail is made, and asked for by ``stop`` once it has closed the attempt.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import time
from _thread import get_ident
from typing import Any

LOCK = "claim"
STARTED = "started.json"
ORDER = "order.json"
EXEC_PREFIX = "exec-"
EXIT = "exit.json"
LOG = "output.log"
PLAN = "plan.json"
PREPARED = "prepared.json"
CLOSED = "closed"
LOGS_REMOVED = "logs-removed.json"
FINISHED = "finished"
USAGE = "usage.json"
JAIL = "jail.json"
JAIL_LOCK = "jail.lock"

_LOCK_BYTES = 200
_PADDED_BYTES = 256
_READ_BYTES = 64 * 1024
_FLOCK = "hhqqi4x"
"""The fields of struct flock on 64-bit Linux: type, whence, start, length, pid."""
_WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700
"""Modes of records and logs: only the platform's own account reads and writes them."""
_OTHERS_WRITE = 0o022

FORMAT = 1
"""The format of all records. Older ones must stay readable: ranks outlive the release that started them."""


class UntrustedRecord(OSError):
    """A record that another account owns or may write. It is not used, whatever it says."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, f"the record is not trusted: {why}", path)


def write_record(path: str, record: dict[str, Any], *, durable: bool) -> None:
    """Replace ``path`` at once: readers see the old record or the new one, never half of one.

    ``durable``: the record is on disk when this returns. A power cut before that leaves the old record; where there
    was none, it may leave an empty one.
    """
    partial = f"{path}.{os.getpid()}-{get_ident()}.partial"
    fd = -1
    # Synced after the rename, the file and its name are in one transaction of the disk's journal instead of two.
    sync_first = durable and os.path.exists(path)
    try:
        fd = _write_file(partial, record)
        if sync_first:
            os.fsync(fd)
        os.rename(partial, path)
        if durable and not sync_first:
            os.fsync(fd)
    except OSError:
        if os.path.exists(partial):
            os.unlink(partial)
        raise
    finally:
        if fd >= 0:
            os.close(fd)
    if durable:
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def write_new(path: str, record: dict[str, Any]) -> None:
    """Write a record that nobody reads before this returns. Not durable."""
    os.close(_write_file(path, record))


class StartRecord:
    """The start record of a rank, written before its program is executed and once more after that, when its pid is
    known. The second write needs no more room on the disk."""

    def __init__(self, path: str, supervisor: dict[str, Any]) -> None:
        """Write the record, with the supervisor in place of the rank. Raises ``OSError``."""
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            self.write(supervisor, pid_known=False)
        except OSError:
            self.withdraw()
            os.close(self._fd)
            raise

    def __enter__(self) -> StartRecord:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def write(self, record: dict[str, Any], *, pid_known: bool) -> None:
        """One write of one size: whoever reads in its middle sees no JSON, or that the pid is not known."""
        _write_padded(self._fd, {"pid_known": pid_known, **record}, self._path)

    def withdraw(self) -> None:
        """Remove it: the program was not executed, so the rank may be started again."""
        os.unlink(self._path)


def write_first_record(path: str, record: dict[str, Any]) -> dict[str, Any]:
    """Write the record unless there is one, and return the one that is there: all writers get the same answer.

    Not durable: a power cut may destroy it.
    """
    partial = f"{path}.{os.getpid()}-{get_ident()}.partial"
    try:
        write_new(partial, record)
        try:
            os.link(partial, path)
        except FileExistsError:
            if (first := read_record(path)) is not None:
                return first
            os.rename(partial, path)  # a power cut destroyed the first one
    finally:
        if os.path.exists(partial):
            os.unlink(partial)
    return record


def _write_padded(fd: int, record: dict[str, Any], path: str) -> None:
    """From the beginning of the file, always as many bytes."""
    text = json.dumps({"format": FORMAT, **record}).ljust(_PADDED_BYTES).encode()
    if os.pwrite(fd, text, 0) < len(text):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def _write_file(path: str, record: dict[str, Any]) -> int:
    """Returns the descriptor of the file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        left = memoryview(json.dumps({"format": FORMAT, **record}).encode())
        while left:  # a disk that is nearly full takes only a part, and the next write says so
            left = left[os.write(fd, left) :]
    except OSError:
        os.close(fd)
        raise
    return fd


def read_record(path: str) -> dict[str, Any] | None:
    """Read a record. None: there is none, or a power cut destroyed one that was not durable. Then no rank of it
    lives.

    Raises :class:`UntrustedRecord` if another account owns the file or may write it: records decide whom the platform
    starts, watches and kills.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UntrustedRecord(path, "it is a link") from None
        raise
    try:
        found = os.fstat(fd)
        check_owner(path, found)
        text = os.read(fd, found.st_size + 1)
        while more := os.read(fd, _READ_BYTES):
            text += more
    finally:
        os.close(fd)
    try:
        record = json.loads(text)
    except ValueError:  # it is no JSON, or not even text
        return None
    if not isinstance(record, dict):
        return None
    if record.pop("format", FORMAT) > FORMAT:
        raise RuntimeError(f"{path} was written by a newer release: install that again before its ranks have ended")
    return record


def check_owner(path: str, found: os.stat_result) -> None:
    """Raise :class:`UntrustedRecord` unless only this account, or root, can write the file."""
    if found.st_uid not in (0, os.geteuid()):
        raise UntrustedRecord(path, f"it belongs to the account {found.st_uid}")
    if not stat.S_ISREG(found.st_mode) or found.st_mode & _OTHERS_WRITE:
        raise UntrustedRecord(path, f"others may write it (mode {stat.S_IMODE(found.st_mode):04o})")


def take_lock(rank_dir: str, name: str = LOCK) -> int | None:
    """Take the lock of a rank. Returns its descriptor. None: a living supervisor (or helper) has it.

    No other program may inherit the descriptor: the lock lives as long as any copy of it (open file description locks,
    fcntl(2)).
    """
    fd = os.open(os.path.join(rank_dir, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
    except (BlockingIOError, PermissionError):
        os.close(fd)
        return None
    return fd


def release_lock(lock: int) -> None:
    """Release the lock. Whoever waits for it is told when the descriptor is closed; see ``lock_watch``."""
    fcntl.fcntl(lock, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))


def write_lock_owner(lock: int, owner: dict[str, Any]) -> None:
    """Write who holds the lock. It is one write of one size, so that nobody reads half of it."""
    os.pwrite(lock, json.dumps(owner).ljust(_LOCK_BYTES).encode(), 0)


def is_locked(rank_dir: str, name: str = LOCK) -> bool:
    """True while a supervisor has this rank, or that helper lives. It takes no lock, so it disturbs nobody."""
    try:
        fd = os.open(os.path.join(rank_dir, name), os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _WHOLE_FILE)
    finally:
        os.close(fd)
    return struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK


def boot_clock_s() -> float:
    """Seconds since boot, suspended time included. All processes share this clock, and nobody can set it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
