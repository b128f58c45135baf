"""The page of a host: its lease, and who ends which rank with it. It is memory, so no disk that hangs keeps it back.

A file in ``/dev/shm`` that the node worker, the guard and all supervisors of a host share::

    2 copies of the lease   the older one is overwritten, and each has a checksum: readers see a whole one
    the newest guard        its pid and start time, and when it last looked
    slots                   one for each supervisor: who it is, and which rank it has

It lives as long as ranks can: until a reboot, or until the last guard has found nothing left and removes it. Without a
file system in memory it is in the host's directory, and the guard keeps it in memory as well as it can.

A slot belongs to whoever locks its first byte (open file description locks, fcntl(2)). It is free when nobody does and
its content is cleared; of a supervisor that was killed the content stays until the rank was ended. Standard library
only, and little of it: the guard imports this.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from gpu_platform.node.system.process_tree import FoundProcess, boot_id, is_alive
from gpu_platform.node.system.records import PRIVATE_DIRECTORY, PRIVATE_FILE, check_owner

SLOTS = 512
"""How many supervisors a host can have at once."""
_SLOT_BYTES = 512
_HEAD_BYTES = 4096
SIZE_BYTES = _HEAD_BYTES + SLOTS * _SLOT_BYTES

_IN_MEMORY = "/dev/shm"
_TMPFS_MAGIC = 0x0102_1994
"""The kind of a file system, as statfs(2) says it."""

_BOOT = struct.Struct("<8s40s")
_MAGIC = b"gpulease"
_COPY = struct.Struct("<Q d d q q d")
_COPIES_AT = (64, 128)
_SUM = struct.Struct("<I")
_GUARD = struct.Struct("<q q d")
_GUARD_AT = 256
_SLOT = struct.Struct("<q q q q q d 32s 400s")
_FLOCK = "hhqqi4x"
"""The fields of struct flock on 64-bit Linux: type, whence, start, length, pid."""

_REMOVAL_S = 0.005

Read = Callable[[int, int], bytes]
"""``read(at, size)`` gives bytes of the page."""

FREE, IDLE, RELAXED, LEASED = 0, 1, 2, 3
"""States of a slot: nobody's; a process without a rank; with a rank that outlives the lease; with one that ends with
it."""


class Lease(NamedTuple):
    """The lease as the ranks' supervisors see it. Times are seconds of the boot clock."""

    run_until_s: float
    """Ranks must end at this time."""
    leased_until_s: float
    """No rank is started after this time."""
    term: int
    """The host's term when the lease was given. It grows each time that the host is declared LOST."""
    round: int = 0
    """The round in the newest answer. The next node worker brings it back, so its first report renews the lease."""


class Held(NamedTuple):
    """What is in the page: the lease, and when an earlier one ended."""

    lease: Lease
    lapsed_s: float
    """The newest end of a lease that was not renewed in time. Ranks that are older had to end then. -1.0: none."""

    def left_s(self, now: float, since_s: float) -> float:
        """Seconds for which a rank that started at ``since_s`` may run. 0.0: it must end."""
        return 0.0 if self.lapsed_s >= since_s else max(0.0, self.lease.run_until_s - now)


class SlotContent(NamedTuple):
    """One slot: a supervisor, and its rank."""

    state: int
    owner: FoundProcess
    """The supervisor."""
    rank: FoundProcess | None
    """None: it is not known (yet)."""
    since_s: float
    """When the supervisor took the rank, on the boot clock."""
    attempt: bytes
    """See :func:`attempt_mark`."""
    cgroup: str
    """The cgroup of the rank, in the tree that tracks processes. Empty: it has none."""


def page_path(home: str) -> str:
    """The page of a host. ``home``: see ``paths.node_dir``."""
    # Not hashlib: only names of one machine must differ, and the guard stays small.
    name = f"{zlib.crc32(home.encode()):08x}-{os.path.basename(home)}"
    directory = f"{_IN_MEMORY}/gpu-platform-{os.geteuid()}"
    return f"{directory}/{name}" if _is_private_memory(directory) else os.path.join(home, "lease")


def attempt_mark(attempt_dir: str) -> bytes:
    """What stands for an attempt in a slot."""
    path = attempt_dir.encode()
    tail = path[-24:]
    return _SUM.pack(zlib.crc32(path)) + _SUM.pack(len(path)) + tail.rjust(24, b"\0")


def open_page(path: str) -> int:
    """Open the page, and make it if there is none of this boot. Returns a descriptor, which keeps it from being
    removed. Raises ``OSError``."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            _make(path)
            continue
        check_owner(path, os.fstat(fd))
        try:
            _lock(fd, fcntl.F_RDLCK, 0)  # first: whoever removes the page needs it for himself
        except BlockingIOError:
            os.close(fd)
            time.sleep(_REMOVAL_S)
            continue
        if os.pread(fd, _BOOT.size, 0) != _head():
            with suppress(FileNotFoundError):
                os.unlink(path)
        elif _is_at(fd, path):
            return fd
        os.close(fd)


def anonymous_page() -> int:
    """A page without a name, for a host that has no lease. Returns its descriptor."""
    fd = os.memfd_create("gpu-platform-page", os.MFD_CLOEXEC)
    os.truncate(fd, SIZE_BYTES)
    os.pwrite(fd, _head(), 0)
    return fd


def remove_unused(fd: int, path: str) -> None:
    """Remove the page unless somebody else has it open. ``fd``: the caller's, which is closed."""
    with suppress(OSError):
        own = reopen(fd)
        os.close(fd)
        _lock(own, fcntl.F_WRLCK, 0)
        if _is_at(own, path):
            os.unlink(path)


def reopen(fd: int) -> int:
    """Another descriptor of the page, with locks of its own."""
    return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)


def read_held(path: str) -> Held | None:
    """What the page at ``path`` holds. None: there is none, or no lease was given in this boot."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        check_owner(path, os.fstat(fd))
        return held_by(lambda at, size: os.pread(fd, size, at))
    finally:
        os.close(fd)


def held_by(read: Read) -> Held | None:
    """As :func:`read_held`."""
    newest = _newest(read)
    return None if newest is None else Held(Lease(*newest[1:5]), newest[5])


def write_lease_to(fd: int, lease: Lease, now: float) -> None:
    """Replace the lease. It does not block: the page has its memory already."""
    newest = _newest(lambda at, size: os.pread(fd, size, at))
    number, lapsed_s = 1, -1.0
    if newest is not None:
        number, lapsed_s = newest[0] + 1, newest[5]
        if 0 < newest[1] <= now:
            lapsed_s = newest[1]
    content = _COPY.pack(number, *lease, lapsed_s)
    os.pwrite(fd, content + _SUM.pack(zlib.crc32(content)), _COPIES_AT[number % 2])


class GuardSeen(NamedTuple):
    """The newest guard."""

    process: FoundProcess
    looked_s: float
    """When it last looked, on the boot clock."""


def newest_guard(read: Read) -> GuardSeen | None:
    """The guard that wrote itself into the page last. None: none has."""
    pid, started, looked_s = _GUARD.unpack(read(_GUARD_AT, _GUARD.size))
    return GuardSeen(FoundProcess(pid, started), looked_s) if pid else None


def note_guard(fd: int, guard: GuardSeen) -> None:
    """Write the guard into the page."""
    os.pwrite(fd, _GUARD.pack(*guard.process, guard.looked_s), _GUARD_AT)


def taken_slots(read: Read) -> Iterator[tuple[int, SlotContent]]:
    """The slots that are not free, with their numbers."""
    for number in range(SLOTS):
        at = _HEAD_BYTES + number * _SLOT_BYTES
        if read(at, 1) == b"\0":
            continue
        state, owner, since, rank, rank_since, since_s, attempt, cgroup = _SLOT.unpack(read(at, _SLOT.size))
        if state != FREE:
            process = FoundProcess(rank, rank_since) if rank else None
            name = cgroup.rstrip(b"\0").decode(errors="replace")
            yield number, SlotContent(state, FoundProcess(owner, since), process, since_s, attempt, name)


def is_left_by_killed(content: SlotContent) -> bool:
    """True if the supervisor of the slot was killed: nobody watches its rank any more."""
    return not is_alive(content.owner)


def is_registered(read: Read, process: FoundProcess) -> bool:
    """True if the process has a slot."""
    return any(slot.owner == process for _, slot in taken_slots(read))


def clear_slot(fd: int, number: int, content: SlotContent) -> None:
    """Free the slot of a supervisor that was killed, after its rank was ended. ``content``: as it was then."""
    own = reopen(fd)
    try:
        # With the lock: the slot may belong to another supervisor by now.
        _lock(own, fcntl.F_WRLCK, _HEAD_BYTES + number * _SLOT_BYTES)
        at = _HEAD_BYTES + number * _SLOT_BYTES
        if _SLOT.unpack(os.pread(own, _SLOT.size, at))[1:3] == tuple(content.owner):
            os.pwrite(own, bytes(_SLOT.size), at)
    except OSError:  # somebody has it, so it is not that supervisor's any more
        return
    finally:
        os.close(own)


class Slot:
    """The slot of this process, until it ends."""

    def __init__(self, fd: int, number: int, owner: FoundProcess) -> None:
        self._fd, self._at, self._owner = fd, _HEAD_BYTES + number * _SLOT_BYTES, owner

    @classmethod
    def claim(cls, page_fd: int, own_fd: int, owner: FoundProcess) -> Slot:
        """Take a free slot. ``own_fd``: the number of the descriptor that it needs. Raises ``OSError``."""
        fd = reopen(page_fd)
        if fd != own_fd:
            os.dup2(fd, own_fd, inheritable=False)
            os.close(fd)
        for number in (*range(owner.pid % SLOTS, SLOTS), *range(owner.pid % SLOTS)):
            at = _HEAD_BYTES + number * _SLOT_BYTES
            if os.pread(own_fd, 1, at) != b"\0":
                continue
            try:
                _lock(own_fd, fcntl.F_WRLCK, at)
            except BlockingIOError:
                continue
            slot = cls(own_fd, number, owner)
            slot.idle()
            return slot
        raise OSError(errno.EAGAIN, f"this host has {SLOTS} supervisors already")

    def idle(self) -> None:
        """This process has no rank."""
        os.pwrite(self._fd, _SLOT.pack(IDLE, *self._owner, 0, 0, 0.0, b"", b""), self._at)

    def hold(self, state: int, since_s: float, attempt: bytes, cgroup: str) -> None:
        """This process has a rank, which may be executed after this. Raises ``OSError``."""
        name = cgroup.encode()
        if len(name) > 400:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), cgroup)
        # The state comes last: nobody acts on half of a slot.
        os.pwrite(self._fd, _SLOT.pack(IDLE, *self._owner, 0, 0, since_s, attempt, name), self._at)
        os.pwrite(self._fd, struct.pack("<q", state), self._at)

    def started(self, rank: FoundProcess) -> None:
        """The rank is this process."""
        os.pwrite(self._fd, struct.pack("<2q", *rank), self._at + 24)

    def free(self) -> None:
        """This process ends, and leaves nothing."""
        os.pwrite(self._fd, bytes(_SLOT.size), self._at)


def _make(path: str) -> None:
    """Make an empty page, whole or not at all. Another process may be first."""
    os.makedirs(os.path.dirname(path), PRIVATE_DIRECTORY, exist_ok=True)
    partial = f"{path}.{os.getpid()}.partial"
    fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        os.posix_fallocate(fd, 0, SIZE_BYTES)  # a file system that is full later takes nothing back
        os.pwrite(fd, _head(), 0)
        with suppress(FileExistsError):
            os.link(partial, path)
    finally:
        os.close(fd)
        os.unlink(partial)


def _head() -> bytes:
    return _BOOT.pack(_MAGIC, boot_id().encode())


def _newest(read: Read) -> tuple[int, float, float, int, int, float] | None:
    if read(0, _BOOT.size) != _head():
        return None
    found = None
    for at in _COPIES_AT:
        text = read(at, _COPY.size + _SUM.size)
        content = text[: _COPY.size]
        if text[_COPY.size :] != _SUM.pack(zlib.crc32(content)):
            continue
        copy = _COPY.unpack(content)
        if copy[0] and (found is None or copy[0] > found[0]):
            found = copy
    return found


def _is_at(fd: int, path: str) -> bool:
    try:
        there, own = os.stat(path, follow_symlinks=False), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)


def _lock(fd: int, kind: int, at: int) -> None:
    """Lock one byte. Raises ``BlockingIOError`` at once if it is locked."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, at, 1, 0))
    except PermissionError as error:  # some systems say it like this
        raise BlockingIOError(*error.args) from error


def _is_private_memory(directory: str) -> bool:
    """True if the directory is in memory and only this account writes there. It is made if it can be."""
    try:
        if not _is_tmpfs(_IN_MEMORY):
            return False
        with suppress(FileExistsError):
            os.mkdir(directory, PRIVATE_DIRECTORY)
        found = os.stat(directory, follow_symlinks=False)
    except OSError:
        return False
    return found.st_uid == os.geteuid() and found.st_mode & 0o170_077 == 0o040_000


def _is_tmpfs(path: str) -> bool:
    buffer = ctypes.create_string_buffer(256)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.statfs(os.fsencode(path), buffer) != 0:
        return False
    return int.from_bytes(buffer.raw[:8], "little") == _TMPFS_MAGIC
