"""A process whose memory nobody can read: one of its threads hangs at a page of a file system that does not answer, and
another one wants to change the memory. Whoever reads ``/proc/<pid>/environ`` or ``cmdline`` waits until that works."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hanging_disk import HangingDisk

PROGRAM = """
import ctypes, os, sys, threading, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.truncate(fd, 1 << 20)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
at = libc.mmap(None, 1 << 20, 3, 1, fd, 0)
print("mapped", flush=True)
sys.stdin.readline()
threading.Thread(target=lambda: ctypes.memmove(at, b"x", 1), daemon=True).start()
time.sleep(0.2)
libc.munmap(at, 1 << 20)
"""


@contextmanager
def hung_process(disk: HangingDisk, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """Its pid. The disk hangs inside the block."""
    argv = [sys.executable, "-S", "-c", PROGRAM, str(disk.path / "mapped")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        try:
            with disk.hangs():
                process.stdin.write(b"\n")
                process.stdin.flush()
                _wait_until_unreadable(process.pid)
                yield process.pid
        finally:
            process.kill()


def _wait_until_unreadable(pid: int) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        states = [path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")]
        if states.count("D") == 2:
            with subprocess.Popen(["cat", f"/proc/{pid}/environ"], stdout=subprocess.DEVNULL) as reader:
                try:
                    reader.wait(0.3)
                except subprocess.TimeoutExpired:
                    reader.kill()
                    return
        time.sleep(0.05)
    pytest.skip("this kernel lets others read the memory of a process that hangs")
