"""Files and directories of the platform on the checkpoint root. Programs of jobs and other hosts read them. Standard
library only: steps use it (``step_program``)."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

SHOWN_FILE, _SHOWN_DIRECTORY = 0o644, 0o755
"""Modes of what the platform itself makes on the root."""


def make_shown_directory(path: Path) -> None:
    """Make a directory and its parents so that programs of jobs can read it, whatever our umask is.

    Directories that exist keep their modes: who may enter the root is the operator's decision.
    """
    try:
        os.mkdir(path, _SHOWN_DIRECTORY)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_shown_directory(path.parent)
        make_shown_directory(path)
        return
    os.chmod(path, _SHOWN_DIRECTORY)


def make_shown_directories(paths: Sequence[str]) -> None:
    """See :func:`make_shown_directory`."""
    for path in paths:
        make_shown_directory(Path(path))


def missing(paths: Sequence[str]) -> str | None:
    """The first that is no directory. None: all are."""
    return next((path for path in paths if not os.path.isdir(path)), None)


def exists(path: str) -> bool:
    """True if there is something of this name. No link is followed."""
    return os.path.lexists(path)


def touch_new(path: str) -> None:
    """Make an empty file, and what is missing of the directory that it is in."""
    make_shown_directory(Path(path).parent)
    Path(path).touch(exist_ok=False)


def remove(path: str) -> None:
    """Remove a file, if it is there."""
    Path(path).unlink(missing_ok=True)


def write_request(path: str, why: str, same_s: float) -> None:
    """Write a request for a checkpoint. One for the same reason that is younger than ``same_s`` seconds stays."""
    place = Path(path)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        old = json.loads(place.read_text())
        if old["why"] == why and abs(time.time() - old["at"]) < same_s:
            return
    temporary = place.with_name(f"{place.name}-{secrets.token_hex(8)}")
    try:
        temporary.write_text(json.dumps({"id": secrets.token_hex(8), "why": why, "at": time.time()}))
        temporary.chmod(SHOWN_FILE)  # the program reads it, as another account
        os.replace(temporary, place)
    finally:
        temporary.unlink(missing_ok=True)
