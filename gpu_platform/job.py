"""For programs that run as jobs: resume from a checkpoint, save one safely, and learn when the platform wants one.

::

    from gpu_platform import job

    directory = job.resume_dir()            # None: start from the beginning
    for step in range(first, last):
        train(step)
        if job.should_checkpoint(every_s=1800):
            with job.save(step) as directory:
                write_state(directory / "state.bin")

It needs only the standard library, and works outside the platform too: then nobody asks for checkpoints, and they are
written to ``./checkpoints``. One process of a gang saves (rank 0). To save from several, let rank 0 open ``save``, send
the directory to the others, and leave the ``with`` block after a barrier.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

MANIFEST = "MANIFEST.json"
COMPLETE = "COMPLETE"
SAVING = ".saving-"
"""The beginning of the name of a checkpoint that is being written."""
LISTENING = ".listening"
"""A file in the attempt's directory. It says that the program calls :func:`should_checkpoint`, so the platform waits
for its answer."""

_OUTSIDE = "checkpoints"
_POLL_S = 0.25
_BLOCK_BYTES = 1 << 20


def resume_dir() -> Path | None:
    """The complete checkpoint from which this attempt resumes. None: start from the beginning."""
    directory = os.environ.get("GPU_PLATFORM_RESUME_FROM")
    return Path(directory) if directory else None


def checkpoint_dir() -> Path:
    """The directory for the checkpoints of this attempt."""
    return Path(os.environ.get("GPU_PLATFORM_CHECKPOINT_DIR") or _OUTSIDE)


@contextlib.contextmanager
def save(step: int | None = None, *, keep: bool = False, hashes: bool = True) -> Iterator[Path]:
    """Give an empty directory to write into. At the end of the ``with`` block it becomes a checkpoint, all at once.

    At every moment, also after a power cut, the checkpoint is there completely or not at all. After an exception in the
    block there is none. ``keep``: the platform never removes it. ``hashes=False``: the manifest has only the sizes of
    files, which saves reading all of them again (about a second per GB). Raises ``OSError``, e.g. if the disk is full.
    """
    answers = _requests.newest()
    parent = checkpoint_dir()
    parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=SAVING, dir=parent))
    try:
        temporary.chmod(0o755)
        yield temporary
        _seal(temporary, step, keep, hashes)
        _publish(temporary, parent, f"step-{step}" if step is not None else f"at-{time.strftime('%Y%m%d-%H%M%S')}")
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _requests.saved(answers)


def should_checkpoint(every_s: float | None = None) -> bool:
    """True if it is time to save.

    It is True until the next :func:`save` if the platform asks (at its interval, or before it stops the job), if
    ``every_s`` seconds have passed since the last save, or after the signal of the job's policy. It costs little: call
    it after every step. Ranks may see it one step apart, so let rank 0 decide for all.
    """
    return _requests.due(every_s)


def why() -> str | None:
    """Why the platform asks now, e.g. ``interval`` or ``stop``. None: it does not ask."""
    request = _requests.open_request()
    return None if request is None else str(request.get("why", ""))


class _Requests:
    """What the platform asks for: a file that it replaces, and a signal after which we look at once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._listens = False
        self._signalled = False
        self._looked_at: float | None = None
        self._request: dict[str, Any] | None = None
        self._answered: str | None = None
        self._saved_at = time.monotonic()

    def newest(self) -> str | None:
        """The id of the current request, which a save that begins now answers."""
        with self._lock:
            self._signalled = False
            request = self._read()
            return None if request is None else str(request.get("id"))

    def saved(self, request_id: str | None) -> None:
        with self._lock:
            self._answered = request_id or self._answered
            self._saved_at = time.monotonic()

    def due(self, every_s: float | None) -> bool:
        self._listen()
        if self.open_request() is not None or self._signalled:
            return True
        return every_s is not None and time.monotonic() - self._saved_at >= every_s

    def open_request(self) -> dict[str, Any] | None:
        with self._lock:
            now = time.monotonic()
            if self._signalled or self._looked_at is None or now - self._looked_at >= _POLL_S:
                self._looked_at = now
                self._read()
            request = self._request
            return None if request is None or request.get("id") == self._answered else request

    def _read(self) -> dict[str, Any] | None:
        path = os.environ.get("GPU_PLATFORM_CHECKPOINT_REQUEST")
        if path:
            try:
                with open(path, encoding="utf-8") as file:
                    found = json.load(file)
                self._request = found if isinstance(found, dict) else None
            except (OSError, ValueError):
                self._request = None
        return self._request

    def _listen(self) -> None:
        """Once: say that the program listens, and handle the signal if the program does not."""
        with self._lock:
            if self._listens:
                return
            self._listens = True
        if os.environ.get("GPU_PLATFORM_CHECKPOINT_REQUEST"):
            with contextlib.suppress(OSError):
                (checkpoint_dir() / LISTENING).touch()
        name = os.environ.get("GPU_PLATFORM_CHECKPOINT_SIGNAL", "")
        number = getattr(signal, f"SIG{name}", None) if name else None
        if number is None or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, self._hear)
            signal.siginterrupt(number, False)  # C libraries do not expect interrupted system calls

    def _hear(self, _number: int, _frame: FrameType | None) -> None:
        self._signalled = True


_requests = _Requests()


def _seal(directory: Path, step: int | None, keep: bool, hashes: bool) -> None:
    files: dict[str, dict[str, Any]] = {}
    ours = (directory / MANIFEST, directory / COMPLETE)
    for path in sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()):
        if path in ours:
            continue
        entry: dict[str, Any] = {"size": path.stat().st_size}
        if hashes:
            entry["sha256"] = sha256_of(path)
        _sync(path)
        files[path.relative_to(directory).as_posix()] = entry
    manifest = {"version": 1, "step": step, "saved_at": time.time(), "keep": keep, "files": files}
    for name, text in ((MANIFEST, json.dumps(manifest)), (COMPLETE, f"step {step}\n")):
        (directory / name).write_text(text)
        _sync(directory / name)
    for below in [*(path for path in directory.rglob("*") if path.is_dir() and not path.is_symlink()), directory]:
        _sync(below)


def _publish(temporary: Path, parent: Path, name: str) -> None:
    """Rename the checkpoint to a name that is not in use. Existing files stay."""
    for number in range(1, 100_000):
        target = parent / (name if number == 1 else f"{name}.{number}")
        if os.path.lexists(target):
            continue
        try:
            os.rename(temporary, target)
        except OSError:
            if os.path.lexists(target):
                continue  # another rank took the name
            raise
        _sync(parent)
        return
    raise FileExistsError(f"{parent} has no free name for {name}")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
