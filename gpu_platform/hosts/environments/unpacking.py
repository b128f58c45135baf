"""Unpacks uploaded code: ``python unpacking.py SIZE MOST_ENTRIES [UID GID] < archive``, into the working directory.

It runs as a process of its own, becomes the account of the job before it reads anything, and has an empty directory as
its working directory. So
whatever an archive does, it does with the rights of the job that it belongs to. Besides, it takes only what
``gpu_platform/client/archive.py`` makes: regular files, directories and links that stay inside. Names are looked up
without following links, from the directory's own descriptor, and links are made after all files. An archive is not
compressed, so it cannot grow; how many entries it has is limited. Standard library only.

Exit code 0: done; 3: refused; 4: a file cannot be written. stderr says why; after 4 it begins with the errno, because
who asked knows which of them are the fault of the disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
import tarfile
from typing import NoReturn

REFUSED = 3
NOT_WRITTEN = 4
_COPY_BYTES = 1 << 20
_DEPTH = 64
_PR_SET_NO_NEW_PRIVS = 38


def main() -> None:
    """Unpack stdin."""
    size, most = int(sys.argv[1]), int(sys.argv[2])
    os.umask(0o022)
    tarfile.TarInfo("warm").tobuf()  # what is imported late is imported now: the account may not see the modules
    if len(sys.argv) > 3:
        _become(int(sys.argv[3]), int(sys.argv[4]))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    root = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        unpack(root, size, most)
    except (tarfile.TarError, EOFError, UnicodeError, ValueError) as error:
        _refuse(f"it is no archive of code: {error}")
    except OSError as error:
        _refuse(f"{error.errno or 0} {error.filename or 'a file'} cannot be written: {error.strerror}", NOT_WRITTEN)


def _become(uid: int, gid: int) -> None:
    """Become this user, without groups, capabilities and ways to new privileges."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def unpack(root: int, size: int, most: int) -> None:
    """Unpack stdin below the descriptor ``root``."""
    links: list[tarfile.TarInfo] = []
    count, written = 0, 0
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|", encoding="utf-8", errors="strict") as tar:
        for entry in tar:
            count += 1
            if count > most:
                _refuse(f"it has more than {most} entries")
            _check(entry)
            if entry.issym():
                links.append(entry)
            elif entry.isdir():
                os.close(_directory(root, entry.name))
            else:
                written += entry.size
                if written > size:
                    _refuse("its files are larger than the archive")
                _write(tar, root, entry)
    for link in links:
        parent = _directory(root, os.path.dirname(link.name))
        try:
            os.symlink(link.linkname, os.path.basename(link.name), dir_fd=parent)
        finally:
            os.close(parent)


def _check(entry: tarfile.TarInfo) -> None:
    parts = entry.name.split("/")
    if not entry.name or entry.name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        _refuse(f"the name {entry.name[:200]!r} leads out of it")
    if "\0" in entry.name or len(parts) > _DEPTH:
        _refuse(f"the name {entry.name[:200]!r} has more than {_DEPTH} parts, or a zero byte")
    if entry.issym():
        reached = os.path.normpath(os.path.join(os.path.dirname(entry.name), entry.linkname))
        if not entry.linkname or os.path.isabs(entry.linkname) or reached == ".." or reached.startswith("../"):
            _refuse(f"the link {entry.name[:200]!r} leads out of it, to {entry.linkname[:200]!r}")
    elif not (entry.isdir() or (entry.isreg() and not entry.issparse())):
        _refuse(f"{entry.name[:200]!r} is neither a file, a directory nor a symbolic link")


def _directory(root: int, name: str) -> int:
    """Open a directory below ``root``, and make what is missing. No link is followed."""
    fd = os.dup(root)
    for part in name.split("/") if name else ():
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, 0o755, dir_fd=fd)
        try:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = inner
    return fd


def _write(tar: tarfile.TarFile, root: int, entry: tarfile.TarInfo) -> None:
    content = tar.extractfile(entry)
    parent = _directory(root, os.path.dirname(entry.name))
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        fd = os.open(os.path.basename(entry.name), flags, 0o755 if entry.mode & 0o100 else 0o644, dir_fd=parent)
    finally:
        os.close(parent)
    with os.fdopen(fd, "wb") as file:
        while content is not None and (block := content.read(_COPY_BYTES)):
            file.write(block)


def _refuse(why: str, code: int = REFUSED) -> NoReturn:
    sys.stderr.write(why)
    sys.exit(code)


if __name__ == "__main__":
    main()
