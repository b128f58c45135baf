"""Files and directories of the platform on the checkpoint root. Programs of jobs and other hosts read them."""

from __future__ import annotations

import os
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
