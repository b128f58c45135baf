"""A file system that never answers: FUSE (fuse(4)) whose server reads requests and keeps them, as a dead NFS server.

A process that asks it for something hangs in the kernel. Some kernels do not let even SIGKILL end it, if
the server has read the request.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_IN, _OUT = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
_FUSE_INIT = 26
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def hung_mount(place: Path, *, reads: bool = True) -> Iterator[Path]:
    """Mount it at ``place``. ``reads``: the server reads requests, so that who waits for one cannot be killed."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        pytest.skip("needs root and FUSE")
    place.mkdir(exist_ok=True)
    fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _libc.mount(b"hung", os.fsencode(place), b"fuse.hung", 0, options) != 0:
        os.close(fd)
        pytest.skip(f"FUSE cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    request = os.read(fd, 1 << 17)
    _, opcode, unique, *_ = _IN.unpack_from(request)
    assert opcode == _FUSE_INIT
    answer = _INIT_OUT.pack(7, 31, 1 << 17, 0, 16, 12, 1 << 17, 1, 32, 0, 0)
    os.write(fd, _OUT.pack(_OUT.size + len(answer), 0, unique) + answer)

    def keep() -> None:
        with contextlib.suppress(OSError):
            while os.read(fd, 1 << 17):
                pass

    if reads:
        threading.Thread(target=keep, daemon=True).start()
    try:
        yield place
    finally:
        with _control() as connections:
            Path(connections, str(_device_of(place)), "abort").write_text("1")
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)
        os.close(fd)


@contextmanager
def _control() -> Iterator[str]:
    """The files with which a connection is ended: it may be that nobody has mounted them."""
    if os.listdir("/sys/fs/fuse/connections"):
        yield "/sys/fs/fuse/connections"
        return
    with tempfile.TemporaryDirectory() as place:
        subprocess.run(["mount", "-t", "fusectl", "fusectl", place], check=True)
        try:
            yield place
        finally:
            subprocess.run(["umount", place], check=True)


def _device_of(place: Path) -> int:
    """The number of the connection: the minor number of its device, as mountinfo shows it (proc(5))."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == str(place):
            return int(fields[2].partition(":")[2])
    raise FileNotFoundError(place)
