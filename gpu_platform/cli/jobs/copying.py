"""``gpu-platform jobs cp``: files and directories between this machine and the place where a rank runs.

A session beside the rank runs ``tar`` there, as the job's account, and the archive goes through its pipes. Both sides
unpack it under another name beside the target, which gets its name when all of it is there.
"""

from __future__ import annotations

import os
import posixpath
import re
import secrets
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer

from gpu_platform.cli import session
from gpu_platform.domain.errors import PlatformError
from gpu_platform.slurm.ids import with_id_of

if TYPE_CHECKING:
    from gpu_platform.cli.jobs.received_archive import ReceivedArchive
    from gpu_platform.client import Client
    from gpu_platform.domain.jobs.exec import ExecSession

_PLACE = re.compile(r"([ja]-[0-9a-z][0-9a-z.]*):(.*)", re.DOTALL)
_INPUT_BYTES = 512 * 1024
_MIB = 1 << 20
_STDERR_BYTES = 4096
_CHANGED = 1
"""The exit code of tar(1) if a file changed while it was read."""

_SEND = r"""
if [ -d "$1" ]; then
  [ "$2" = all ] || { echo "$1 is a directory: copy it with -r" >&2; exit 20; }
  exec tar -cf - -C "$1" .
fi
[ -e "$1" ] || { echo "there is no $1 where the rank runs" >&2; exit 20; }
[ -f "$1" ] || { echo "$1 is neither a file nor a directory" >&2; exit 20; }
exec tar -chf - -C "$(dirname -- "$1")" -- "$(basename -- "$1")"
"""
"""Sends the path ``$1``. ``$2``: all, if it may be a directory."""
_RECEIVE = r"""
p=$1
[ ! -d "$p" ] || p=${p%/}/$2
d=$(dirname -- "$p")
[ -d "$d" ] || { echo "there is no directory $d where the rank runs" >&2; exit 20; }
[ ! -d "$p" ] || { echo "$p is there already: remove it first, or name another target" >&2; exit 20; }
[ "$3" != all ] || [ ! -e "$p" ] || { echo "$p is there already, and is no directory" >&2; exit 20; }
t=$d/$4
mkdir -m 700 -- "$t" || exit 20
tar -xpof - -C "$t" && mv -f -- "$t/copied" "$p"
code=$?
rm -rf -- "$t"
exit $code
"""
"""Writes to the path ``$1``, or to the name ``$2`` in it if it is a directory. ``$3``: all, if a directory comes.
``$4``: the name of the directory for what is not complete."""


def register(jobs: typer.Typer) -> None:
    """Add the command ``jobs cp``."""
    jobs.command("cp")(copy)


class JobPath(NamedTuple):
    """A path where a rank of a job runs."""

    job_id: str
    path: str


def parse_place(text: str) -> JobPath | Path:
    """Read ``JOB:PATH``, or a path of this machine. ``./a-b:c`` is one of this machine."""
    found = _PLACE.fullmatch(with_id_of(text))
    return Path(text) if found is None else JobPath(found[1], found[2] or ".")


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A path, or JOB:PATH.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A path, or JOB:PATH.", show_default=False)],
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="Copy directories, too.")] = False,
    rank: Annotated[int, typer.Option(min=0, help="The rank beside which the path is.")] = 0,
    break_glass: session.BreakGlass = None,
) -> None:
    """Copy files from a running job, or into it: jobs cp JOB:results.json . or jobs cp -r data JOB:/tmp

    Paths in the job are as its ranks see them; relative ones begin at its working directory. Modes and times are kept.
    """
    here, there = parse_place(source), parse_place(target)
    with session.service(session.FOLLOW_PATIENCE_S, break_glass) as client:
        if isinstance(here, JobPath) and isinstance(there, Path):
            code = _Download(client, here, rank, recursive).into(there)
        elif isinstance(here, Path) and isinstance(there, JobPath):
            code = _Upload(client, there, rank, recursive).send(here)
        else:
            raise typer.BadParameter("exactly one of the two must be JOB:PATH")
    raise typer.Exit(code)


class _Download:
    def __init__(self, client: Client, place: JobPath, rank: int, recursive: bool) -> None:
        self._client, self._place, self._rank, self._recursive = client, place, rank, recursive

    def into(self, target: Path) -> int:
        """Copy it to ``target``, or into it if it is a directory. Returns the exit code."""
        from gpu_platform.cli.jobs.received_archive import BadArchive, ReceivedArchive, remove_tree

        name = posixpath.basename(self._place.path.rstrip("/"))
        if target.is_dir():
            if name in ("", ".", ".."):
                raise typer.BadParameter(f"{self._place.path!r} has no name of its own: name the target, too")
            target = target / name
        if not target.parent.is_dir():
            raise typer.BadParameter(f"there is no directory {target.parent}")
        try:
            partial = Path(tempfile.mkdtemp(prefix=f".{target.name[:60]}.", suffix=".partial", dir=target.parent))
        except OSError as error:
            raise typer.BadParameter(f"cannot write to {target.parent}: {error.strerror}") from None
        try:
            with _progress(self._place.path) as progress, _running(self._client, self._start()) as started:
                stream = _Output(self._client, started)
                archive = ReceivedArchive(cast(IO[bytes], stream), partial / "copied", progress)
                code = self._receive(stream, archive, partial, target)
        except (BadArchive, OSError) as error:
            why = f"{error.strerror}: {error.filename or target}" if isinstance(error, OSError) else str(error)
            session.say(f"nothing was copied: {why}")
            return session.FAILED
        finally:
            remove_tree(partial)
        for text in archive.left_out:
            session.say(f"left out: {text}")
        return code or (session.FAILED if archive.left_out else 0)

    def _start(self) -> ExecSession:
        words = [_SEND, "gpu-platform-cp", self._place.path, "all" if self._recursive else "one"]
        return _start(self._client, self._place.job_id, self._rank, words)

    def _receive(self, stream: _Output, archive: ReceivedArchive, partial: Path, target: Path) -> int:
        from gpu_platform.cli.jobs.received_archive import BadArchive

        (partial / "copied").mkdir(mode=0o700)
        error: BadArchive | None = None
        try:
            archive.unpack(target.name, tree=self._recursive)
        except BadArchive as found:
            error = found
        if error is not None and not stream.has_ended:
            raise error
        code, reason = stream.finish()
        if reason is not None or code not in (0, _CHANGED):
            raise BadArchive(reason or stream.errors or f"tar ended with exit code {code} where the rank runs")
        if error is not None:
            raise error
        if code == _CHANGED:
            session.say(stream.errors or "a file changed while it was copied")
        _put(partial / "copied", target, archive)
        return code


def _put(copied: Path, target: Path, archive: ReceivedArchive) -> None:
    """Give what was unpacked its name."""
    from gpu_platform.cli.jobs.received_archive import BadArchive, set_mode_and_time

    assert archive.top is not None
    if not archive.top.isdir():
        os.replace(copied / target.name, target)
        return
    if os.path.lexists(target):
        raise BadArchive(f"{target} is there already: remove it first, or name another target")
    os.rename(copied, target)
    set_mode_and_time(target, archive.top)  # only now: a directory that nobody may write cannot be moved


class _Upload:
    def __init__(self, client: Client, place: JobPath, rank: int, recursive: bool) -> None:
        self._client, self._place, self._rank, self._recursive = client, place, rank, recursive

    def send(self, source: Path) -> int:
        """Copy ``source`` into the job. Returns the exit code."""
        if not source.exists():
            raise typer.BadParameter(f"there is no {source}")
        if source.is_dir() and not self._recursive:
            raise typer.BadParameter(f"{source} is a directory: copy it with -r")
        if not (source.is_dir() or source.is_file()):
            raise typer.BadParameter(f"{source} is neither a file nor a directory")
        name = source.resolve().name
        if not name:
            raise typer.BadParameter(f"{source} has no name of its own: copy something below it")
        partial = f".gpu-platform-cp-{secrets.token_hex(8)}"
        kind = "all" if source.is_dir() else "one"
        words = [_RECEIVE, "gpu-platform-cp", self._place.path, name, kind, partial]
        done = False
        try:
            with (
                _progress(str(source)) as progress,
                _running(self._client, _start(self._client, self._place.job_id, self._rank, words)) as started,
            ):
                stream = _Output(self._client, started)
                code, reason = self._write(source, started, stream, progress)
            done = code == 0 and reason is None
        finally:
            if not done:
                self._remove(partial)
        if done:
            return 0
        session.say(f"nothing was copied: {reason or stream.errors or f'exit code {code} where the rank runs'}")
        return session.FAILED

    def _write(
        self, source: Path, started: ExecSession, stream: _Output, progress: Callable[[int], object]
    ) -> tuple[int, str | None]:
        sink = _Input(self._client, started, progress)
        try:
            with tarfile.open(
                fileobj=cast(IO[bytes], sink), mode="w|", format=tarfile.PAX_FORMAT, bufsize=_INPUT_BYTES
            ) as archive:
                archive.add(str(source.resolve()), arcname="copied", filter=_sendable)
            sink.finish()
        except OSError as error:  # a file became shorter, or cannot be read
            return session.FAILED, f"{error.strerror or error}: {error.filename or source}"
        except PlatformError as error:
            if error.http_status != 404:
                raise  # it has ended, and its output says why
        return stream.finish()

    def _remove(self, partial: str) -> None:
        """Remove what is not complete, as far as the job still runs."""
        path = self._place.path
        script = 'rm -rf -- "${1%/}/$2" "$(dirname -- "$1")/$2"'
        with suppress(PlatformError):
            _start(self._client, self._place.job_id, self._rank, [script, "gpu-platform-cp", path, partial])


def _sendable(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """What goes into the archive: without its owner here, who is nobody there."""
    if not (info.isreg() or info.isdir() or info.issym() or info.islnk()):
        session.say(f"left out: {info.name}: neither a file, a directory nor a link")
        return None
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def _start(client: Client, job_id: str, rank: int, words: list[str]) -> ExecSession:
    from gpu_platform.domain.jobs.exec import ExecRequest

    return client.exec(job_id, ExecRequest(command=["sh", "-c", *words], rank=rank))


@contextmanager
def _running(client: Client, started: ExecSession) -> Iterator[ExecSession]:
    """A session that is ended if the block fails, also by Ctrl-C."""
    try:
        yield started
    except BaseException:
        with suppress(PlatformError):
            client.exec_end(started)
        raise


class _Output:
    """What a session writes: stdout as a file that is read, and the end of stderr."""

    def __init__(self, client: Client, started: ExecSession) -> None:
        self._chunks = client.exec_output(started)
        self._left = memoryview(b"")
        self._stderr = b""
        self._end: Any = None

    @property
    def has_ended(self) -> bool:
        """True once all of its output was read."""
        return self._end is not None

    @property
    def errors(self) -> str:
        """What it said on stderr: the last line."""
        lines = self._stderr.decode("utf-8", "backslashreplace").strip().splitlines()
        return lines[-1] if lines else ""

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes of stdout; none at its end."""
        while not self._left and self._end is None:
            self._next()
        data, self._left = bytes(self._left[:size]), self._left[size:]
        return data

    def finish(self) -> tuple[int, str | None]:
        """Read the rest. Returns the exit code, and why it was ended."""
        while self._end is None:
            self._next()
        return self._end

    def _next(self) -> None:
        chunk = next(self._chunks, None)
        if chunk is None:
            self._end = session.FAILED, "nothing says how it ended"
        elif chunk.stream == "exit":
            self._end = chunk.exit_code or 0, chunk.reason
        elif chunk.stream == "stdout":
            self._left = memoryview(chunk.data)
        else:
            self._stderr = (self._stderr + chunk.data)[-_STDERR_BYTES:]


class _Input:
    """The stdin of a session, as a file that is written."""

    def __init__(self, client: Client, started: ExecSession, progress: Callable[[int], object]) -> None:
        self._client, self._started, self._progress = client, started, progress
        self._sent = 0

    def write(self, data: bytes) -> int:
        """Send it, and wait until it was taken."""
        begin = self._sent
        while (done := self._sent - begin) < len(data):
            self._sent = self._client.exec_input(self._started, data[done:], offset=self._sent)
        self._progress(len(data))
        return len(data)

    def finish(self) -> None:
        """Send the end."""
        self._client.exec_input(self._started, b"", offset=self._sent, eof=True)


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int], object]]:
    """Show on a terminal how much was copied. Call what it gives with each number of bytes."""
    from gpu_platform.cli.terminal import safe

    copied, began, shown_at = 0, time.monotonic(), 0.0
    console = session.err()
    if not console.is_terminal:
        yield lambda size: None
        return
    with console.status(safe(name)) as spinner:

        def add(size: int) -> None:
            nonlocal copied, shown_at
            copied += size
            now = time.monotonic()
            if now - shown_at > 0.2:
                shown_at = now
                rate = copied / _MIB / max(now - began, 0.001)
                spinner.update(safe(f"{name}  {copied / _MIB:.1f} MiB  {rate:.1f} MiB/s"))

        yield add
