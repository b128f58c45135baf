"""Files with the output of a script, by the patterns of ``--output`` and ``--error``.

The job writes them itself, with its own account and inside what it may see: a pattern reaches nothing that the script
could not reach by a redirection. The platform's log has everything as well.
"""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Mapping

from gpu_platform.slurm.ids import number_of
from gpu_platform.slurm.patterns import filled

_BLOCK_BYTES = 256 << 10
_PATIENCE_S = 2.0
"""How long output is read after the script has ended. A process that it left behind may keep the pipe open."""


def names_of(environ: Mapping[str, str], job_name: str) -> dict[str, str]:
    """The values of the fields of a pattern for this job."""
    job = number_of(environ.get("GPU_PLATFORM_JOB_ID", ""))
    array, index = environ.get("GPU_PLATFORM_ARRAY_ID"), environ.get("GPU_PLATFORM_ARRAY_INDEX")
    return {
        "j": job,
        "J": job,
        "A": number_of(array) if array is not None else job,
        # Slurm writes this number for a job that is no element of an array.
        "a": index if index is not None else "4294967294",
        "b": str(int(index) % 10) if index is not None and index.isdecimal() else "0",
        "x": job_name,
        "N": environ.get("GPU_PLATFORM_HOST", "").split(".")[0],
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": environ.get("SLURM_JOB_USER") or environ.get("USER", ""),
    }


def open_output(pattern: str, values: Mapping[str, str], *, append: bool) -> int:
    """Open the file of a pattern for writing. Raises ``OSError`` and ``ValueError``.

    In a directory that several accounts write, somebody may have put a link under the name that is expected, to let
    this job overwrite a file of its own user. So a link is not followed, and a pipe is not opened.
    """
    path = filled(pattern, values)
    if "\0" in path or not path:
        raise ValueError(f"{pattern[:80]!r} is not the name of a file")
    mode = os.O_APPEND if append else 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | mode, 0o666)
    found = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(found) or _is_null(descriptor)):
        os.close(descriptor)
        raise OSError(0, "it is no ordinary file", path)
    if not append and stat.S_ISREG(found):
        os.ftruncate(descriptor, 0)
    return descriptor


def _is_null(descriptor: int) -> bool:
    null = os.stat(os.devnull)
    return os.fstat(descriptor).st_rdev == null.st_rdev and stat.S_ISCHR(os.fstat(descriptor).st_mode)


class Tee:
    """A pipe whose content goes into the platform's log and into a file."""

    def __init__(self, log: int, file: int) -> None:
        self._log, self._file = log, file
        self._read_end, self.write_end = os.pipe()
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def finish(self) -> None:
        """Wait until all that was written has arrived, or for 2 s if a process keeps the pipe open."""
        os.close(self.write_end)
        self._thread.join(_PATIENCE_S)

    def _copy(self) -> None:
        to_file = True
        while block := os.read(self._read_end, _BLOCK_BYTES):
            _write(self._log, block)
            if to_file:
                try:
                    _write(self._file, block)
                except OSError as error:  # the disk is full, or the quota used up: the log goes on
                    to_file = False
                    say(f"the file of --output is not written any more: {error.strerror}")


def say(text: str) -> None:
    """Write a line of the platform into the job's log."""
    sys.stderr.write(f"gpu-platform: {text}\n")
    sys.stderr.flush()


def _write(descriptor: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(descriptor, view) :]
