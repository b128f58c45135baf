"""Steps of a host that a job can make long, or that may never return: each is a process that can be killed.

Two kinds, one mechanism:

- :func:`run` starts a program for one step (unpack, hash, copy, pull). It is bounded in time, CPU, memory and bytes, in
  a cgroup of the attempt where there is one, and ends with all its descendants.
- :func:`look` asks a helper about paths: whether a directory is there, what a link leads to. An idle helper answers
  within a fraction of a millisecond and is used again; one that hangs is killed and replaced.

Who waits here waits for a bounded time, even for a process that SIGKILL does not end because the kernel waits for a
file system that is gone. Such a process is left behind, and the mount that it hangs at is refused until it has ended.
Every step ends soon after its attempt was closed (``given_up``): a stop never waits for what it stops.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, NamedTuple

import structlog

import gpu_platform
from gpu_platform.domain import errors
from gpu_platform.domain.errors import HostUnavailable, PlatformError, PreflightFailed
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.isolation.cgroups.cgroup import Cgroup
from gpu_platform.node.isolation.cgroups.cgroup_limits import Limits, apply_limits
from gpu_platform.node.isolation.passwd import Account
from gpu_platform.node.system.process_tree import all_processes, descendants, send_signal

LOOK_S = 0.25
"""How often a step looks whether it must end."""
LOOK_TIMEOUT_S = 10.0
"""How long a file system may take to answer about a path."""
KILL_PATIENCE_S = 2.0
"""How long a killed step is waited for. One that lives longer hangs in the kernel."""
MOST_HUNG = 64
"""With so many processes of steps that hang in the kernel, a host begins no new step."""
_IDLE_HELPERS = 4
_SAID_BYTES = 4096
_READ_BYTES = 1 << 16
_ANSWER_BYTES = 64 << 20
_TASKS = 512
_ENTER = 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'
"""The process moves itself, so that nothing of it was ever outside."""
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); from gpu_platform.node.processes.step_program import main; main()"
)

GivenUp = Callable[[], bool]
"""True if nobody waits for the step any more."""

log = structlog.get_logger(__name__)


class StepStopped(StrEnum):
    """Why a step was ended from outside."""

    TOO_LARGE = "too_large"
    NO_ROOM = "no_room"
    TOO_SLOW = "too_slow"
    GIVEN_UP = "given_up"
    OUT_OF_MEMORY = "out_of_memory"
    OUT_OF_CPU = "out_of_cpu"


@dataclass(frozen=True)
class Bounds:
    """What one step may use. None: the host's own limits."""

    wall_s: float
    cpu_s: float | None = None
    """Of each process."""
    memory_bytes: int | None = None
    """Of all processes in their cgroup; without one, the address space of each."""
    file_bytes: int | None = None
    """Of each file that it writes."""
    output_bytes: int = 1 << 20
    """Of stdout. More of it ends the step."""


class StepEnd(NamedTuple):
    """How a step ended. ``said``: the end of its stderr."""

    code: int
    output: bytes
    said: str
    stopped: StepStopped | None = None


class NoStepAnswer(PlatformError):
    """A step was ended before it answered. ``why`` is in its details."""

    retryable = True


@dataclass(frozen=True)
class StepProgram:
    """A program that is one step. ``account``: whose rights it has; None: ours."""

    argv: Sequence[str]
    account: Account | None = None
    cgroup: Cgroup | None = None
    stdin: IO[bytes] | bytes | None = None
    cwd: Path | None = None
    env: Mapping[str, str] | None = None
    """None: ``PATH`` and no more."""
    pass_fds: Sequence[int] = ()
    end_signal: int = signal.SIGKILL
    """It is sent first, and SIGKILL after ``end_patience_s``. It comes, too, when the node worker dies."""
    end_patience_s: float = 0.0


def run(
    program: StepProgram,
    bounds: Bounds,
    given_up: GivenUp = lambda: False,
    watch: Callable[[], StepStopped | None] = lambda: None,
) -> StepEnd:
    """Run a program until it ends, or must end. ``watch`` is asked every :data:`LOOK_S`; it must return at once.

    Raises ``OSError`` if it cannot be started.
    """
    _check_hung()
    cgroup, stdin = program.cgroup, program.stdin
    if cgroup is not None:
        cgroup.create()
        apply_limits(cgroup, Limits(memory_bytes=bounds.memory_bytes, pids=_TASKS), ends_together=True)
    try:
        process = subprocess.Popen(
            _bounded(program, bounds),
            stdin=_stdin_of(stdin),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=program.cwd,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"} if program.env is None else program.env,
            pass_fds=program.pass_fds,
            start_new_session=True,
        )
        step = _Step(process, program)
        try:
            return step.wait(bounds, given_up, watch)
        finally:
            step.end()
    finally:
        if cgroup is not None:
            cgroup.remove()  # unless a process hangs in it


def run_python(
    step: str,
    arguments: Mapping[str, Any],
    bounds: Bounds,
    given_up: GivenUp = lambda: False,
    cgroup: Cgroup | None = None,
) -> Any:
    """The result of a function of ``step_program``, in a process of its own.

    Raises what the function raised, and :class:`NoStepAnswer`.
    """
    order = json.dumps({"step": step, "arguments": arguments}).encode() + b"\n"
    ended = run(StepProgram(_python(), cgroup=cgroup, stdin=order, env={}), bounds, given_up)
    if ended.stopped is StepStopped.GIVEN_UP:
        raise StepGivenUp
    if ended.stopped is not None or not ended.output.endswith(b"\n"):
        why = ended.stopped or "died"
        raise NoStepAnswer(f"{step}: {ended.said[-300:] or why}", why=str(why))
    return _result_of(ended.output)


def look(
    step: str,
    arguments: Mapping[str, Any],
    paths: Iterable[str],
    *,
    timeout_s: float | None = None,
    given_up: GivenUp = lambda: False,
) -> Any:
    """The result of a function of ``step_program`` that looks at ``paths``, from a helper that is used again.

    Raises what the function raised, and :class:`FileSystemSilent` if a file system does not answer.
    """
    named = [path for path in paths if path]
    timeout_s = LOOK_TIMEOUT_S if timeout_s is None else timeout_s
    _check_mounts(named)
    helper = _HELPERS.take()
    try:
        answer = helper.ask({"step": step, "arguments": arguments}, timeout_s, given_up)
    except _Silent as silent:
        helper.kill(named)
        if silent.given_up:
            raise StepGivenUp from None
        raise FileSystemSilent(_silent(named, f"for {timeout_s:g} s")) from None
    except BaseException:
        helper.kill([])
        raise
    _HELPERS.give_back(helper)
    return _result_of(answer)


class StepGivenUp(HostUnavailable):
    """Nobody waits for a step any more: its attempt was stopped."""

    def __init__(self) -> None:
        super().__init__("nobody waits for this step any more: its attempt was stopped")


class FileSystemSilent(PreflightFailed):
    """A file system does not answer. Another host may have a better one: this one is not tried again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind=blame(FailureCause.REQUEST), only_here=True)


def _bounded(program: StepProgram, bounds: Bounds) -> list[str]:
    account, cgroup = program.account, program.cgroup
    limits = ["--core=0"]
    if bounds.cpu_s is not None:
        limits.append(f"--cpu={int(bounds.cpu_s)}:{int(bounds.cpu_s) + 1}")
    if bounds.file_bytes is not None:
        limits.append(f"--fsize={bounds.file_bytes}")
    if bounds.memory_bytes is not None and cgroup is None:
        limits.append(f"--as={bounds.memory_bytes}")
    rights: list[str] = []
    if account is not None:
        groups = ["--groups", ",".join(map(str, account.groups))] if account.groups else ["--clear-groups"]
        rights = ["--reuid", str(account.uid), "--regid", str(account.gid), *groups]
        rights += ["--no-new-privs", "--inh-caps=-all"]
    command = [
        "prlimit",
        *limits,
        "--",
        "setpriv",
        "--pdeathsig",
        signal.Signals(program.end_signal).name.removeprefix("SIG"),
        *rights,
        "--",
        *program.argv,
    ]
    if cgroup is None:
        return command
    return ["/bin/sh", "-c", _ENTER, "step", *cgroup.paths(), "--", *command]


def _stdin_of(stdin: IO[bytes] | bytes | None) -> IO[bytes] | int:
    if stdin is None:
        return subprocess.DEVNULL
    return subprocess.PIPE if isinstance(stdin, bytes) else stdin


def _python() -> list[str]:
    """No site packages and an empty environment: it starts fast, and nothing secret is in it."""
    root = str(Path(gpu_platform.__file__).parent.parent)
    return [sys.executable, "-I", "-S", "-X", "utf8", "-c", _PROGRAM, root]


class _Step:
    """A process of a step, and all that it has started."""

    def __init__(self, process: subprocess.Popen[bytes], program: StepProgram) -> None:
        self.process, self._program, self._cgroup = process, program, program.cgroup
        self._output = bytearray()
        self._said = bytearray()

    def wait(self, bounds: Bounds, given_up: GivenUp, watch: Callable[[], StepStopped | None]) -> StepEnd:
        deadline = time.monotonic() + bounds.wall_s
        stopped: StepStopped | None = None
        streams = {self.process.stdout: self._output, self.process.stderr: self._said}
        if self.process.stdin is not None and isinstance(self._program.stdin, bytes):
            with contextlib.suppress(BrokenPipeError):  # it reads its order before it does anything else
                self.process.stdin.write(self._program.stdin)
                self.process.stdin.close()
        looked_at = time.monotonic()
        while streams or self.process.poll() is None:
            self._read(streams)
            if self.process.poll() is not None and not streams:
                break
            if (now := time.monotonic()) - looked_at < LOOK_S:
                continue
            looked_at = now
            if now > deadline:
                stopped = StepStopped.TOO_SLOW
            elif given_up():
                stopped = StepStopped.GIVEN_UP
            elif len(self._output) > bounds.output_bytes:
                stopped = StepStopped.TOO_LARGE
            else:
                stopped = watch()
            if stopped is not None:
                self._terminate()
                break
            if self.process.poll() is not None:  # what it left behind holds its output open
                break
        code = self.process.poll()
        if self._cgroup is not None and code not in (None, 0) and self._cgroup.out_of_memory_kills():
            stopped = stopped or StepStopped.OUT_OF_MEMORY
        if code in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
            stopped = stopped or StepStopped.OUT_OF_CPU
        return StepEnd(-1 if code is None else code, bytes(self._output), self._text(), stopped)

    def end(self) -> None:
        """Kill what is left of it, and wait for a bounded time."""
        self._kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(KILL_PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self.process.returncode is None:
            _HUNG.add(self.process, [], self._program.argv[0])

    def _terminate(self) -> None:
        if self._program.end_patience_s:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, self._program.end_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(self._program.end_patience_s)

    def _kill(self) -> None:
        if self._cgroup is not None:
            self._cgroup.kill()
        if self.process.returncode is None:
            for one in descendants([self.process.pid], all_processes()):
                send_signal(one, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # also what is left of the session of one that has ended

    def _read(self, streams: dict[IO[bytes] | None, bytearray]) -> None:
        by_fd = {stream.fileno(): stream for stream in streams if stream is not None}
        for fd in _readable(by_fd, LOOK_S):
            stream, data = by_fd[fd], os.read(fd, _READ_BYTES)
            if not data:
                del streams[stream]
                continue
            streams[stream] += data
            del self._said[:-_SAID_BYTES]

    def _text(self) -> str:
        return bytes(self._said).decode(errors="replace").strip()


class _Silent(Exception):
    def __init__(self, *, given_up: bool) -> None:
        super().__init__()
        self.given_up = given_up


class _Helper:
    """A process that answers one question after the other."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            _python(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )

    def ask(self, order: Mapping[str, Any], timeout_s: float, given_up: GivenUp) -> bytes:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        deadline, answer = time.monotonic() + timeout_s, bytearray()
        try:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            self.process.stdin.flush()
            while not answer.endswith(b"\n"):
                left = deadline - time.monotonic()
                if left <= 0 or given_up():
                    raise _Silent(given_up=left > 0)
                if not _readable([self.process.stdout.fileno()], min(left, LOOK_S)):
                    continue
                data = os.read(self.process.stdout.fileno(), _READ_BYTES)
                if not data or len(answer) > _ANSWER_BYTES:
                    raise HostUnavailable("the process that looks at paths was killed: try again")
                answer += data
        except BrokenPipeError:
            raise HostUnavailable("the process that looks at paths was killed: try again") from None
        return bytes(answer)

    def close(self) -> None:
        """Let it end."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def kill(self, paths: Sequence[str]) -> None:
        """End it. If it hangs in the kernel, the mounts of ``paths`` are refused until it has ended."""
        self.process.kill()
        self.close()
        try:
            self.process.wait(KILL_PATIENCE_S)
        except subprocess.TimeoutExpired:
            _HUNG.add(self.process, paths, "a look at paths")


class _Helpers:
    """Helpers that wait for a question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Helper] = []

    def take(self) -> _Helper:
        with self._lock:
            while self._idle:
                helper = self._idle.pop()
                if helper.process.poll() is None:
                    return helper
                helper.close()
        try:
            return _Helper()
        except OSError as error:
            raise HostUnavailable(f"the host cannot start a process: {error.strerror}") from error

    def give_back(self, helper: _Helper) -> None:
        with self._lock:
            if len(self._idle) < _IDLE_HELPERS:
                self._idle.append(helper)
                return
        helper.kill([])

    def close(self) -> None:
        """End those that are idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for helper in idle:
            helper.kill([])


class _Hung:
    """Processes that SIGKILL did not end, and the mounts that they hang at."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: list[tuple[subprocess.Popen[bytes], set[str], float]] = []

    def add(self, process: subprocess.Popen[bytes], paths: Sequence[str], name: str) -> None:
        log.error("step.hangs_in_the_kernel", pid=process.pid, step=name, paths=list(paths)[:8])
        # A mount of the host itself is never refused: who asked for it had another path that hangs.
        mounts = {mount_of(path) for path in paths} - {"/"}
        with self._lock:
            self._processes.append((process, mounts, time.monotonic()))

    def mounts(self) -> dict[str, float]:
        """Mount point -> since when it is silent (monotonic)."""
        with self._lock:
            self._processes = [one for one in self._processes if one[0].poll() is None]
            return {mount: since for _, mounts, since in self._processes for mount in mounts}

    def __len__(self) -> int:
        self.mounts()
        return len(self._processes)


def mount_of(path: str) -> str:
    """The mount point that the path is below, by its name alone: no file system is asked."""
    best = "/"
    with open("/proc/self/mountinfo") as file:
        for line in file:
            place = line.split()[4].encode().decode("unicode_escape")
            if len(place) > len(best) and (path == place or path.startswith(f"{place}/")):
                best = place
    return best


def _check_mounts(paths: Sequence[str]) -> None:
    _check_hung()
    silent = _HUNG.mounts()
    for path in paths if silent else ():
        if (since := silent.get(mount_of(path))) is not None:
            raise FileSystemSilent(_silent([path], f"for {time.monotonic() - since + LOOK_TIMEOUT_S:.0f} s"))


def _check_hung() -> None:
    if len(_HUNG) >= MOST_HUNG:
        raise HostUnavailable(
            f"{len(_HUNG)} processes of this host hang in the kernel at file systems that do not answer, and "
            f"{MOST_HUNG} are the most: mend or unmount those file systems (umount -f)"
        )


def _silent(paths: Sequence[str], how_long: str) -> str:
    other = [path for path in paths if mount_of(path) != "/"]  # if that of the host hung, nobody would say so
    paths = other or paths
    mounts = list(dict.fromkeys(mount_of(path) for path in paths))
    places = ", ".join(f"{path} (mounted at {mount_of(path)})" for path in paths[:3]) or "a path"
    return (
        f"the file system of {places} has not answered {how_long}: mend or unmount {', '.join(mounts[:3])} on this "
        "host, or name a place on another file system"
    )


def _readable(fds: Iterable[int], timeout_s: float) -> list[int]:
    """Those that bring bytes, or their end."""
    poll = select.poll()  # select(2) knows no descriptor above 1023
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return [fd for fd, _ in poll.poll(timeout_s * 1000)]


def _result_of(answer: bytes) -> Any:
    found = json.loads(answer)
    if "error" not in found:
        return found["result"]
    if found["error"] == "OSError":
        raise OSError(found["errno"], found["message"], found["path"])
    kind = getattr(errors, found["error"], HostUnavailable)
    raise kind(found["message"], **found["details"])


def which(program: str, path: str) -> str | None:
    """As ``shutil.which``, for a ``PATH`` that a job chose."""
    return look("which", {"program": program, "path": path}, path.split(os.pathsep))


def close() -> None:
    """End the helpers that are idle."""
    _HELPERS.close()


_HELPERS = _Helpers()
_HUNG = _Hung()
atexit.register(close)
