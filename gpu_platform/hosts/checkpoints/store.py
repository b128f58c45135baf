"""The checkpoints below a host's checkpoint root: which exist, which are complete, and which one to resume from.

::

    <root>/.gpu-platform-root        the root's identity: hosts that read the same one share the root
    <root>/<job>/.request-<attempt>  what the platform asks that attempt's program for
    <root>/<job>/.pins/              checkpoints that an attempt was started from
    <root>/<job>/<attempt>/          COMPLETE: the directory is a checkpoint itself
        step-300/                    COMPLETE, and MANIFEST.json if ``gpu_platform.job`` wrote it

A checkpoint counts as complete once it contains the file ``COMPLETE``, which programs write last. One with a manifest
must agree with it. Users own what is below ``<attempt>``: no link there is followed, and no name or manifest of theirs
makes this fail.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpu_platform.domain.jobs.checkpoint import CheckpointInfo, Verified
from gpu_platform.domain.texts import check_text
from gpu_platform.hosts.checkpoints.directories import SHOWN_FILE, make_shown_directory
from gpu_platform.job import COMPLETE, MANIFEST

IDENTITY = ".gpu-platform-root"
_MANIFEST_BYTES = 8 << 20
_DEEPEST = 64
"""Directories above a file of a manifest. Each is open while the file is looked at."""
_MOST_NAMES = 10_000
"""Directories of an attempt that are looked at."""
_LONGEST_PROBLEM = 300
_BLOCK_BYTES = 1 << 20
_STEP = re.compile(r"step[-_]?(\d{1,18})")


class CheckpointStore:
    """The checkpoints below one root.

    The root may be on a network file system, so every method can take as long as that does. ``hash_limit_bytes``:
    larger checkpoints are verified by the sizes of their files only.
    """

    def __init__(self, root: Path, hash_limit_bytes: int = 8 << 30) -> None:
        self.root = root
        self._hash_limit_bytes = hash_limit_bytes
        self._verified: dict[tuple[str, int], Verified] = {}
        """(path, time of the manifest) -> how far it was verified. Damaged checkpoints are read again each time."""

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

    def list_job(self, job_id: str, *, hashes: bool = False) -> list[CheckpointInfo]:
        """All checkpoints of the job, oldest first, damaged ones too. ``hashes``: read all their bytes."""
        found = [
            self.look(job_id, attempt, name, hashes=hashes)
            for attempt in self.attempts(job_id)
            for name, _ in marked(self.root / job_id / str(attempt))
        ]
        return sorted((one for one in found if one is not None), key=by_age)

    def newest(self, job_id: str, newest_attempt: int | None) -> tuple[CheckpointInfo | None, list[CheckpointInfo]]:
        """The checkpoint to resume from, of attempts up to ``newest_attempt``, and the damaged ones that are newer.

        The newest attempt that has one decides. In it, the attempt's directory itself comes first, then the checkpoint
        that was completed last.
        """
        damaged: list[CheckpointInfo] = []
        for attempt in range(newest_attempt or 0, 0, -1):
            marks = marked(self.root / job_id / str(attempt))
            for name, _ in sorted(marks, key=lambda mark: (mark[0] == "", mark[1], mark[0]), reverse=True):
                found = self.look(job_id, attempt, name, hashes=True)
                if found is not None and found.complete:
                    return found, damaged
                damaged += [] if found is None else [found]
        return None, damaged

    def look(self, job_id: str, attempt: int, name: str, *, hashes: bool = False) -> CheckpointInfo | None:
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
            info = CheckpointInfo(
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

    def _verify(self, info: CheckpointInfo, fd: int, hashes: bool) -> CheckpointInfo:
        try:
            with _open_below(fd, MANIFEST) as file:
                changed_ns = os.fstat(file).st_mtime_ns
                manifest = _parse(_read(file))
        except FileNotFoundError:
            return info.model_copy(update={"verified": Verified.MARKER})
        except (OSError, ValueError, RecursionError) as error:
            problem = f"its {MANIFEST} cannot be read: {error}"[:_LONGEST_PROBLEM]
            return info.model_copy(update={"problem": problem})
        files: dict[str, dict[str, Any]] = manifest["files"]
        size = sum(entry["size"] for entry in files.values())
        more: dict[str, Any] = {"size_bytes": size, "kept": manifest.get("keep") is True}
        if _is_count(step := manifest.get("step")):
            more["step"] = step
        known = self._verified.get((info.path, changed_ns))
        hashed = hashes and known is not Verified.HASHES and size <= self._hash_limit_bytes
        problem = next(_problems(fd, files, hashed), None)
        if problem is not None:
            return info.model_copy(update={**more, "problem": problem[:_LONGEST_PROBLEM]})
        if hashed and all("sha256" in entry for entry in files.values()):
            known = self._verified[info.path, changed_ns] = Verified.HASHES
        return info.model_copy(update={**more, "verified": known or Verified.SIZES})


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


def by_age(info: CheckpointInfo) -> tuple[int, float, str]:
    """Sort key, oldest first. Later attempts are newer, whatever the clocks say."""
    return info.attempt, info.written_at, info.name


def _step_in(name: str) -> int | None:
    match = _STEP.match(name)
    return None if match is None else int(match[1])


def _parse(data: bytes) -> dict[str, Any]:
    manifest = json.loads(data)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise ValueError("it is no manifest")
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
    if os.fstat(file).st_size > _MANIFEST_BYTES:
        raise ValueError("it is too large")
    with open(file, "rb", closefd=False) as stream:
        return stream.read(_MANIFEST_BYTES)


def _sha256(file: int) -> str:
    digest = hashlib.sha256()
    with open(file, "rb", closefd=False) as stream:
        while block := stream.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
