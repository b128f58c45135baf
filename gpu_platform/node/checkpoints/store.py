"""The checkpoints below a host's checkpoint root: which exist, which are complete, and which one to resume from.

::

    <root>/.gpu-platform-root        the root's identity: hosts that read the same one share the root
    <root>/<job>/.request-<attempt>  what the platform asks that attempt's program for
    <root>/<job>/.pins/              checkpoints that an attempt was started from
    <root>/<job>/<attempt>/          COMPLETE: the directory is a checkpoint itself
        step-300/                    COMPLETE, and MANIFEST.json if ``gpu_platform.job`` wrote it

A checkpoint counts as complete once it contains the file ``COMPLETE``, which programs write last. One with a manifest
must agree with it. Users own what is below ``<attempt>``: no link there is followed, and no name or manifest of theirs
makes this fail. How much is read is theirs, too: so it is bounded here, and runs as a step (``checkpoint_steps``).
Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu_platform.domain.errors import PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.domain.jobs.verified import Verified
from gpu_platform.domain.texts import check_text
from gpu_platform.job import COMPLETE, MANIFEST
from gpu_platform.node.checkpoints.directories import SHOWN_FILE, make_shown_directory

IDENTITY = ".gpu-platform-root"
_MANIFEST_BYTES = 8 << 20
_DEEPEST = 64
"""Directories above a file of a manifest. Each is open while the file is looked at."""
_MOST_NAMES = 10_000
"""Directories of an attempt that are looked at."""
MOST_FILES = 100_000
"""Files of a manifest."""
MOST_DAMAGED = 16
"""Damaged checkpoints that a search for one to resume from passes over."""
HASHED_AT_ONCE = 4
"""How many times ``hash_limit_bytes`` one list of checkpoints reads. The rest is verified by sizes."""
_LONGEST_PROBLEM = 300
_BLOCK_BYTES = 1 << 20
_STEP = re.compile(r"step[-_]?(\d{1,18})")


@dataclass(frozen=True)
class StoredCheckpoint:
    """A checkpoint on disk: a :class:`~gpu_platform.domain.jobs.checkpoint.CheckpointInfo` without the hosts."""

    job_id: str
    attempt: int
    name: str
    written_at: float
    path: str
    step: int | None = None
    size_bytes: int | None = None
    verified: Verified | None = None
    problem: str | None = None
    kept: bool = False

    @property
    def complete(self) -> bool:
        """True if a job can resume from it."""
        return self.problem is None

    @property
    def label(self) -> str:
        """Its name within the job, as in a resume point: ``1/step-300``."""
        return f"{self.attempt}/{self.name}" if self.name else str(self.attempt)


class CheckpointStore:
    """The checkpoints below one root.

    The root may be on a network file system, so every method can take as long as that does. ``hash_limit_bytes``:
    larger checkpoints are verified by the sizes of their files only.
    """

    def __init__(self, root: Path, hash_limit_bytes: int = 8 << 30) -> None:
        self.root = root
        self._hash_limit_bytes = hash_limit_bytes
        self._left_bytes = math.inf
        self.hashed: set[tuple[str, int]] = set()
        """(path, time of the manifest) of those whose hashes are right. Damaged ones are read again each time."""

    def identity(self) -> str | None:
        """The id that all hosts sharing the root read; the first host makes it. None: the root cannot be used."""
        path = self.root / IDENTITY
        try:
            if not path.exists():
                make_shown_directory(self.root)
                _create_once(path, secrets.token_hex(16))
            return path.read_text().strip()[:64] or None
        except OSError:
            return None

    def attempts(self, job_id: str) -> list[int]:
        """Attempts of the job that have a directory, oldest first."""
        try:
            names = os.listdir(self.root / job_id)
        except OSError:
            return []
        return sorted(int(name) for name in names if name.isdecimal())

    def list_job(self, job_id: str, *, hashes: bool = False) -> list[StoredCheckpoint]:
        """All checkpoints of the job, oldest first, damaged ones too. ``hashes``: read their bytes, as many as
        :data:`HASHED_AT_ONCE` allows; each says how far it was verified."""
        self._left_bytes = HASHED_AT_ONCE * self._hash_limit_bytes
        found = [
            self.look(job_id, attempt, name, hashes=hashes)
            for attempt in self.attempts(job_id)
            for name, _ in marked(self.root / job_id / str(attempt))
        ]
        return sorted((one for one in found if one is not None), key=by_age)

    def newest(
        self, job_id: str, newest_attempt: int | None, oldest_attempt: int = 1
    ) -> tuple[StoredCheckpoint | None, list[StoredCheckpoint]]:
        """The checkpoint to resume from, of attempts ``oldest_attempt`` to ``newest_attempt``, and the damaged ones
        that are newer.

        The newest attempt that has one decides. In it, the attempt's directory itself comes first, then the checkpoint
        that was completed last. Raises :class:`PreflightFailed` if more than :data:`MOST_DAMAGED` are damaged.
        """
        self._left_bytes = math.inf
        damaged: list[StoredCheckpoint] = []
        for attempt in range(newest_attempt or 0, oldest_attempt - 1, -1):
            marks = marked(self.root / job_id / str(attempt))
            for name, _ in sorted(marks, key=lambda mark: (mark[0] == "", mark[1], mark[0]), reverse=True):
                found = self.look(job_id, attempt, name, hashes=True)
                if found is not None and found.complete:
                    return found, damaged
                damaged += [] if found is None else [found]
                if len(damaged) > MOST_DAMAGED:
                    raise PreflightFailed(
                        f"more than {MOST_DAMAGED} checkpoints of job {job_id} are damaged, the newest of them "
                        f"{damaged[0].label} ({damaged[0].problem}), and no more are searched for one that is whole: "
                        f"name one (resume_from {job_id}:ATTEMPT/NAME), or remove the damaged ones",
                        kind=blame(FailureCause.REQUEST),
                    )
        return None, damaged

    def look(self, job_id: str, attempt: int, name: str, *, hashes: bool = False) -> StoredCheckpoint | None:
        """One checkpoint, verified. None: there is no checkpoint of this name (any more)."""
        directory = self.root / job_id / str(attempt) / name
        try:
            fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            try:
                marker = os.stat(COMPLETE, dir_fd=fd, follow_symlinks=False)
            except OSError:
                return None
            info = StoredCheckpoint(
                job_id=job_id,
                attempt=attempt,
                name=name,
                step=_step_in(name),
                written_at=max(0.0, min(marker.st_mtime, time.time())),
                path=str(directory),
            )
            return self._verify(info, fd, hashes)
        finally:
            os.close(fd)

    def _verify(self, info: StoredCheckpoint, fd: int, hashes: bool) -> StoredCheckpoint:
        try:
            with _open_below(fd, MANIFEST) as file:
                changed_ns = os.fstat(file).st_mtime_ns
                manifest = _parse(_read(file))
        except FileNotFoundError:
            return replace(info, verified=Verified.MARKER)
        except (OSError, ValueError, RecursionError) as error:
            problem = f"its {MANIFEST} cannot be read: {error}"[:_LONGEST_PROBLEM]
            return replace(info, problem=problem)
        files: dict[str, dict[str, Any]] = manifest["files"]
        size = sum(entry["size"] for entry in files.values())
        more: dict[str, Any] = {"size_bytes": size, "kept": manifest.get("keep") is True}
        if _is_count(step := manifest.get("step")):
            more["step"] = step
        known = (info.path, changed_ns) in self.hashed
        wanted = hashes and not known and size <= self._hash_limit_bytes
        hashed = wanted and size <= self._left_bytes
        if hashed:
            self._left_bytes -= size
        problem = next(_problems(fd, files, hashed), None)
        if problem is not None:
            return replace(info, **more, problem=problem[:_LONGEST_PROBLEM])
        if hashed and all("sha256" in entry for entry in files.values()):
            self.hashed.add((info.path, changed_ns))
            known = True
        return replace(info, **more, verified=Verified.HASHES if known else Verified.SIZES)


def marked(directory: Path) -> list[tuple[str, float]]:
    """(name, Unix time) of each complete checkpoint in an attempt's directory. An empty name is the directory
    itself. Links are no checkpoints, nor is what has a name that cannot be shown."""
    found: list[tuple[str, float]] = []
    try:
        with os.scandir(directory) as entries:
            names = (one.name for one in entries if _may_be_checkpoint(one))
            looked_at = ["", *itertools.islice(names, _MOST_NAMES)]
    except OSError:
        return []
    for name in looked_at:
        with contextlib.suppress(OSError):
            found.append((name, os.lstat(directory / name / COMPLETE).st_mtime))
    return found


def _may_be_checkpoint(entry: os.DirEntry[str]) -> bool:
    shown = entry.name.isprintable() and not entry.name.startswith(".")
    return shown and entry.is_dir(follow_symlinks=False)


def _create_once(path: Path, text: str) -> None:
    """Write the file whole or not at all. If it exists already, it stays."""
    temporary = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
    with open(temporary, "x") as file:
        os.fchmod(file.fileno(), SHOWN_FILE)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    with contextlib.suppress(FileExistsError):
        os.link(temporary, path)
    temporary.unlink()


def by_age(info: StoredCheckpoint) -> tuple[int, float, str]:
    """Sort key, oldest first. Later attempts are newer, whatever the clocks say."""
    return info.attempt, info.written_at, info.name


def _step_in(name: str) -> int | None:
    match = _STEP.match(name)
    return None if match is None else int(match[1])


def _parse(data: bytes) -> dict[str, Any]:
    manifest = json.loads(data)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError("it is no manifest")
    if len(manifest["files"]) > MOST_FILES:
        raise ValueError(f"it names {len(manifest['files'])} files, and {MOST_FILES} are the most")
    for name, entry in manifest["files"].items():
        check_text(name, "a name in it")
        if not isinstance(entry, dict) or not _is_count(entry.get("size")):
            raise ValueError(f"it says no size of {name!r}")
        if name.startswith("/") or ".." in name.split("/") or name.count("/") > _DEEPEST:
            raise ValueError(f"it names {name!r}, which is outside or too deep")
    return manifest


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _problems(fd: int, files: dict[str, dict[str, Any]], hashed: bool) -> Iterator[str]:
    for name, entry in files.items():
        try:
            with _open_below(fd, name) as file:
                size = os.fstat(file).st_size
                if size != entry["size"]:
                    yield f"{name} has {size} of {entry['size']} bytes"
                elif hashed and "sha256" in entry and _sha256(file) != entry["sha256"]:
                    yield f"{name} was changed: its SHA-256 differs"
        except FileNotFoundError:
            yield f"{name} is missing"
        except OSError as error:
            yield f"{name} cannot be read: {error.strerror}"


@contextlib.contextmanager
def _open_below(fd: int, name: str) -> Iterator[int]:
    """Open a regular file without following any link."""
    directories: list[int] = []
    *parents, last = name.split("/")
    try:
        for parent in parents:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            directories.append(os.open(parent, flags, dir_fd=directories[-1] if directories else fd))
        file = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directories[-1] if directories else fd)
        directories.append(file)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(22, "it is no regular file")
        yield file
    finally:
        for opened in directories:
            os.close(opened)


def _read(file: int) -> bytes:
    if (size := os.fstat(file).st_size) > _MANIFEST_BYTES:
        raise ValueError(f"it has {size} bytes, and {_MANIFEST_BYTES} are the most")
    with open(file, "rb", closefd=False) as stream:
        return stream.read(_MANIFEST_BYTES)


def _sha256(file: int) -> str:
    digest = hashlib.sha256()
    with open(file, "rb", closefd=False) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
