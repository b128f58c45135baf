"""The state directory belongs to the platform alone: no other account of the machine reads what is in it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import structlog

from gpu_platform.domain.errors import CannotStart
from gpu_platform.private_files import make_private_directory

log = structlog.get_logger(__name__)

PRIVATE_UMASK = 0o077
_OTHERS = 0o077
_SHARED = ("checkpoints",)
"""Directories below the state directory that keep their mode: programs of jobs use them, below a private directory."""


def keep_private(state_dir: Path, *, make: bool = False) -> None:
    """Let this process make private files only, and take from other accounts what somebody left open.

    Call it first in every process. ``make``: make the state directory if there is none.

    Raises :class:`CannotStart` if the directory is one that other accounts share, such as ``/tmp``, or if this process
    may not make it.
    """
    os.umask(PRIVATE_UMASK)
    if make:
        try:
            make_private_directory(state_dir)
        except OSError as error:
            raise CannotStart(
                f"the state directory {state_dir} cannot be made ({error.strerror}): name one that this account may "
                "write (state_dir, --state-dir)"
            ) from error
    try:
        found = os.stat(state_dir)
    except (FileNotFoundError, NotADirectoryError):
        return
    if found.st_mode & stat.S_ISVTX:
        raise CannotStart(
            f"the state directory {state_dir} is shared by all accounts of this machine: "
            "name a directory of the platform's own (state_dir, --state-dir)"
        )
    if not _tighten(state_dir, found):
        return
    with os.scandir(state_dir) as entries:
        for entry in entries:
            if entry.name not in _SHARED and not entry.is_symlink():
                _tighten(Path(entry.path), entry.stat(follow_symlinks=False))


def _tighten(path: Path, found: os.stat_result) -> bool:
    """Take all rights on ``path`` from other accounts. False: it belongs to another account, which must do that."""
    mode = stat.S_IMODE(found.st_mode)
    if not mode & _OTHERS or stat.S_ISSOCK(found.st_mode):
        return True
    try:
        os.chmod(path, mode & ~_OTHERS)
    except PermissionError:
        log.warning("state.open_to_others", path=str(path), mode=f"{mode:04o}", owner=found.st_uid)
        return False
    except FileNotFoundError:  # a temporary file of another process
        return True
    log.info("state.made_private", path=str(path), was=f"{mode:04o}")
    return True
