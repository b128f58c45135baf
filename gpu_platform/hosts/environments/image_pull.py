"""Gets one image from its registry with ``podman pull``, which is stopped before it fills the disk.

What a registry says of an image is not believed. No file that podman writes becomes larger than the largest image, all
that it has on its way together does not either, and it is stopped while the disks still have room for others. It writes
into a directory of its own, which is removed afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from gpu_platform.disk_room import KEPT_BY_PULLS, is_full
from gpu_platform.hosts.environments import registry_way
from gpu_platform.hosts.environments.registry_way import Registries

_PREFIX = "pull-"
_LOCK = "lock"
LOOK_S = 0.25
"""How often what may take long looks whether it must end."""
_END_S = 10.0
_BOUND = ("setpriv", "--pdeathsig", "TERM", "--", "prlimit")
"""It ends with the node worker: a registry that never answers would keep it for ever."""
_TOO_LARGE = ("file too large", "signal: file size limit")
"""What programs say at the limit of RLIMIT_FSIZE (setrlimit(2))."""


GivenUp = Callable[[], bool]


class Stopped(StrEnum):
    """Why a pull was stopped."""

    TOO_LARGE = "too_large"
    NO_ROOM = "no_room"
    TOO_SLOW = "too_slow"
    GIVEN_UP = "given_up"


class Pulled(NamedTuple):
    """How a pull ended."""

    code: int
    said: str
    """What podman wrote to stderr."""
    stopped: Stopped | None = None


class PullLimits(NamedTuple):
    """``most_bytes``: of the image. ``disks``: directories on the disks that it writes to. ``given_up``: nobody waits
    for the image any more. ``registries``: nothing else is reached."""

    most_bytes: int
    timeout_s: float
    disks: Sequence[Path]
    given_up: GivenUp
    registries: Registries


def pull(reference: str, directory: Path, limits: PullLimits) -> Pulled:
    """Get the image ``docker://…`` into podman's store. What is on its way lies below ``directory`` meanwhile."""
    remove_left_pulls(directory)
    with (
        _own_directory(directory) as (place, lock),
        tempfile.TemporaryFile() as errors,
        registry_way.opened(limits.registries) as way,
    ):
        process = subprocess.Popen(
            [*way.command, *_BOUND, f"--fsize={limits.most_bytes}", "podman", "pull", "--quiet", "--", reference],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env={**way.environ, "TMPDIR": str(place)},
            pass_fds=[lock],  # its directory stays in use until it has ended
        )
        try:
            stopped = _watch(process, place, limits)
        finally:
            _end(process)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip()
    if process.returncode != 0 and any(text in said.lower() for text in _TOO_LARGE):
        stopped = Stopped.TOO_LARGE
    return Pulled(process.returncode, said, stopped)


def remove_left_pulls(directory: Path) -> None:
    """Remove what pulls left that were killed. Those that go on are left alone."""
    for place in directory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), open(place / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)


def _watch(process: subprocess.Popen[bytes], place: Path, limits: PullLimits) -> Stopped | None:
    """Wait for its end, or say why it must end now."""
    deadline = time.monotonic() + limits.timeout_s
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
            return None
        if limits.given_up():
            return Stopped.GIVEN_UP
        if time.monotonic() > deadline:
            return Stopped.TOO_SLOW
        if _size_of(place) > limits.most_bytes:
            return Stopped.TOO_LARGE
        if any(is_full(str(disk), KEPT_BY_PULLS) for disk in limits.disks):
            return Stopped.NO_ROOM


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM lets podman put its store in order."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _own_directory(directory: Path) -> Iterator[tuple[Path, int]]:
    """A new directory and the descriptor of its lock, which says that it is in use."""
    place = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=directory))
    try:
        with open(place / _LOCK, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield place, lock.fileno()
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _size_of(directory: Path) -> int:
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.stat(os.path.join(parent, name), follow_symlinks=False).st_blocks * 512
    return size
