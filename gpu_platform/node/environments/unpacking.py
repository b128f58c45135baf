"""Unpacks uploaded code: ``python unpacking.py SIZE MOST_ENTRIES [UID GID] < archive``, into the working directory.

It runs as a process of its own, becomes the account of the job before it reads anything, and has an empty directory as
its working directory. So whatever an archive does, it does with the rights of the job that it belongs to. Besides, it
takes only what ``gpu_platform/client/archive.py`` makes: regular files, directories and links that stay inside. Names
are looked up without following links, from the directory's own descriptor, and links are made after all files. An
archive is not compressed, so it cannot grow; how many entries it has is limited, and so is how much it says about one
entry. It is read here and not by ``tarfile``, which takes whatever size a header names into memory, and whose search in
headers takes time with the square of their length. Standard library only.

Exit code 0: done; 3: refused; 4: a file cannot be written. stderr says why; after 4 it begins with the errno, because
who asked knows which of them are the fault of the disk.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import IO, NamedTuple, NoReturn

REFUSED = 3
NOT_WRITTEN = 4
MOST_HEADER_BYTES = 16 << 10
"""Of what an archive says about one entry beside its block: a path has at most 4,096 bytes (PATH_MAX)."""
MOST_HEADERS = 4
"""Such headers of one entry."""
_COPY_BYTES = 1 << 20
_DEPTH = 64
_BLOCK = 512
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_FILES, _LINK, _DIRECTORY = b"0\0", b"2", b"5"
"""Types of entries (pax(1), "ustar Interchange Format"). Older programs write a zero byte for a file."""
_PAX, _PAX_OF_ALL, _GNU_NAME, _GNU_LINK = b"x", b"g", b"L", b"K"
_KINDS = {b"1": "a hard link", b"3": "a device", b"4": "a device", b"6": "a pipe", b"S": "a sparse file"}


class Entry(NamedTuple):
    """One entry of an archive."""

    name: str
    kind: bytes
    """A file, a link or a directory."""
    mode: int
    size: int
    link: str


def main() -> None:
    """Unpack stdin."""
    size, most = int(sys.argv[1]), int(sys.argv[2])
    os.umask(0o022)
    if len(sys.argv) > 3:
        become(int(sys.argv[3]), int(sys.argv[4]), [])
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    root = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        _Unpacking(root, size, most).read(sys.stdin.buffer)
    except (EOFError, UnicodeError, ValueError) as error:
        _refuse(f"it is no archive of code: {error}")
    except OSError as error:
        _refuse(f"{error.errno or 0} {error.filename or 'a file'} cannot be written: {error.strerror}", NOT_WRITTEN)


def become(uid: int, gid: int, groups: Sequence[int]) -> None:
    """Become this user, without capabilities and ways to new privileges, and go on dying with who started us: the
    kernel forgets that when a process changes its user (prctl(2))."""
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_PDEATHSIG, signal.SIGKILL)):
        if libc.prctl(option, int(value), 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")


class _Unpacking:
    """Unpacks below the descriptor ``root``."""

    def __init__(self, root: int, size: int, most: int) -> None:
        self._root, self._size, self._most = root, size, most
        self._made = 0
        """Files, links and directories: those that only a name mentions, too."""

    def read(self, archive: IO[bytes]) -> None:
        """Unpack the archive."""
        links: list[Entry] = []
        written = 0
        for count, entry in enumerate(_entries(archive), 1):
            if count > self._most:
                _refuse(f"it has more than {self._most} entries")
            _check(entry)
            if entry.kind == _LINK:
                links.append(entry)
            elif entry.kind == _DIRECTORY:
                os.close(self._directory(entry.name))
            else:
                written += entry.size
                if written > self._size:
                    _refuse("its files are larger than the archive")
                self._write(archive, entry)
        for link in links:
            parent = self._directory(os.path.dirname(link.name))
            try:
                self._count()
                os.symlink(link.link, os.path.basename(link.name), dir_fd=parent)
            finally:
                os.close(parent)

    def _directory(self, name: str) -> int:
        """Open a directory below ``root``, and make what is missing. No link is followed."""
        fd = os.dup(self._root)
        for part in name.split("/") if name else ():
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=fd)
                self._count()
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
            finally:
                os.close(fd)
            fd = inner
        return fd

    def _write(self, archive: IO[bytes], entry: Entry) -> None:
        parent = self._directory(os.path.dirname(entry.name))
        try:
            self._count()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            fd = os.open(os.path.basename(entry.name), flags, 0o755 if entry.mode & 0o100 else 0o644, dir_fd=parent)
        finally:
            os.close(parent)
        left = entry.size
        with os.fdopen(fd, "wb") as file:
            while left:
                block = _exactly(archive, min(left, _COPY_BYTES))
                file.write(block)
                left -= len(block)
        _exactly(archive, -entry.size % _BLOCK)

    def _count(self) -> None:
        self._made += 1
        if self._made > self._most:
            _refuse(f"it makes more than {self._most} entries, with the directories that its names mention")


def _entries(archive: IO[bytes]) -> Iterator[Entry]:
    """The entries of an archive. Whoever takes a file reads its content before the next entry."""
    headers, said = 0, dict[str, str]()
    is_first = True
    while True:
        block = archive.read(_BLOCK)
        if len(block) < _BLOCK and (block or is_first):
            raise EOFError("it ends in the middle of an entry" if block else "it is empty")
        if not block.strip(b"\0"):
            return
        is_first = False
        _check_sum(block)
        kind, size = block[156:157], _number(block[124:136])
        if kind in (_PAX, _PAX_OF_ALL, _GNU_NAME, _GNU_LINK):
            headers += 1
            if size > MOST_HEADER_BYTES or headers > MOST_HEADERS:
                _refuse(
                    f"it says {size} bytes in {headers} headers about one entry: "
                    f"{MOST_HEADER_BYTES} bytes in each of {MOST_HEADERS} are the most"
                )
            content = _exactly(archive, size)
            _exactly(archive, -size % _BLOCK)
            said |= _said(kind, content)
            continue
        name = said.get("path") or _name(block)
        if kind not in _FILES and kind not in (_LINK, _DIRECTORY):
            what = _KINDS.get(kind, f"of the type {kind!r}")
            _refuse(f"{name[:200]!r} is neither a file, a directory nor a symbolic link: it is {what}")
        # Before POSIX.1-1988 a directory was a file with a slash at the end.
        is_directory = kind == _DIRECTORY or (kind in _FILES and name.endswith("/"))
        link = said.get("linkpath") or _text(block[157:257])
        yield Entry(
            name.rstrip("/") if is_directory else name,
            _DIRECTORY if is_directory else kind,
            _number(block[100:108]),
            int(said.get("size") or size) if kind in _FILES and not is_directory else 0,
            link if kind == _LINK else "",
        )
        headers, said = 0, {}


def _said(kind: bytes, content: bytes) -> dict[str, str]:
    """What a header says about the next entry: records ``LENGTH KEY=VALUE\\n`` (pax(1)), or a name of GNU tar."""
    if kind == _GNU_NAME:
        return {"path": _text(content)}
    if kind == _GNU_LINK:
        return {"linkpath": _text(content)}
    found: dict[str, str] = {}
    at = 0
    while at < len(content) and content[at]:
        digits = content[at : at + 6].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record = content[at : at + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(record) != length or not record.endswith(b"\n"):
            raise ValueError("a header of an entry is damaged")
        if key.startswith(b"GNU.sparse"):
            _refuse("it has a sparse file, which is neither a file, a directory nor a symbolic link")
        if kind == _PAX and key in (b"path", b"linkpath", b"size"):
            found[key.decode()] = value.decode("utf-8")
        at += length
    return found


def _name(block: bytes) -> str:
    name = _text(block[:100])
    prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8")


def _number(field: bytes) -> int:
    """Octal digits, or, if the first bit is set, a binary number (GNU tar)."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip()
    if digits and not all(0x30 <= one < 0x38 for one in digits):
        raise ValueError("a number in it is damaged")
    return int(digits or b"0", 8)


def _check_sum(block: bytes) -> None:
    if _number(block[148:156]) != 256 + sum(block[:148]) + sum(block[156:]):
        raise ValueError("the checksum of an entry is wrong")


def _exactly(archive: IO[bytes], size: int) -> bytes:
    content = archive.read(size) if size else b""
    if len(content) < size:
        raise EOFError("it ends in the middle of an entry")
    return content


def _check(entry: Entry) -> None:
    parts = entry.name.split("/")
    if not entry.name or entry.name.startswith("/") or any(part in ("", ".", "..") for part in parts):
        _refuse(f"the name {entry.name[:200]!r} leads out of it")
    if "\0" in entry.name or len(parts) > _DEPTH:
        _refuse(f"the name {entry.name[:200]!r} has more than {_DEPTH} parts, or a zero byte")
    if entry.kind == _LINK:
        reached = os.path.normpath(os.path.join(os.path.dirname(entry.name), entry.link))
        if not entry.link or os.path.isabs(entry.link) or reached == ".." or reached.startswith("../"):
            _refuse(f"the link {entry.name[:200]!r} leads out of it, to {entry.link[:200]!r}")


def _refuse(why: str, code: int = REFUSED) -> NoReturn:
    sys.stderr.write(why)
    sys.exit(code)


if __name__ == "__main__":
    main()
