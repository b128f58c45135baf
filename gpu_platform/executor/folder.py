"""The directory of one submission: the function, its arguments, and what the jobs wrote.

What the jobs wrote is unpickled here, and whoever may write a pickle runs code as its reader. So a directory is made
for this account alone, below directories that nobody else may change, and each file is checked when it is opened.
"""

from __future__ import annotations

import os
import pickle
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.executor import run_call

RUNNER = "run_call.py"


class Failed(NamedTuple):
    """How a call failed: the text of its traceback, and the exception as pickled bytes if it can be rebuilt."""

    trace: str
    error: bytes | None


class Folder:
    """The files of one submission, on a file system that this machine shares with the hosts."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def make(cls, path: Path, function: bytes, calls: Sequence[bytes]) -> Folder:
        """Write everything that the jobs read. Raises :class:`InvalidRequest` if others may change the place."""
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        check_place(path.parent)
        path.mkdir(0o700)
        for name in ("arguments", "results", "errors"):
            (path / name).mkdir(0o700)
        shutil.copyfile(run_call.__file__, path / RUNNER)
        version = "{}.{}\n".format(*sys.version_info)
        (path / "function").write_bytes(version.encode() + function)
        for index, call in enumerate(calls):
            (path / "arguments" / str(index)).write_bytes(call)
        return cls(path)

    def note_job(self, job_id: str) -> None:
        """Write down which job or array runs the calls."""
        (self.path / "job").write_text(job_id)

    @property
    def size(self) -> int:
        """How many calls there are."""
        return len(os.listdir(self.path / "arguments"))

    def value(self, index: int) -> Any:
        """What the call returned. Raises ``FileNotFoundError``, :class:`InvalidRequest` for a file that is not to be
        trusted, and whatever unpickling raises."""
        return pickle.loads(self._read("results", str(index)))

    def failed(self, index: int, attempt: int) -> Failed | None:
        """How the call failed in this attempt. None: it did not say."""
        try:
            return Failed(*pickle.loads(self._read("errors", f"{index}.{attempt}")))
        except FileNotFoundError:
            return None

    def said_something(self, index: int) -> bool:
        """True if there is a result, or an error of the first attempt. It is only a hint: the platform knows."""
        return any((self.path / place).exists() for place in (f"results/{index}", f"errors/{index}.1"))

    def remove(self) -> None:
        """Remove it. Nothing of its jobs runs."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _read(self, *names: str) -> bytes:
        """A file of this account alone, below a directory of this account alone. No link is followed."""
        check_place(self.path)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        directory = os.open(self.path, flags | os.O_DIRECTORY)
        try:
            for name in names[:-1]:
                below = os.open(name, flags | os.O_DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = below
                _check(os.fstat(directory), self.path / name)
            file = os.open(names[-1], flags | os.O_NONBLOCK, dir_fd=directory)
        finally:
            os.close(directory)
        with open(file, "rb") as opened:
            _check(os.fstat(file), self.path.joinpath(*names), stat.S_ISREG)
            return opened.read()


def check_place(path: Path) -> None:
    """Raise :class:`InvalidRequest` unless ``path`` is this account's directory and nobody else can put another one in
    its place."""
    path = Path(os.path.realpath(path))
    _check(os.stat(path), path)
    for above in path.parents:
        found = os.stat(above)
        sticky = found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()) or (found.st_mode & 0o022 and not sticky):
            raise _not_trusted(above)


def _check(found: os.stat_result, path: Path, is_kind: Callable[[int], bool] = stat.S_ISDIR) -> None:
    if not is_kind(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise _not_trusted(path)


def _not_trusted(path: Path) -> InvalidRequest:
    return InvalidRequest(
        f"{path} belongs to another account or may be written by others, who could put a result there that runs code "
        "as you: name a directory of your own with Executor(directory=…)",
        path=str(path),
    )
