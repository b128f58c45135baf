"""The host's lease, so that ranks end with it even while the node worker is frozen or dead.

The node worker writes it into the host's page (``lease_page``), which is memory; the supervisor of each rank and the
guard read it there and end ranks when the lease has ended. No disk is needed for that: neither one that is full nor one
that hangs ends the ranks of a host, or keeps them alive. Times are of the boot clock (``records.boot_clock_s``), which
all processes of a host share. Standard library only: the spawner imports it.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

from gpu_platform.domain.hosts.lease_protocol import may_start
from gpu_platform.node.system import records
from gpu_platform.node.system.lease_page import Lease, open_page, page_path, read_held, write_lease_to


class LeaseRecord(Protocol):
    """Where a host keeps its lease, so that it survives the node worker and ranks can see it."""

    def read(self) -> Lease | None:
        """The lease. None: there was none in this boot."""
        ...

    def write(self, lease: Lease) -> None:
        """Replace the lease. It does not wait for a disk."""
        ...


class LeaseFile:
    """A :class:`LeaseRecord` in the page at ``path``, which is made if there is none. Raises ``OSError`` if it cannot
    be."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd = open_page(path)

    def read(self) -> Lease | None:
        """See :class:`LeaseRecord`."""
        return read_lease(self._path)

    def write(self, lease: Lease) -> None:
        """See :class:`LeaseRecord`."""
        write_lease_to(self._fd, lease, records.boot_clock_s())

    def close(self) -> None:
        """Write no more. Ranks keep to the lease as it is."""
        os.close(self._fd)


def lease_path(home: str) -> str:
    """The page with the lease. ``home``: see ``paths.node_dir``."""
    return page_path(home)


def write_lease(path: str, lease: Lease) -> None:
    """Replace the lease in the page at ``path``, which is made if there is none. Raises ``OSError``."""
    record = LeaseFile(path)
    try:
        record.write(lease)
    finally:
        record.close()


def read_lease(path: str) -> Lease | None:
    """The lease in the page. None: there was none in this boot."""
    held = read_held(path)
    return None if held is None else held.lease


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


def ends_in_s(path: str, since_s: float = math.inf) -> float:
    """Seconds until a rank that started at ``since_s`` must end. 0.0: it must end now.

    A lease that ended since, and was given again, counts as well: the host may have been LOST meanwhile.
    """
    held = read_held(path)
    return 0.0 if held is None else held.left_s(records.boot_clock_s(), since_s)
