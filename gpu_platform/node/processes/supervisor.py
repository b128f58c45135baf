"""The supervisor of a rank: a process that starts it, outlives the node worker, and records how it ended.

The spawner forks it. It is a session of its own and a child subreaper (prctl(2)), so that
whatever the rank forks, double-forked daemons included, stays below it. It also keeps the rank's log
(``rank_log``): a rank neither fills the disk nor fails because the disk is full. A rank whose supervisor
was killed counts as vanished anyway, so it is no loss that the pipe to the supervisor breaks. Standard library only.

Order of events, each safe against SIGKILL before and after it::

    take the lock -> attempt not closed? -> started.json without a pid -> spawn -> started.json with the pid
    -> answer -> wait for the end -> write exit.json -> kill what is left -> release the lock -> attempt not closed?

A supervisor that is killed around the spawn leaves a record without a pid: whether the program ran is not known, so
the rank counts as vanished and is never started again. The spawned process has a copy of the lock until it executes.
A rank in a jail is forked instead, enters the jail and writes its record itself.

A supervisor whose rank had no jail and no secrets, left no process, and was not stopped takes the next order. ``stop``
closes an attempt before it looks for locks, and the supervisor looks for that after it has released its lock. So one
that ``stop`` found at work never takes another rank.
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
from functools import cache
from typing import Any, NamedTuple, NoReturn

from gpu_platform import disk_room
from gpu_platform.domain.jobs.blame import FailureCause, blame
from gpu_platform.node.isolation.jail import RankJail
from gpu_platform.node.isolation.orders import RankOrder
from gpu_platform.node.processes.descendants import UNKILLABLE_S, Descendants
from gpu_platform.node.processes.rank_log import LogBounds, LogPump, LogWriter
from gpu_platform.node.processes.starting import RANK_UMASK, StartFailed, execute, explain, spawn
from gpu_platform.node.system import lease_file, records
from gpu_platform.node.system.lease_page import LEASED, RELAXED, Slot, attempt_mark
from gpu_platform.node.system.process_tree import boot_id, read_stat

Reply = Callable[[dict[str, Any]], None]

_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_RECORD = "record"
_JAIL = "jail"
_LEASE = "lease"
_RETRIED = (_RECORD, _JAIL, _LEASE)
"""Steps before the program is executed: after a failure of them the rank may be started again."""
_DISK_FULL_PATIENCE_S = 60.0
_LOG_PATIENCE_S = 10.0
"""Seconds to write the rank's last output. Another process may keep the pipe open for ever."""
_LEASE_LOOK_S = 5.0
"""Seconds between two reads of the lease. A planned restart makes it longer, and the new node worker makes it
shorter."""
_libc = ctypes.CDLL(None, use_errno=True)


def become_supervisor() -> None:
    """Make this process fit for :func:`supervise`. Called once, right after the fork."""
    os.setsid()
    os.umask(RANK_UMASK)
    name_process(b"gpu-supervisor")
    become_subreaper()


def supervise(order: RankOrder, slot: Slot, reply: Reply) -> bool:
    """Run one rank to its end. True: nothing of it is left in this process or below it, so it may take another order.

    ``slot``: of this process, in which the guard sees the rank.

    ``reply`` is called once, as soon as the rank executes or cannot:
    ``{"status": "started" | "taken" | "closed" | "failed" | "error"}``.
    """
    rank_dir = order.rank_dir
    try:
        _make_directory(rank_dir)
        lock = records.take_lock(rank_dir)
        if lock is None or records.read_record(os.path.join(rank_dir, records.STARTED)) is not None:
            reply({"status": "taken"})
            return False
        records.write_lock_owner(lock, {**_own_process(), "reaped_cpu_s": _reaped_cpu_s()})
        if _is_closed(order):
            reply({"status": "closed"})
            return False
        lease = order.lease
        # The node worker may have stopped for a while after it sent the order.
        if lease is not None and (why := lease_file.why_not_start(lease.path, lease.term)) is not None:
            reply({"status": "error", "message": why})
            return False
        # The order holds the job's environment, which may be secret.
        records.write_new(os.path.join(rank_dir, records.ORDER), order.to_json())
        jail = None if order.jail is None else RankJail(order.attempt_dir, order.jail)
        pump = LogPump(LogWriter(rank_dir, LogBounds(order.log_file_bytes, order.log_files)))
        since_s = records.boot_clock_s()
        slot.hold(
            LEASED if lease is not None and lease.ends_rank else RELAXED,
            since_s,
            attempt_mark(order.attempt_dir),
            "" if jail is None else jail.cgroup.name,
        )
        begun = _spawn(order, slot, pump.write_end) if jail is None else _fork(order, jail, slot, pump.write_end)
    except OSError as error:  # disk full, no permission, no more processes
        reply({"status": "error", "message": f"{error.strerror}: {error.filename or 'fork'}"})
        return False
    if begun.failed is not None and begun.failed.step in _RETRIED:  # it did not execute, so it may be started again
        message = f"{os.strerror(begun.failed.number)} ({begun.failed.step}): {rank_dir}"
        reply({"status": "error", "message": message})
        return False
    pump.start()
    if begun.failed is None:
        reply({"status": "started", "pid": begun.pid})
    end = _run_to_end(order, begun, jail, pump, since_s)
    if begun.failed is not None:
        reply({"status": "failed", "failure": end.failure, "exit_code": end.code})
    if not end.alone:
        _end_leftovers(order, jail)
    slot.idle()
    if jail is not None:
        jail.cgroup.remove()
    logged = pump.finish(_LOG_PATIENCE_S)
    os.truncate(os.path.join(rank_dir, records.ORDER), 0)
    records.release_lock(lock)
    stopped = _is_closed(order)
    os.close(lock)  # tells who waits for the lock; it often closes the attempt then, which is no stop
    return end.alone and logged and jail is None and order.secrets is None and not stopped


class _Begun(NamedTuple):
    pid: int | None
    """None: no process was made."""
    failed: StartFailed | None
    """Why it did not execute."""


class _End(NamedTuple):
    code: int
    failure: dict[str, Any] | None
    """Why the rank failed if not by its own doing."""
    alone: bool
    """No other process of it is left."""


def _spawn(order: RankOrder, slot: Slot, log: int) -> _Begun:
    """Start a rank without a jail, between two writes of its start record."""
    path = os.path.join(order.rank_dir, records.STARTED)
    record = {**_own_process(), "started_at_ms": time.time_ns() // 1_000_000}
    with records.StartRecord(path, record) as started:
        # Check again: on a busy host it may have taken longer to get here than the lease lasted.
        lease = order.lease
        if lease is not None and lease_file.why_not_start(lease.path, lease.term) is not None:
            started.withdraw()
            return _Begun(None, StartFailed(_LEASE, errno.ESTALE))
        try:
            pid = spawn(order, log)
        except StartFailed as error:
            return _Begun(None, error)
        except OSError:
            started.withdraw()
            raise
        found = read_stat(pid)  # there even if it has ended: only this process reaps it
        assert found is not None
        slot.started(found.process)
        # Not fsynced: only a power loss could undo it, and that ends the rank as well.
        started.write({**record, **found.process._asdict()}, pid_known=True)
    return _Begun(pid, None)


def _fork(order: RankOrder, jail: RankJail, slot: Slot, log: int) -> _Begun:
    """Fork into the jail, and wait until the child executes its program or says why it cannot."""
    if jail.user[0] is not None and jail.user[1] is not None:
        os.fchown(log, jail.user[0], jail.user[1])  # so that the program can open its /dev/stdout
    read_end, error_fd = os.pipe()
    pid = jail.fork()
    if pid == 0:
        _become_rank(order, jail, slot, log, error_fd)
    os.close(error_fd)
    with open(read_end, "rb") as file:  # closes when the child executes, because its end is close-on-exec
        error = file.read()
    return _Begun(pid, StartFailed(*json.loads(error)) if error else None)


def _become_rank(order: RankOrder, jail: RankJail, slot: Slot, log: int, error_fd: int) -> NoReturn:
    step = _JAIL
    try:
        os.setsid()
        jail.cgroup.enter()
        step = _LEASE
        lease = order.lease
        # Check again: on a busy host the jail and the fork may have taken longer than the lease lasted.
        if lease is not None and lease_file.why_not_start(lease.path, lease.term) is not None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        step = _RECORD
        me = read_stat("self")
        assert me is not None
        slot.started(me.process)
        record = {**me.process._asdict(), "boot_id": boot_id(), "started_at_ms": time.time_ns() // 1_000_000}
        records.write_record(os.path.join(order.rank_dir, records.STARTED), record, durable=False)
    except OSError as error:
        os.write(error_fd, json.dumps([step, error.errno]).encode())
        os._exit(126)
    execute(order, jail, (os.open(os.devnull, os.O_RDONLY), log, log), error_fd)


def _run_to_end(order: RankOrder, begun: _Begun, jail: RankJail | None, pump: LogPump, since_s: float) -> _End:
    """Wait for the rank's end, by itself or with its lease, and record it."""
    path = order.lease.path if order.lease is not None and order.lease.ends_rank else None
    below = Descendants()
    failure = None if begun.failed is None else explain(order, begun.failed.step, begun.failed.number)
    if begun.pid is None:
        code = begun.failed.exit_code if begun.failed is not None else 0
    else:
        status = _wait_for(begun.pid, below, path, since_s)
        if status is None:
            # First of all: whatever is written before it may hang, and the rank would outlive its lease.
            status = _end_rank(begun.pid, below, jail)
            failure = _lease_ended(order)
        elif path is not None and _is_killed(status) and lease_file.ends_in_s(path, since_s) <= 0:
            failure = _lease_ended(order)  # the guard did it, because this process stood still
        if failure is not None and begun.failed is None:
            pump.note(failure["message"])
        code = exit_code(status)
    if jail is not None and jail.cgroup.out_of_memory_kills():
        pump.note("the kernel ended processes of this rank: it was at its memory limit")
    alone = not below.reap() if jail is None else jail.cgroup.is_empty
    checkpoints = order.env.get("GPU_PLATFORM_CHECKPOINT_DIR")
    full = checkpoints is not None and disk_room.is_full(checkpoints, disk_room.KEPT_BY_PROGRAMS)
    if code != 0 and failure is None and full:
        why = disk_room.told(f"its checkpoints ({checkpoints})")
        pump.note(why)
        message = f"a rank on {order.host} exited with code {code}, and {why}"
        failure = {"kind": blame(FailureCause.PROGRAM).value, "message": message, "host": order.host, "exit_code": code}
    record = {
        "exit_code": code,
        "ended_at_ms": time.time_ns() // 1_000_000,
        "ended_boot_s": records.boot_clock_s(),
        "failure": failure,
        "alone": alone,
        "usage": _usage(below, jail),
    }
    try:
        _record_exit(os.path.join(order.rank_dir, records.EXIT), record)
    except OSError:  # the rank counts as vanished, and nothing of it may stay
        if not alone:
            _end_leftovers(order, jail)
        raise
    return _End(code, failure, alone)


def adopt_orphans() -> None:
    """Make this process a subreaper: the parent of all orphans below it (prctl(2))."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def become_subreaper() -> None:
    """Make this process the parent of all orphans below it, and ignore every signal but SIGKILL."""
    adopt_orphans()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})


def name_process(name: bytes) -> None:
    """Set the name of this process that ``ps -o comm`` and ``top`` show, at most 15 bytes."""
    _libc.prctl(_PR_SET_NAME, name, 0, 0, 0)


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, records.PRIVATE_DIRECTORY)
    except FileExistsError:
        return
    except FileNotFoundError:
        os.makedirs(path, records.PRIVATE_DIRECTORY, exist_ok=True)


@cache
def _own_process() -> dict[str, Any]:
    me = read_stat(os.getpid())
    assert me is not None
    return {**me.process._asdict(), "boot_id": boot_id()}


def _reaped_cpu_s() -> float:
    """CPU seconds of the processes that this one has reaped. Those of earlier ranks do not count for the next one."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _is_closed(order: RankOrder) -> bool:
    return os.path.exists(os.path.join(order.attempt_dir, records.CLOSED))


def _usage(below: Descendants, jail: RankJail | None) -> dict[str, float]:
    """CPU seconds and peak memory of the rank's cgroup. Without a jail: CPU seconds of all reaped processes, peak of
    the largest."""
    if jail is not None:
        return {"cpu_s": jail.cgroup.cpu_s(), "peak_memory_mib": jail.cgroup.peak_memory_bytes() >> 20}
    return {"cpu_s": below.cpu_s, "peak_memory_mib": below.peak_memory_kib >> 10}


def _wait_for(child: int, below: Descendants, lease: str | None, since_s: float) -> int | None:
    """Wait for the child and reap descendants. Returns its wait status. None: the lease in the page ``lease`` ended
    first."""
    while True:
        status = below.reap_until(child)
        if status is not None:
            return status
        if lease is None:
            signal.sigwait({signal.SIGCHLD})
            continue
        left_s = lease_file.ends_in_s(lease, since_s)
        if left_s <= 0:
            return None
        signal.sigtimedwait({signal.SIGCHLD}, min(left_s, _LEASE_LOOK_S))


def _end_rank(child: int, below: Descendants, jail: RankJail | None) -> int:
    """Send SIGKILL to every process of the rank. Returns the child's wait status. It touches no file but those of the
    kernel."""
    while True:
        below.send_kill()
        if jail is not None:
            jail.cgroup.kill()
        status = below.reap_until(child)
        if status is not None:
            below.kill()
            if jail is not None:
                jail.cgroup.wait_empty(UNKILLABLE_S)
            return status
        signal.sigtimedwait({signal.SIGCHLD}, 0.05)


def _is_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def _lease_ended(order: RankOrder) -> dict[str, Any]:
    """The failure "the lease has ended" as a dictionary: a :class:`gpu_platform.domain.jobs.job.Failure`."""
    host = order.host
    message = f"host {host} was cut off: its lease ended, so the job may start elsewhere"
    return {"kind": blame(FailureCause.STOPPED_BY_HOST).value, "message": message, "host": host}


def exit_code(status: int) -> int:
    """The exit code as a shell shows it: 128 + n if signal n ended the process."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _record_exit(path: str, record: dict[str, Any]) -> None:
    """Write the exit record, again and again while the disk is full. Without it the rank counts as vanished.

    Raises :class:`OSError` at once if the directory was removed: nobody reads the record then.
    """
    give_up = records.boot_clock_s() + _DISK_FULL_PATIENCE_S
    while True:
        try:
            return records.write_record(path, record, durable=True)
        except OSError as error:
            if isinstance(error, FileNotFoundError) or records.boot_clock_s() > give_up:
                raise
            time.sleep(1.0)


def _end_leftovers(order: RankOrder, jail: RankJail | None) -> None:
    """Kill what the rank left behind. If a stop is under way, wait for its grace first."""
    stop = records.read_record(os.path.join(order.attempt_dir, records.CLOSED))
    grace = stop["kill_at_boot_s"] - records.boot_clock_s() if stop and stop["boot_id"] == boot_id() else 0.0
    if jail is not None:
        if not jail.cgroup.wait_empty(grace):
            jail.cgroup.kill()
            jail.cgroup.wait_empty(UNKILLABLE_S)
        return
    below = Descendants()
    below.wait_until_none(grace)
    below.kill()
