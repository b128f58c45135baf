"""Reads XIDs that the driver writes to the kernel's log, ``/dev/kmsg`` (Documentation/ABI/testing/dev-kmsg).

A line reads ``NVRM: Xid (PCI:0000:1b:00): 31, pid=…`` (NVIDIA, "XID Errors"); each read of the device gives
one record, ``priority,sequence,microseconds,flags;text``.
"""

from __future__ import annotations

import errno
import os
import re
import select
import threading
from collections.abc import Iterator
from pathlib import Path

_XID = re.compile(rb"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\)(?:[^:]*): (\d+)")
_FATAL = re.compile(rb"\bFatal\b")
"""Matches the severity of NVLink 5 errors (XID 144 to 150): ``Fatal``, or ``Nonfatal``, follows the number."""
_RECORD_BYTES = 8192
_WAIT_MS = 500


class KernelLog:
    """Reads XIDs from the kernel's log. ``path``: ``/dev/kmsg``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def follow(self, stopping: threading.Event) -> Iterator[tuple[str, int, bool]]:
        """(PCI address, XID, is it called fatal) of each XID that is logged from now on, until ``stopping`` is set.

        Raises ``OSError``.
        """
        fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.lseek(fd, 0, os.SEEK_END)
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            while not stopping.is_set():
                if not poll.poll(_WAIT_MS):
                    continue
                try:
                    found = parse(os.read(fd, _RECORD_BYTES))
                except OSError as error:
                    if error.errno in (errno.EAGAIN, errno.EPIPE):  # EPIPE: records were overwritten before we came
                        continue
                    raise
                if found is not None:
                    yield found
        finally:
            os.close(fd)


def parse(record: bytes) -> tuple[str, int, bool] | None:
    """Read one record of the log. None: it reports no XID."""
    match = _XID.search(record)
    if match is None:
        return None
    return place_of(match[1].decode()), int(match[2]), _FATAL.search(record, match.end()) is not None


def place_of(bus_id: str) -> str:
    """The PCI address in one form: ``00000000:1B:00.0``, ``0000:1b:00`` and ``0000:1b:00.0`` all become ``0:1b:0``."""
    domain, bus, device = bus_id.lower().split(".")[0].split(":")
    return f"{int(domain, 16):x}:{int(bus, 16):x}:{int(device, 16):x}"
