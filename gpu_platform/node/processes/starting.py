"""How the program of an order is started: in this process (execve), or in a new one that shares its memory until then
(posix_spawn).

A fork copies the page table, and both sides then copy each page that they write: several times the price of a spawn.
But a spawned process executes nothing of ours before its program, so it cannot enter a jail. Standard library only:
the spawner imports it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.isolation.jail import RankJail
from gpu_platform.node.isolation.orders import RankOrder
from gpu_platform.node.isolation.secret_files import read_environ

RANK_UMASK = 0o022
"""The umask of every program. The node worker's own is stricter: its files are nobody else's business."""
_CATCHABLE = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
_NO_PROCESS = (errno.EAGAIN, errno.ENOMEM)


class StartFailed(Exception):
    """A program cannot be executed: the step that failed, and its errno. See :func:`explain`."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(step, number)
        self.step, self.number = step, number

    @property
    def exit_code(self) -> int:
        """The exit code as a shell gives it: 127 for a program that is not there."""
        return 127 if self.step == "command" and self.number == errno.ENOENT else 126


def spawn(order: RankOrder, output: int) -> int:
    """Start the program of an order without a jail in a new session. Returns its pid.

    This process must have the umask :data:`RANK_UMASK`, and its working directory is ``/`` afterwards. Raises
    :class:`StartFailed`, and ``OSError`` if the kernel has no process left to give.
    """
    step = "secrets"
    try:
        env = order.env
        if order.secrets is not None:
            env = {**env, **read_environ(order.secrets)}
        step = "workdir"
        _enter_workdir(order, env)
        step = "command"
        with _bound_to(order.cpus):
            return _spawn_first(order.argv, env, output)
    except OSError as error:
        number = error.errno or errno.EIO
        if step == "command" and number in _NO_PROCESS:
            raise
        raise StartFailed(step, number) from error
    except ValueError as error:  # a zero byte in the command or in its environment
        raise StartFailed(step, errno.EINVAL) from error
    finally:
        os.chdir("/")


def execute(order: RankOrder, jail: RankJail | None, stdio: tuple[int, int, int], error_fd: int) -> NoReturn:
    """Become the program ``order.argv``, where the rank is. If that fails, write ``[step, errno]`` to ``error_fd``."""
    step = "secrets"
    try:
        env = order.env
        if order.secrets is not None:
            env = {**env, **read_environ(f"{'' if jail is None else jail.root}{order.secrets}")}
        step = "sandbox"
        reset_signals()
        for target, source in enumerate(stdio):
            os.dup2(source, target)
        os.umask(RANK_UMASK)
        if jail is not None:
            jail.enter()
        bind_to(order.cpus)
        step = "workdir"
        _enter_workdir(order, env)
        step = "command"
        os.execvpe(order.argv[0], order.argv, env)
    except OSError as error:
        failed = StartFailed(step, error.errno or errno.EIO)
        os.write(error_fd, json.dumps([failed.step, failed.number]).encode())
        os._exit(failed.exit_code)
    finally:
        os._exit(126)


def reset_signals() -> None:
    """Ignore and block no signal."""
    # All of them: a node worker that a shell started in the background ignores SIGINT and SIGQUIT.
    for number in _CATCHABLE:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


def _enter_workdir(order: RankOrder, env: dict[str, str]) -> None:
    if order.workdir is not None:
        os.chdir(order.workdir)
    elif os.path.isdir(env.get("HOME", "")):
        os.chdir(env["HOME"])


def _spawn_first(argv: list[str], env: dict[str, str], output: int) -> int:
    """Spawn the first program of that name that can be executed, in the order of ``os.execvpe``."""
    name = argv[0]
    candidates = [name] if "/" in name else [os.path.join(directory, name) for directory in os.get_exec_path(env)]
    stdio = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, output, 2),
    ]
    missing, failed = OSError(errno.ENOENT, os.strerror(errno.ENOENT)), None
    for path in candidates:
        if path != name and not os.path.exists(path):
            continue
        try:
            return os.posix_spawn(path, argv, env, file_actions=stdio, setsid=True, setsigmask=[], setsigdef=_CATCHABLE)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except OSError as error:
            if error.errno in _NO_PROCESS:
                raise
            failed = failed or error
    raise failed or missing


def bind_to(cpus: list[int] | None) -> None:
    """Run on those of ``cpus`` that this process may use. If it may use none of them (they can be offline), use all
    that it may."""
    if cpus and (allowed := os.sched_getaffinity(0) & set(cpus)):
        os.sched_setaffinity(0, allowed)


@contextmanager
def _bound_to(cpus: list[int] | None) -> Iterator[None]:
    """As :func:`bind_to`, for what is started inside the block."""
    if not cpus:
        yield
        return
    before = os.sched_getaffinity(0)
    bind_to(cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def explain(order: RankOrder, step: str, number: int) -> dict[str, Any]:
    """The failure of an order as a dictionary: a :class:`gpu_platform.domain.jobs.job.Failure`."""
    host, reason = order.host, os.strerror(number)
    inside = ", inside the jail" if order.jail is not None else ""
    if step == "sandbox":
        return {
            "kind": blame(FailureCause.NO_JAIL).value,
            "message": f"the rank could not be jailed on {host}: {reason}",
            "host": host,
        }
    if step == "secrets":
        message = f"the secrets of the job could not be read on {host}: {reason}"
        return {"kind": blame(FailureCause.NO_JAIL).value, "message": message, "host": host}
    if step == "workdir":
        message = f"the working directory {order.workdir!r} cannot be entered on {host}{inside}: {reason}"
    else:
        program = order.argv[0]
        by = "" if order.jail is None else f" by the account {order.jail.uid}, as which this job runs"
        texts = {
            errno.ENOENT: f"the program {program!r}, or the interpreter in its first line, was not found "
            f"on {host}{inside} (PATH is {order.env.get('PATH', '')!r})",
            errno.EACCES: f"the program {program!r} is not executable on {host}{by}",
            errno.ENOEXEC: f"the program {program!r} cannot run on {host}: "
            "it is no binary of this machine and has no '#!' line",
            errno.E2BIG: f"the command and its environment are larger than the kernel of {host} takes: "
            "put large values into a file",
        }
        message = texts.get(number, f"the program {program!r} cannot be executed on {host}: {reason}")
    return {"kind": blame(FailureCause.PROGRAM).value, "message": message, "host": host}
