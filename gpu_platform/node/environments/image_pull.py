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
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gpu_platform.disk_room import KEPT_BY_PULLS, is_full
from gpu_platform.node.environments import registry_way
from gpu_platform.node.environments.registry_way import Registries
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup
from gpu_platform.node.processes.step_process import Bounds, GivenUp, StepProgram, StepStopped, run

_PREFIX = "pull-"
_LOCK = "lock"
_END_S = 10.0
_MEMORY_BYTES = 4 << 30
_TOO_LARGE = ("file too large", "signal: file size limit")
"""What programs say at the limit of RLIMIT_FSIZE (setrlimit(2))."""


class Pulled(NamedTuple):
    """How a pull ended."""

    code: int
    said: str
    """What podman wrote to stderr."""
    stopped: StepStopped | None = None


class PullLimits(NamedTuple):
    """``most_bytes``: of the image. ``disks``: directories on the disks that it writes to. ``given_up``: nobody waits
    for the image any more. ``registries``: nothing else is reached."""

    most_bytes: int
    timeout_s: float
    disks: Sequence[Path]
    given_up: GivenUp
    registries: Registries
    cgroup: Cgroup | None = None


def pull(reference: str, directory: Path, limits: PullLimits) -> Pulled:
    """Get the image ``docker://…`` into podman's store. What is on its way lies below ``directory`` meanwhile."""
    remove_left_pulls(directory)
    with _own_directory(directory) as (place, lock), registry_way.opened(limits.registries) as way:
        program = StepProgram(
            [*way.command, "podman", "pull", "--quiet", "--", reference],
            cgroup=limits.cgroup,
            env={**way.environ, "TMPDIR": str(place)},
            pass_fds=[lock],  # its directory stays in use until it has ended
            end_signal=signal.SIGTERM,  # it lets podman put its store in order
            end_patience_s=_END_S,
        )
        bounds = Bounds(limits.timeout_s, memory_bytes=_MEMORY_BYTES, file_bytes=limits.most_bytes)
        ended = run(program, bounds, limits.given_up, lambda: _must_end(place, limits))
    stopped = ended.stopped
    if ended.code != 0 and any(text in ended.said.lower() for text in _TOO_LARGE):
        stopped = StepStopped.TOO_LARGE
    return Pulled(ended.code, ended.said, stopped)


def remove_left_pulls(directory: Path) -> None:
    """Remove what pulls left that were killed. Those that go on are left alone."""
    for place in directory.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), open(place / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(place, ignore_errors=True)


def _must_end(place: Path, limits: PullLimits) -> StepStopped | None:
    """Why a pull must end now."""
    if _size_of(place) > limits.most_bytes:
        return StepStopped.TOO_LARGE
    return StepStopped.NO_ROOM if any(is_full(str(disk), KEPT_BY_PULLS) for disk in limits.disks) else None


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
