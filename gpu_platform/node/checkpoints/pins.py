"""Records which checkpoints attempts started from. The records are on the root, so that every host sees them.
Standard library only."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_platform.node.checkpoints.directories import make_shown_directory

if TYPE_CHECKING:
    from gpu_platform.domain.contracts import AttemptKey
    from gpu_platform.node.checkpoints.store import StoredCheckpoint

_PINS = ".pins"


def pin(root: Path, info: StoredCheckpoint, by: AttemptKey) -> None:
    """Protect the checkpoint from removal until :func:`unpin`. Check afterwards that it still exists."""
    path = _path(root, info.job_id, info.label, by)
    make_shown_directory(path.parent)
    path.touch()


def unpin(root: Path, job_id: str, by: AttemptKey) -> None:
    """Remove all pins that ``by`` has on the job's checkpoints."""
    for path in (root / job_id / _PINS).glob(f"*~{by.job_id}~{by.attempt}"):
        path.unlink(missing_ok=True)


def pinned(root: Path, job_id: str) -> set[str]:
    """Labels (``1/step-300``) of the job's checkpoints from which a running attempt started.

    Raises ``OSError`` if they cannot be read.
    """
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        names = [path.name for path in (root / job_id / _PINS).iterdir()]
    return {name.rsplit("~", 2)[0].replace("~", "/", 1) for name in names}


def _path(root: Path, job_id: str, label: str, by: AttemptKey) -> Path:
    return root / job_id / _PINS / f"{label.replace('/', '~', 1)}~{by.job_id}~{by.attempt}"
