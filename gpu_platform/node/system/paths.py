"""The files and directories of a host. Several simulated hosts may share one ``state_dir``.

::

    <state_dir>/nodes/<host>/
        nvml/                           control directory of the simulated GPUs
        gpu-history.jsonl               faults of this host's GPUs
        samples/                        what its GPUs did: see ``accounting/sample_files.py``
        jobs/<job>/<attempt>/
            plan.json prepared.json     the host's part of the attempt
            closed                      stopped: nothing may start here any more
            rank-<n>/                   see ``records``
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.errors import NotFound

_REMEMBERED = 4096
"""How many paths are kept: each is asked for dozens of times while its attempt lasts, and pathlib is slow."""


def node_dir(state_dir: Path, host: str) -> Path:
    """The host's own directory. Elsewhere it is called ``home``."""
    return state_dir / "nodes" / host


def control_dir(node_dir: Path) -> Path:
    """The directory through which other processes inject faults into simulated GPUs; see ``fault_injection``."""
    return node_dir / "nvml"


def samples_dir(home: Path) -> Path:
    """The directory of the samples of this host's GPUs."""
    return home / "samples"


def attempt_dir(home: Path, key: AttemptKey) -> Path:
    """The directory of an attempt's records. ``home`` is :func:`node_dir`."""
    return _attempt_dir(home, key.job_id, key.attempt)


def check_job_id(job_id: str) -> str:
    """Return ``job_id``, which comes from outside. Raises :class:`NotFound` if it is not a plain name."""
    if "/" in job_id or "\0" in job_id or job_id in ("", ".", ".."):
        raise NotFound(f"there is no job {job_id!r}")
    return job_id


def checkpoint_dir(root: Path, key: AttemptKey) -> Path:
    """The directory where the attempt writes its checkpoints. All hosts should share ``root``: see
    ``NodeSettings.checkpoint_root``."""
    return root / key.job_id / str(key.attempt)


def rank_dir(home: Path, key: AttemptKey, rank: int) -> Path:
    """The directory of one rank's records and log."""
    return _rank_dir(attempt_dir(home, key), rank)


@lru_cache(maxsize=_REMEMBERED)
def _attempt_dir(home: Path, job_id: str, attempt: int) -> Path:
    return home / "jobs" / check_job_id(job_id) / str(attempt)


@lru_cache(maxsize=_REMEMBERED)
def _rank_dir(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}"
