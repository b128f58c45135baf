"""Removes checkpoints that newer ones replace, and never the only work of a job.

The newest complete, verified checkpoints of each job stay. So do checkpoints that an attempt started from, and those
that the program wants to keep. A checkpoint is renamed before it is removed. After a crash in between, either the
checkpoint is there, or a rest that nobody takes for a checkpoint; the next sweep removes it. Several hosts may sweep
one root: a host removes a checkpoint only if it has itself seen enough newer, complete ones. Standard library only: it
runs as a step (``checkpoint_steps``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_platform.domain.jobs.verified import Verified
from gpu_platform.job import SAVING
from gpu_platform.node.checkpoints.pins import pinned
from gpu_platform.node.checkpoints.store import CheckpointStore, StoredCheckpoint, by_age, marked

if TYPE_CHECKING:
    from gpu_platform.domain.contracts import AttemptKey

REMOVED = ".removed-"


def surplus(
    found: Iterable[StoredCheckpoint], keep: int, in_use: Collection[str], older_than: float, *, any_kind: bool
) -> list[StoredCheckpoint]:
    """Checkpoints that may be removed, oldest first: at least ``keep`` complete ones are newer, and it is older than
    ``older_than``.

    ``in_use``: labels that must stay. A directory that is a checkpoint itself stays. So does a checkpoint without a
    manifest unless ``any_kind``: only the job can say that it is not needed any more.
    """
    newest_first = sorted(found, key=by_age, reverse=True)
    complete = [one for one in newest_first if one.complete]
    if len(complete) < keep:
        return []
    oldest_kept = complete[keep - 1]
    return [
        one
        for one in reversed(newest_first)
        if by_age(one) < by_age(oldest_kept)
        and one.name
        and not one.kept
        and one.label not in in_use
        and one.written_at <= older_than
        and (any_kind or one.verified is not Verified.MARKER)
    ]


def may_have_surplus(job_dir: Path, keep: int, attempts: Iterable[int]) -> bool:
    """False if a sweep would find nothing to remove. It looks at names only."""
    marks = 0
    for attempt in attempts:
        directory = job_dir / str(attempt)
        marks += len(marked(directory))
        left = (name for name in os.listdir(directory) if name.startswith((REMOVED, SAVING)))
        if marks > keep or any(left):
            return True
    return False


class CheckpointRetention:
    """Removes surplus checkpoints.

    ``surplus_s``: for how many seconds a surplus checkpoint stays. ``keep``: how many checkpoints stay for jobs that do
    not say.
    """

    def __init__(self, store: CheckpointStore, keep: int, surplus_s: float) -> None:
        self._store = store
        self._keep = keep
        self._surplus_s = surplus_s

    def sweep_job(self, key: AttemptKey, keep: int | None) -> list[str]:
        """Sweep one job. ``keep``: what the job asks for. Raises ``OSError`` if the root cannot be read or written."""
        job_dir = self._store.root / key.job_id
        self._end_removals(key.job_id)
        older_than = time.time() - self._surplus_s
        found = self._store.list_job(key.job_id)
        gone: list[str] = []
        in_use = pinned(self._store.root, key.job_id)
        for one in surplus(found, keep or self._keep, in_use, older_than, any_kind=keep is not None):
            if self._remove(job_dir / str(one.attempt), one):
                gone.append(one.path)
        self._drop_unfinished(job_dir, key.attempt, older_than)
        return gone

    def _remove(self, attempt_dir: Path, info: StoredCheckpoint) -> bool:
        if os.path.islink(attempt_dir / info.name):
            return False
        doomed = attempt_dir / f"{REMOVED}{secrets.token_hex(4)}-{info.name}"
        with contextlib.suppress(FileNotFoundError):  # another host removed it first
            self._rename(attempt_dir / info.name, doomed)
            return self._end_removal(doomed, info.job_id)
        return False

    def _end_removals(self, job_id: str) -> None:
        """Finish removals that a crash interrupted."""
        for attempt in self._store.attempts(job_id):
            for doomed in (self._store.root / job_id / str(attempt)).glob(f"{REMOVED}*"):
                self._end_removal(doomed, job_id)

    def _end_removal(self, doomed: Path, job_id: str) -> bool:
        """Finish one removal. Returns False if an attempt has just pinned the checkpoint: then it is put back."""
        name = doomed.name.removeprefix(REMOVED).partition("-")[2]
        original = f"{doomed.parent}/{name}"
        if f"{doomed.parent.name}/{name}" in pinned(self._store.root, job_id) and not os.path.lexists(original):
            self._rename(doomed, Path(original))
            return False
        if doomed.is_symlink():
            doomed.unlink()
        else:
            self._remove_tree(doomed)
        return True

    def _drop_unfinished(self, job_dir: Path, live_attempt: int, older_than: float) -> None:
        """Remove checkpoints that programs of earlier attempts began to write and never finished."""
        for attempt in self._store.attempts(job_dir.name):
            if attempt >= live_attempt:
                continue
            for path in (job_dir / str(attempt)).glob(f"{SAVING}*"):
                with contextlib.suppress(FileNotFoundError):
                    if os.lstat(path).st_mtime <= older_than:
                        self._remove_tree(path)

    # Separate methods, so that a test can crash between them.

    def _rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def _remove_tree(self, path: Path) -> None:
        """Remove a directory. Safe if a user puts links into it meanwhile, and however deep it is: ``shutil.rmtree``
        calls itself for each level, and has it open."""
        program = shutil.which("rm", path="/usr/bin:/bin")
        if program is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "rm")
        done = subprocess.run(
            [program, "-rf", "--one-file-system", "--", path], capture_output=True, env={"LC_ALL": "C"}, check=False
        )
        if done.returncode != 0:
            raise OSError(errno.EIO, done.stderr.decode(errors="replace").strip()[-300:], str(path))
