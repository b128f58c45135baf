"""The records on disk that agent, spawner and supervisor share. Standard library only: the spawner imports it.

In a rank's directory::

    claim        the lock of the rank: locked by the supervisor for as long as it lives; its content names it.
                 The lock is what makes a second start of the rank impossible.
    started.json written by the rank before it executes its program. Never removed, so a rank starts once.
    order.json   what it was started with (argv, environment, jail), so that ``exec_helper`` can run
                 another program in the same place. Removed when the rank has ended.
    exec-<id>    the lock of a helper that runs such a program; removed when nothing of it is left.
    exit.json    how it ended, written by the supervisor before it clears up and goes.
    output.log…  stdout and stderr, kept by the supervisor; see ``rank_log``.

In the attempt's directory::

    plan.json prepared.json    what was asked, without environments, and what was answered.
    closed       the attempt was stopped. A supervisor looks for it after it took its lock, and the
                 agent looks for locks after it wrote it: one of the two always sees the other.
    watch.json   the token of the step that watches the attempt, for the next node worker.
    finished     nothing of it lives, and all that the host does after an attempt is done.
    usage.json   what it has used so far; after its end, in all.
    logs-removed.json  when and why the logs went; see ``retention``.
    fence.json   the attempt's cgroup and who holds its namespaces; see ``jail``.
    fence.lock   held while the jail is made, and asked for by ``stop`` once it has closed the attempt.
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
WATCH = "watch.json"
JAIL = "fence.json"
JAIL_LOCK = "fence.lock"

_LOCK_BYTES = 200
_FLOCK = "hhqqi4x"
"""The fields of struct flock on 64-bit Linux: type, whence, start, length, pid."""
_WHOLE_FILE = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700
"""Modes of records and logs: only the platform's own account reads and writes them."""
_OTHERS_WRITE = 0o022

FORMAT = 1
"""The format of all records. Older ones must stay readable: ranks outlive the release that started them. Records
from before this number existed have none."""


class UntrustedRecord(OSError):
    """A record that another account owns or may write. It is not used, whatever it says."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errno.EPERM, f"the record is not trusted: {why}", path)


def write_record(path: str, record: dict[str, Any], *, durable: bool) -> None:
    """Replace ``path`` at once: readers see the old record or the new one, never half of one.

    ``durable``: the record is on disk when this returns.
    """
    partial = f"{path}.{os.getpid()}-{get_ident()}.partial"
    try:
        _write_file(partial, record, durable=durable)
        os.rename(partial, path)
    except OSError:
        if os.path.exists(partial):
            os.unlink(partial)
        raise
    if durable:
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def write_first_record(path: str, record: dict[str, Any]) -> dict[str, Any]:
    """Write the record unless there is one, and return the one that is there: all writers get the same answer.

    Not durable: a power cut may destroy it.
    """
    partial = f"{path}.{os.getpid()}-{get_ident()}.partial"
    try:
        _write_file(partial, record, durable=False)
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


def _write_file(path: str, record: dict[str, Any], *, durable: bool) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        left = memoryview(json.dumps({"format": FORMAT, **record}).encode())
        while left:  # a disk that is nearly full takes only a part, and the next write says so
            left = left[os.write(fd, left) :]
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)


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
    with open(fd, "rb") as file:
        _check_owner(path, os.fstat(fd))
        text = file.read()
    try:
        record = json.loads(text)
    except ValueError:  # it is no JSON, or not even text
        return None
    if not isinstance(record, dict):
        return None
    if record.pop("format", FORMAT) > FORMAT:
        raise RuntimeError(f"{path} was written by a newer release: install that again before its ranks have ended")
    return record


def _check_owner(path: str, found: os.stat_result) -> None:
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


def write_lock_owner(lock: int, owner: dict[str, Any]) -> None:
    """Write who holds the lock. It is one write of one size, so that nobody reads half of it."""
    os.pwrite(lock, json.dumps(owner).ljust(_LOCK_BYTES).encode(), 0)


def is_locked(rank_dir: str, name: str = LOCK) -> bool:
    """True while a supervisor of this rank, or that helper, lives. It takes no lock, so it disturbs nobody."""
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
