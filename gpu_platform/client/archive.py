"""Makes an archive of a directory of code: the same files make the same bytes, on every machine.

The format is tar (POSIX.1-2001, pax), not compressed, with these rules;
``gpu_platform/node/environments/unpacking.py`` takes nothing else:

- names are relative, in the order of their UTF-8 bytes; a directory comes before what is in it;
- there are regular files, directories, and symbolic links that stay inside the directory;
- no owners, no times; modes are 0755 for directories and for files that their owner may execute, else 0644.

Which files: what git would commit. ``git ls-files`` reads ``.gitignore`` (gitignore(5)), so the rules are git's own,
also outside of a repository. Files that ``.gpuignore`` at the top names, in the same language, stay out too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from gpu_platform import disk_room
from gpu_platform.domain.errors import InvalidRequest
from gpu_platform.domain.jobs.upload_limits import MAX_DEPTH, MAX_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterator

IGNORE_FILE = ".gpuignore"
_IGNORE_FILES = (".gitignore", IGNORE_FILE)
_SHOWN = 5
_LONGEST_NAME = 200
_READ_BYTES = 1 << 20


class _Entry(NamedTuple):
    name: str
    size: int


@dataclass
class Archive:
    """An archive in a temporary file, which is removed by :meth:`close`."""

    sha256: str
    size_bytes: int
    files: int
    _file: IO[bytes] = field(repr=False)

    def read(self, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes from ``offset``."""
        self._file.seek(offset)
        return self._file.read(size)

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pack(directory: str | os.PathLike[str], limit_bytes: int) -> Archive:
    """Pack a directory. Raises :class:`InvalidRequest` if it cannot be packed, or is larger than ``limit_bytes``.

    The sizes are added up before anything is read, so a directory that is far too large is refused at once.
    """
    root = Path(directory).resolve()
    if not root.is_dir():
        raise InvalidRequest(f"--upload {directory}: that is no directory here")
    names = files_of(root)
    entries = [_Entry(name, os.lstat(root / name).st_size) for name in names]
    _check_size(directory, entries, limit_bytes)
    try:
        file = tempfile.TemporaryFile()  # noqa: SIM115  # the archive closes it
    except OSError as error:
        raise _not_packed(directory, error) from None
    try:
        _write(root, names, file)
        size = file.tell()
        if size > limit_bytes:
            raise _too_large(directory, entries, size, limit_bytes)
        return Archive(_digest(file), size, len(names), file)
    except BaseException as error:
        with suppress(OSError):  # it writes what it holds, and fails again
            file.close()
        if isinstance(error, OSError):
            raise _not_packed(directory, error) from None
        raise


def files_of(root: Path) -> list[str]:
    """The files and links of the directory that an archive has, relative to it, in the order of their bytes.

    Raises :class:`InvalidRequest` if there are too many, or none, or git is needed and not there.
    """
    found = _listed(root)
    if not found:
        raise InvalidRequest(f"--upload {root}: there is no file in it, or its .gitignore names all of them")
    directories = {parent for name in found for parent in _parents(name)}
    if len(found) + len(directories) > MAX_ENTRIES:
        most = _fullest(found)
        raise InvalidRequest(
            f"{root} has {len(found):,} files in {len(directories):,} directories, the limit is {MAX_ENTRIES:,} "
            f"together; most are in {most}: name what the job does not need in {IGNORE_FILE}"
        )
    deepest = max(found, key=lambda name: name.count("/"))
    if deepest.count("/") >= MAX_DEPTH:
        raise InvalidRequest(
            f"{root} has a file in {deepest.count('/')} directories, each in the other, the limit is {MAX_DEPTH - 1}: "
            f"{deepest[:_LONGEST_NAME]}… Name what the job does not need in {IGNORE_FILE}"
        )
    return sorted(found, key=os.fsencode)


def _listed(root: Path) -> set[str]:
    if shutil.which("git") is None:
        if any((root / name).exists() for name in _IGNORE_FILES):
            raise InvalidRequest(f"{root} has a file that says what to ignore, which git reads: install git")
        return set(_walked(root))
    with _empty_repository() as git_dir:
        outside = [f"--git-dir={git_dir}", f"--work-tree={root}"]
        if _is_in_repository(root):
            found = _of_repository(root)
        else:
            found = _git(root, [*outside, "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"])
        if (root / IGNORE_FILE).is_file():
            kept = _git(root, [*outside, "ls-files", "-z", "--others", f"--exclude-from={root / IGNORE_FILE}"])
            inside = tuple(f"{name.rstrip('/')}/" for name in kept if name.endswith("/") or (root / name).is_dir())
            found = {name for name in found if name in kept or name.startswith(inside)}
    return {name for name in found if _is_packed(root, name)}


def _of_repository(root: Path) -> set[str]:
    """What git would commit below ``root``, and the same of repositories inside it."""
    found: set[str] = set()
    for name in _git(root, ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]):
        path = root / name
        if path.is_dir() and not path.is_symlink():
            inner = name.rstrip("/")
            below = _of_repository(path) if (path / ".git").exists() else set(_walked(path))
            found |= {f"{inner}/{one}" for one in below}
        else:
            found.add(name)
    return found


def _is_packed(root: Path, name: str) -> bool:
    """False for what was deleted, and for sockets, pipes and devices, which no archive has."""
    try:
        mode = os.lstat(root / name).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _walked(root: Path) -> Iterator[str]:
    for directory, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name != ".git"]
        links = [name for name in inner if os.path.islink(os.path.join(directory, name))]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(directory, name), root)


def _is_in_repository(root: Path) -> bool:
    command = ["git", "-C", str(root), "rev-parse", "--is-inside-work-tree"]
    return subprocess.run(command, capture_output=True, check=False).stdout.strip() == b"true"


@contextmanager
def _empty_repository() -> Iterator[str]:
    """git lists files by its rules only for a repository."""
    with tempfile.TemporaryDirectory() as directory:
        made = subprocess.run(["git", "init", "--quiet", "--bare", directory], capture_output=True, check=False)
        if made.returncode != 0:
            raise InvalidRequest(f"git does not work here: {made.stderr.decode(errors='replace').strip()}")
        yield directory


def _git(root: Path, arguments: Sequence[str]) -> set[str]:
    command = ["git", "-C", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise InvalidRequest(f"git cannot list the files of {root}: {done.stderr.decode(errors='replace').strip()}")
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


def _check_size(directory: str | os.PathLike[str], entries: Sequence[_Entry], limit: int) -> None:
    least = sum(one.size for one in entries)
    if least > limit:
        raise _too_large(directory, entries, least, limit)


def _too_large(directory: str | os.PathLike[str], entries: Sequence[_Entry], size: int, limit: int) -> InvalidRequest:
    largest = sorted(entries, key=lambda one: (-one.size, one.name))[:_SHOWN]
    shown = ", ".join(f"{one.name} ({_amount(one.size)})" for one in largest)
    return InvalidRequest(
        f"{directory} has {_amount(size)}, the limit is {_amount(limit)}; the {len(largest)} largest: {shown}. Name "
        f"what the job does not need in {IGNORE_FILE}, and put data where the hosts find it"
    )


def _not_packed(directory: str | os.PathLike[str], error: OSError) -> InvalidRequest:
    why = disk_room.told_of_error("temporary files (TMPDIR)", error)
    return InvalidRequest(f"--upload {directory} cannot be packed: {why}")


def _amount(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _fullest(names: set[str]) -> str:
    counts: dict[str, int] = {}
    for name in names:
        counts[os.path.dirname(name)] = counts.get(os.path.dirname(name), 0) + 1
    return max(counts, key=lambda one: counts[one]) or "its top"


def _write(root: Path, names: Sequence[str], file: IO[bytes]) -> None:
    made: set[str] = set()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar:
        for name in names:
            for parent in _parents(name):
                if parent not in made:
                    made.add(parent)
                    tar.addfile(_info(parent, tarfile.DIRTYPE, 0o755))
            _add(tar, root, name)


def _add(tar: tarfile.TarFile, root: Path, name: str) -> None:
    path = root / name
    try:
        os.fsencode(name).decode()
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"the name of {path!s} is not UTF-8: rename the file, or name it in {IGNORE_FILE}"
        ) from None
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            info = _info(name, tarfile.SYMTYPE, 0o777)
            info.linkname = os.readlink(path)
            if not stays_inside(name, info.linkname):
                raise InvalidRequest(
                    f"{path} is a link to {info.linkname}, outside of {root}: the hosts would not find it. Name it in "
                    f"{IGNORE_FILE}, or put a copy in its place"
                )
            tar.addfile(info)
            return
        with open(path, "rb") as content:
            found = os.fstat(content.fileno())
            info = _info(name, tarfile.REGTYPE, 0o755 if found.st_mode & stat.S_IXUSR else 0o644)
            info.size = found.st_size
            tar.addfile(info, content)
    except OSError as error:
        if disk_room.fails_because_full(error):  # reading never does: it is the archive that cannot be written
            raise
        raise InvalidRequest(
            f"{path} cannot be read ({error.strerror or error}): if it changes just now, try again"
        ) from None


def stays_inside(name: str, target: str) -> bool:
    """True if a link of this name leads to no place outside of the archive."""
    if os.path.isabs(target) or "\0" in target or not target:
        return False
    reached = os.path.normpath(os.path.join(os.path.dirname(name), target))
    return reached != ".." and not reached.startswith("../")


def _info(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, 0
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _parents(name: str) -> list[str]:
    parts = name.split("/")[:-1]
    return ["/".join(parts[: count + 1]) for count in range(len(parts))]


def _digest(file: IO[bytes]) -> str:
    found = hashlib.sha256()
    file.seek(0)
    while block := file.read(_READ_BYTES):
        found.update(block)
    return found.hexdigest()
