"""The supervisor of one rank: a process that starts it, outlives the node worker, and records how it ended.

The spawner forks it. It is a session of its own and a child subreaper (prctl(2)), so that
whatever the rank forks, double-forked daemons included, stays below it. It also keeps the rank's log
(``rank_log``): a rank neither fills the disk nor fails because the disk is full. A rank whose supervisor
was killed counts as vanished anyway, so it is no loss that the pipe to the supervisor breaks. Standard library only.

Order of events, each safe against SIGKILL before and after it::

    take the lock -> attempt not closed? -> fork -> the child writes started.json and executes
    -> answer -> wait for the end -> write exit.json -> kill what is left -> go

The child writes its record itself, so a program that ran has one, whenever the supervisor dies;
and it holds a copy of the lock until it executes, so nobody else starts the rank meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import signal
import time
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.hosts.isolation.jail import RankJail
from gpu_platform.hosts.isolation.orders import RankOrder
from gpu_platform.hosts.isolation.secret_files import read_environ
from gpu_platform.hosts.processes.rank_log import LogBounds, LogPump, LogWriter
from gpu_platform.hosts.system import lease_file, records
from gpu_platform.hosts.system.disks import is_full
from gpu_platform.hosts.system.process_tree import all_processes, boot_id, descendants, read_stat, send_signal

Reply = Callable[[dict[str, Any]], None]

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_RECORD = "record"
_JAIL = "jail"
_LEASE = "lease"
_UNKILLABLE_S = 10.0
"""A process that survives SIGKILL for this many seconds hangs in the kernel. ``stop`` handles it."""
_DISK_FULL_PATIENCE_S = 60.0
_LOG_PATIENCE_S = 10.0
"""Seconds to write the rank's last output. Another process may keep the pipe open for ever."""
_LEASE_LOOK_S = 5.0
"""Seconds between two reads of the lease. A planned restart makes it longer, and the new node worker makes it
shorter."""
_RANK_UMASK = 0o022
"""The platform's own umask is stricter: its files are nobody else's business."""
_libc = ctypes.CDLL(None, use_errno=True)


def supervise(order: RankOrder, reply: Reply) -> None:
    """Run one rank to its end.

    ``reply`` is called once, as soon as the rank executes or cannot:
    ``{"status": "started" | "taken" | "closed" | "failed" | "error"}``.
    """
    os.setsid()
    os.umask(0o022)
    name_process(b"gpu-supervisor")
    become_subreaper()

    rank_dir = order.rank_dir
    try:
        os.makedirs(rank_dir, records.PRIVATE_DIRECTORY, exist_ok=True)
        lock = records.take_lock(rank_dir)
        if lock is None or os.path.exists(os.path.join(rank_dir, records.STARTED)):
            return reply({"status": "taken"})
        me = read_stat(os.getpid())
        assert me is not None
        records.write_lock_owner(lock, {**me.process._asdict(), "boot_id": boot_id()})
        closed = os.path.join(order.attempt_dir, records.CLOSED)
        if os.path.exists(closed):
            return reply({"status": "closed"})
        lease = order.lease
        # The node worker may have stopped for a while after it sent the order.
        if lease is not None and (why := lease_file.why_not_start(lease.path, lease.term)) is not None:
            return reply({"status": "error", "message": why})
        # The order holds the job's environment, which may be secret.
        records.write_record(os.path.join(rank_dir, records.ORDER), order.to_json(), durable=False)
        jail = None if order.jail is None else RankJail(order.attempt_dir, order.jail)
        pump = LogPump(LogWriter(rank_dir, LogBounds(order.log_file_bytes, order.log_files)))
        child = _fork(order, jail, pump.write_end)
    except OSError as error:  # disk full, no permission, no more processes
        return reply({"status": "error", "message": f"{error.strerror}: {error.filename or 'fork'}"})
    pump.start()
    failure: dict[str, Any] | None = None
    if child.start_error is not None:
        step, number = child.start_error
        if step in (_RECORD, _JAIL, _LEASE):  # it did not execute, so it may be started again
            return reply({"status": "error", "message": f"{os.strerror(number)} ({step}): {rank_dir}"})
        failure = explain(order, step, number)
    else:
        reply({"status": "started", "pid": child.pid})

    code, failure, alone = _run_to_end(order, child.pid, jail, pump, failure)
    if failure is not None and child.start_error is not None:
        reply({"status": "failed", "failure": failure, "exit_code": code})
    if not alone:
        _end_leftovers(closed, jail)
    if jail is not None:
        jail.cgroup.remove()
    pump.finish(_LOG_PATIENCE_S)
    os.unlink(os.path.join(rank_dir, records.ORDER))
    return None


def _run_to_end(
    order: RankOrder, pid: int, jail: RankJail | None, pump: LogPump, failure: dict[str, Any] | None
) -> tuple[int, dict[str, Any] | None, bool]:
    """Wait for the rank's end, by itself or with its lease, and record it.

    Returns its exit code, why it failed if not by its own doing, and whether no other process of it is left.
    """
    lease = order.lease
    status = _wait_for(pid, lease.path if lease is not None and lease.ends_rank else None)
    if status is None:
        failure = _lease_ended(order)
        pump.note(failure["message"])
        status = _end_rank(pid, jail)
    code = exit_code(status)
    if jail is not None and jail.cgroup.out_of_memory_kills():
        pump.note("the kernel ended processes of this rank: it was at its memory limit")
    alone = not _reap() if jail is None else jail.cgroup.is_empty
    checkpoints = order.env.get("GPU_PLATFORM_CHECKPOINT_DIR")
    if code != 0 and failure is None and is_full(checkpoints):
        why = f"the disk of its checkpoints ({checkpoints}) is full: make room there"
        pump.note(why)
        message = f"a rank on {order.host} exited with code {code}, and {why}"
        failure = {"kind": blame(FailureCause.PROGRAM).value, "message": message, "host": order.host, "exit_code": code}
    record = {
        "exit_code": code,
        "ended_at_ms": time.time_ns() // 1_000_000,
        "failure": failure,
        "alone": alone,
        "usage": _usage(jail),
    }
    _record_exit(os.path.join(order.rank_dir, records.EXIT), record)
    return code, failure, alone


def become_subreaper() -> None:
    """Make this process the parent of all orphans below it, and ignore every signal but SIGKILL (prctl(2))."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})


def name_process(name: bytes) -> None:
    """Set the name of this process that ``ps -o comm`` and ``top`` show, at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name, 0, 0, 0)


class _ForkedRank(NamedTuple):
    pid: int
    start_error: tuple[str, int] | None
    """The step and errno at which it failed to execute."""


def _fork(order: RankOrder, jail: RankJail | None, log: int) -> _ForkedRank:
    """Fork, and wait until the child executes its program or says why it cannot."""
    if jail is not None and jail.user[0] is not None and jail.user[1] is not None:
        os.fchown(log, jail.user[0], jail.user[1])  # so that the program can open its /dev/stdout
    read_end, error_fd = os.pipe()
    pid = os.fork() if jail is None else jail.fork()
    if pid == 0:
        _become_rank(order, jail, log, error_fd)
    os.close(error_fd)
    with open(read_end, "rb") as file:  # closes when the child executes, because its end is close-on-exec
        start_error = file.read()
    return _ForkedRank(pid, tuple(json.loads(start_error)) if start_error else None)


def _become_rank(order: RankOrder, jail: RankJail | None, log: int, error_fd: int) -> NoReturn:
    step = _JAIL
    try:
        os.setsid()
        if jail is not None:
            jail.cgroup.enter()
        step = _LEASE
        lease = order.lease
        # Check again: on a busy host the jail and the fork may have taken longer than the lease lasted.
        if lease is not None and lease_file.why_not_start(lease.path, lease.term) is not None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        step = _RECORD
        me = read_stat("self")
        assert me is not None
        record = {**me.process._asdict(), "boot_id": boot_id(), "started_at_ms": time.time_ns() // 1_000_000}
        # Not fsynced: only a power loss could undo it, and that ends the rank as well.
        records.write_record(os.path.join(order.rank_dir, records.STARTED), record, durable=False)
    except OSError as error:
        os.write(error_fd, json.dumps([step, error.errno]).encode())
        os._exit(126)
    execute(order, jail, (os.open(os.devnull, os.O_RDONLY), log, log), error_fd)


def execute(order: RankOrder, jail: RankJail | None, stdio: tuple[int, int, int], error_fd: int) -> NoReturn:
    """Become the program ``order.argv``, where the rank is. If that fails, write ``[step, errno]`` to ``error_fd``."""
    step = "secrets"
    try:
        env = order.env
        if order.secrets is not None:
            env = {**env, **read_environ(f"{'' if jail is None else jail.root}{order.secrets}")}
        step = "sandbox"
        # All of them: a node worker that a shell started in the background ignores SIGINT and SIGQUIT.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        for target, source in enumerate(stdio):
            os.dup2(source, target)
        os.umask(_RANK_UMASK)
        if jail is not None:
            jail.enter()
        bind_to(order.cpus)
        step = "workdir"
        if order.workdir is not None:
            os.chdir(order.workdir)
        elif os.path.isdir(env.get("HOME", "")):
            os.chdir(env["HOME"])
        step = "command"
        os.execvpe(order.argv[0], order.argv, env)
    except OSError as error:
        os.write(error_fd, json.dumps([step, error.errno]).encode())
        os._exit(127 if step == "command" and error.errno == errno.ENOENT else 126)
    finally:
        os._exit(126)


def bind_to(cpus: list[int] | None) -> None:
    """Run on those of ``cpus`` that this process may use. If it may use none of them (they can be offline), use all
    that it may."""
    if cpus and (allowed := os.sched_getaffinity(0) & set(cpus)):
        os.sched_setaffinity(0, allowed)


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


def _usage(jail: RankJail | None) -> dict[str, float]:
    """CPU seconds and peak memory of the rank's cgroup. Without a jail: CPU seconds of all reaped processes, peak of
    the largest."""
    if jail is not None:
        return {"cpu_s": jail.cgroup.cpu_s(), "peak_memory_mib": jail.cgroup.peak_memory_bytes() >> 20}
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"cpu_s": usage.ru_utime + usage.ru_stime, "peak_memory_mib": usage.ru_maxrss >> 10}


def _wait_for(child: int, lease: str | None) -> int | None:
    """Wait for the child and reap descendants. Returns its wait status. None: the lease in the file ``lease`` ended
    first."""
    while True:
        status = _reap_until(child)
        if status is not None:
            return status
        if lease is None:
            signal.sigwait({signal.SIGCHLD})
            continue
        left_s = lease_file.ends_in_s(lease)
        if left_s <= 0:
            return None
        signal.sigtimedwait({signal.SIGCHLD}, min(left_s, _LEASE_LOOK_S))


def _reap_until(child: int) -> int | None:
    """Reap processes that have ended. Returns the child's wait status if the child is one of them."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == child:
            return status
        if pid == 0:
            return None


def _end_rank(child: int, jail: RankJail | None) -> int:
    """Send SIGKILL to every process of the rank. Returns the child's wait status."""
    if jail is not None:
        jail.cgroup.kill()
    while True:
        for process in descendants([os.getpid()], all_processes()):
            send_signal(process, signal.SIGKILL)
        status = _reap_until(child)
        if status is not None:
            return status
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)


def _lease_ended(order: RankOrder) -> dict[str, Any]:
    """The failure "the lease has ended" as a dictionary: a :class:`gpu_platform.domain.jobs.job.Failure`."""
    host = order.host
    message = f"host {host} was cut off: its lease ended, so the job may start elsewhere"
    return {"kind": blame(FailureCause.STOPPED_BY_HOST).value, "message": message, "host": host}


def exit_code(status: int) -> int:
    """The exit code as a shell shows it: 128 + n if signal n ended the process."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _reap() -> bool:
    """Reap processes that have ended. True: some are left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def _record_exit(path: str, record: dict[str, Any]) -> None:
    """Write the exit record, again and again while the disk is full. Without it the rank counts as vanished."""
    give_up = records.boot_clock_s() + _DISK_FULL_PATIENCE_S
    while True:
        try:
            return records.write_record(path, record, durable=True)
        except OSError:
            if records.boot_clock_s() > give_up:
                raise
            time.sleep(1.0)


def _end_leftovers(closed: str, jail: RankJail | None) -> None:
    """Kill what the rank left behind. If a stop is under way, wait for its grace first."""
    stop = records.read_record(closed)
    grace = stop["kill_at_boot_s"] - records.boot_clock_s() if stop and stop["boot_id"] == boot_id() else 0.0
    if jail is not None:
        if not jail.cgroup.wait_empty(grace):
            jail.cgroup.kill()
            jail.cgroup.wait_empty(_UNKILLABLE_S)
        return
    _wait_until_alone(grace)
    kill_descendants()


def kill_descendants() -> bool:
    """Send SIGKILL to all descendants of this process until none is left. False: one does not die."""
    patience = records.boot_clock_s() + _UNKILLABLE_S
    while _reap():
        if records.boot_clock_s() > patience:
            return False
        for process in descendants([os.getpid()], all_processes()):
            send_signal(process, signal.SIGKILL)
        _wait_until_alone(0.05)  # look again for processes that were forked meanwhile
    return True


def _wait_until_alone(seconds: float) -> None:
    deadline = records.boot_clock_s() + seconds
    while _reap():
        remaining = deadline - records.boot_clock_s()
        if remaining <= 0:
            return
        signal.sigtimedwait({signal.SIGCHLD}, remaining)
