"""Unpacks a tar archive that a job sends, which may be hostile: nothing is written outside one new directory.

Names are taken apart: absolute ones and those with ``..`` end the copy. Links are made only when all files are written,
so no file is written through one, and only those are kept that lead to places inside. Devices, pipes and sockets are
left out, and so are set-user-ID bits and owners. The archive is read as it comes, so its size needs no memory.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Self

_HEADER_BYTES = 1 << 20
"""The longest header that is read into memory: names of files are shorter."""
_COPY_BYTES = 1 << 20
_LONG_HEADERS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)


class BadArchive(Exception):
    """The archive is damaged, or tries what no honest archive does. The message says what."""


class ReceivedArchive:
    """An archive that is unpacked into a directory, which must be new and empty.

    ``progress``: called with the number of bytes that were written.
    """

    def __init__(self, source: IO[bytes], root: Path, progress: Callable[[int], object]) -> None:
        self._source, self._root, self._progress = source, root, progress
        self._directories: list[tuple[Path, tarfile.TarInfo]] = []
        self._links: list[tuple[Path, str]] = []
        self.top: tarfile.TarInfo | None = None
        """The file that it is, or the directory whose content it is."""
        self.left_out: list[str] = []
        """What was not written, each with the reason."""

    def unpack(self, name: str, *, tree: bool) -> None:
        """Unpack all of it. One file gets ``name``, whatever the archive says. ``tree``: it may be a directory instead,
        whose content is written. :attr:`top` says what it was.

        Raises :class:`BadArchive`, and ``OSError`` if this machine cannot write.
        """
        try:
            with tarfile.open(fileobj=self._source, mode="r|", tarinfo=_BoundedInfo) as archive:
                for member in archive:
                    archive.members = []  # type: ignore[attr-defined]  # else it remembers all of them
                    self._take(archive, member, name, tree=tree)
        except tarfile.TarError as error:
            raise BadArchive(f"the archive is damaged: {error}") from error
        if self.top is None:
            raise BadArchive("the archive is empty")
        for path, target in self._links:
            os.symlink(target, path)
        self._remove_links_that_lead_outside()
        for path, member in reversed(self._directories):
            set_mode_and_time(path, member)

    def _take(self, archive: tarfile.TarFile, member: tarfile.TarInfo, name: str, *, tree: bool) -> None:
        if self.top is None:
            if not (member.isreg() or (member.isdir() and tree and self._place(member.name) == self._root)):
                raise BadArchive(f"it begins with {member.name!r}, which is not what was asked for")
            self.top = member
            if member.isdir():
                return
        elif not self.top.isdir():
            raise BadArchive("it holds more than the one file that was asked for")
        if member.issparse():
            raise BadArchive(f"{member.name!r} is stored as a sparse file, which nobody asked for")
        path = self._place(member.name) if self.top.isdir() else self._root / name
        if member.isdir():
            path.mkdir(mode=0o700, exist_ok=True)  # no link is there yet: they come last
            self._directories.append((path, member))
        elif member.isreg():
            self._write(archive, member, path)
        elif member.issym():
            self._links.append((path, member.linkname))
        elif member.islnk():
            os.link(self._place(member.linkname), path, follow_symlinks=False)
        else:
            self.left_out.append(f"{member.name}: neither a file, a directory nor a link")

    def _place(self, name: str) -> Path:
        """Where a member goes. Raises :class:`BadArchive` for names that lead outside."""
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise BadArchive(f"{name!r} in it leads outside of the target: the job may be hostile")
        path = self._root.joinpath(*parts)
        if parts:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def _write(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        found = archive.extractfile(member)
        assert found is not None
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise BadArchive(f"{member.name!r} is in it twice") from None
        with open(fd, "wb") as file:
            while data := found.read(_COPY_BYTES):
                file.write(data)
                self._progress(len(data))
        set_mode_and_time(path, member)

    def _remove_links_that_lead_outside(self) -> None:
        """A link may lead through another one, so only the whole tree tells where it leads."""
        root = os.path.realpath(self._root)
        left, removed = self._links, True
        while removed:
            removed, kept = False, []
            for path, target in left:
                found = os.path.realpath(path)
                inside = found == root or found.startswith(root + os.sep)
                if inside and not os.path.isabs(target):
                    kept.append((path, target))
                    continue
                path.unlink()
                removed = True
                name = path.relative_to(self._root)
                self.left_out.append(f"{name}: a link to {target}, outside of what is copied")
            left = kept


class _BoundedInfo(tarfile.TarInfo):
    """A header whose extensions are bounded: tarfile reads them into memory as a whole."""

    def _proc_member(self, archive: tarfile.TarFile) -> Self:
        if self.type in _LONG_HEADERS and self.size > _HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a sparse file, which nobody asked for")
        return super()._proc_member(archive)  # type: ignore[misc]


def set_mode_and_time(path: Path, member: tarfile.TarInfo) -> None:
    """Give a file or directory the mode and the time of its member, without the set-user-ID bits."""
    os.chmod(path, member.mode & 0o777)
    try:
        os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)
    except (OverflowError, ValueError):  # a time that no file can have
        return


def remove_tree(path: Path) -> None:
    """Remove what was unpacked, also below directories without the right to write."""
    for directory, _, _ in os.walk(path):
        try:
            os.chmod(directory, 0o700)
        except OSError:
            continue
    shutil.rmtree(path, ignore_errors=True)
