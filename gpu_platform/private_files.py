"""Files with keys, certificates and tokens: written whole or not at all, and secret ones for their owner only.

The one way to write a secret file. Every package may import it; it imports nothing of the platform.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

SECRET = 0o600
PUBLIC = 0o644


def make_private_directory(directory: Path) -> None:
    """Make a directory that only its owner may enter, on disk when this returns. One that is there is left as it is."""
    made = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in made:
        _sync_directory(path.parent)


def is_ours(found: os.stat_result) -> bool:
    """True if this account or root owns what was found, and not every account may write it. Ask it of what is only
    found because of where a program was started: anybody may have put it there."""
    return found.st_uid in (0, os.geteuid()) and not found.st_mode & stat.S_IWOTH


def write_file(path: Path, content: bytes, mode: int = SECRET) -> None:
    """Replace ``path`` in one step. A reader sees the old content or the new one, and both are on disk."""
    draft = _write_draft(path, content, mode)
    try:
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def write_new_file(path: Path, content: bytes, mode: int = SECRET) -> bool:
    """Make ``path`` if it is not there. False: it is there already. Two processes may try at the same moment."""
    draft = _write_draft(path, content, mode)
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    _sync_directory(path.parent)
    return True


def move_file(source: Path, target: Path) -> None:
    """Rename a file within its directory, in place of one that has the new name. It is on disk when this returns."""
    os.replace(source, target)
    _sync_directory(target.parent)


def remove_file(path: Path) -> None:
    """Remove a file, if it is there. A power cut does not bring it back."""
    path.unlink(missing_ok=True)
    _sync_directory(path.parent)


def _write_draft(path: Path, content: bytes, mode: int) -> Path:
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft


def _sync_directory(directory: Path) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
