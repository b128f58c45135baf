"""The host's lease on disk, so that ranks end with it even while the node worker is frozen or dead.

The node worker writes it; the supervisor of each rank reads it and ends its rank when the lease has ended. Times are
of the boot clock (``records.boot_clock_s``), which all processes of a host share. Standard library only: the spawner
imports it.

A full disk must not end the ranks of a host. So there is a second file beside the lease, which has its room already:
if no new file can be written, the lease goes into the second one, and the two change names.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from gpu_platform import disk_room
from gpu_platform.domain.hosts.lease_protocol import may_start
from gpu_platform.hosts.system import records
from gpu_platform.hosts.system.process_tree import boot_id

FILE = "lease.json"
_SPARE = ".spare"
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Lease(NamedTuple):
    """The lease as the ranks' supervisors see it. Times are seconds of the boot clock."""

    run_until_s: float
    """Ranks must end at this time."""
    leased_until_s: float
    """No rank is started after this time."""
    term: int
    """The host's term when the lease was given. It grows each time that the host is declared LOST."""
    round: int = 0
    """The round in the newest answer. The next node worker brings it back, and so its first report renews the lease."""


class LeaseRecord(Protocol):
    """Where a host keeps its lease, so that it survives the node worker and ranks can see it."""

    def read(self) -> Lease | None:
        """The lease. None: there was none in this boot."""
        ...

    def write(self, lease: Lease) -> None:
        """Replace the lease. Raises ``OSError``, e.g. if the disk is full and there is no second file yet."""
        ...


class LeaseFile:
    """A :class:`LeaseRecord` on disk, which supervisors read."""

    def __init__(self, path: str) -> None:
        self._path = path

    def read(self) -> Lease | None:
        """See :class:`LeaseRecord`."""
        return read_lease(self._path)

    def write(self, lease: Lease) -> None:
        """See :class:`LeaseRecord`."""
        write_lease(self._path, lease)


def lease_path(home: str) -> str:
    """The file of the lease. ``home``: see ``paths.node_dir``."""
    return os.path.join(home, FILE)


def write_lease(path: str, lease: Lease) -> None:
    """Replace the lease on disk. A power loss ends the ranks as well, so it is not fsynced."""
    record = {**lease._asdict(), "boot_id": boot_id()}
    spare = f"{path}{_SPARE}"
    try:
        records.write_record(path, record, durable=False)
    except OSError as error:
        if not disk_room.fails_because_full(error) or not os.path.exists(spare):
            raise
        _write_without_room(path, spare, record)
        return
    if not os.path.exists(spare):
        with suppress(OSError):  # the disk is full: it is tried again with the next lease
            records.write_in_place(spare, record)


def _write_without_room(path: str, spare: str, record: dict[str, Any]) -> None:
    """Whoever reads ``path`` meanwhile has the old lease or the new one: each is in a file that is not written to."""
    records.write_in_place(spare, record)
    names = (os.fsencode(spare), os.fsencode(path))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def read_lease(path: str) -> Lease | None:
    """The lease on disk. None: there was none in this boot."""
    record = records.read_record(path)
    if record is None or record["boot_id"] != boot_id():
        return None
    return Lease(record["run_until_s"], record["leased_until_s"], record["term"], record["round"])


def why_not_start(path: str, term: int) -> str | None:
    """Why a rank that was planned in ``term`` of this host must not start now. None: it may. ``term`` 0 is not
    checked."""
    return refusal(read_lease(path), term)


def refusal(lease: Lease | None, term: int) -> str | None:
    """As :func:`why_not_start`, for a lease that was read already."""
    now = records.boot_clock_s()
    if lease is not None and may_start(now, lease.leased_until_s, lease.term, term):
        return None
    if lease is None or now >= lease.leased_until_s:
        return "the host has no valid lease: it does not reach the control plane"
    return f"the host was declared LOST since the launch was planned (term {term}, now {lease.term})"


def may_start_later(path: str, term: int) -> bool:
    """True if a rank that was planned in ``term`` may start after the host's lease is renewed."""
    return is_renewable(read_lease(path), term)


def is_renewable(lease: Lease | None, term: int) -> bool:
    """As :func:`may_start_later`, for a lease that was read already."""
    if lease is None:
        return True
    return term > lease.term or (term in (0, lease.term) and records.boot_clock_s() >= lease.leased_until_s)


def ends_in_s(path: str) -> float:
    """Seconds until ranks must end. 0.0: they must end now."""
    lease = read_lease(path)
    return 0.0 if lease is None else max(0.0, lease.run_until_s - records.boot_clock_s())
