"""Ends every process of an attempt on this host, and proves that none is left."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.node.isolation.cgroups.cgroup import find_hierarchies
from gpu_platform.node.isolation.jail import Jail, wait_for_maker
from gpu_platform.node.processes.ending import ask_ranks, end_ranks
from gpu_platform.node.processes.environment import marker
from gpu_platform.node.processes.ranks import RankProcess, wait_all_ended
from gpu_platform.node.system import records
from gpu_platform.node.system.environs import started_with
from gpu_platform.node.system.lease_page import SlotContent
from gpu_platform.node.system.own_thread import in_own_thread
from gpu_platform.node.system.paths import attempt_dir
from gpu_platform.node.system.process_tree import (
    FoundProcess,
    all_processes,
    boot_id,
    descendants,
    is_alive,
    send_signal,
)

log = structlog.get_logger(__name__)

CLOSE_PATIENCE_S = 1.0
"""An attempt that is not closed on disk after this time is ended without that."""
_SUPERVISOR_PATIENCE_S = 5.0
_JAIL_PATIENCE_S = 5.0
"""A jail is made within a second, unless a directory of the job hangs."""
_MAX_ROUND_S = 1.0
_EXECUTE_S = 0.1
"""execve(2) closes the lock of a rank a few microseconds before the environment can be seen."""


def close_attempt(home: Path, key: AttemptKey, reason: str, grace_s: float) -> None:
    """Refuse any later start of the attempt, durably, and record for supervisors how long leftovers may live.

    It may be repeated.
    """
    directory = attempt_dir(home, key)
    path = f"{directory}/{records.CLOSED}"
    kill_at = records.boot_clock_s() + grace_s
    old = records.read_record(path)
    if old is not None and old["boot_id"] == boot_id() and old["kill_at_boot_s"] <= kill_at:
        return
    if old is None:
        directory.mkdir(parents=True, exist_ok=True)
    record = {
        "reason": reason if old is None else old["reason"],
        "at_ms": time.time_ns() // 1_000_000 if old is None else old["at_ms"],
        "kill_at_boot_s": kill_at,
        "boot_id": boot_id(),
    }
    records.write_record(path, record, durable=True)


def is_closed(home: Path, key: AttemptKey) -> bool:
    """True if the attempt was stopped here: nothing of it starts any more."""
    return (attempt_dir(home, key) / records.CLOSED).exists()


def find_open_attempts(home: Path) -> dict[AttemptKey, int | None]:
    """Attempt -> rendezvous port (None: not prepared), for attempts that are not finished or still have a process."""
    found: dict[AttemptKey, int | None] = {}
    for directory in home.glob("jobs/*/*"):
        key = AttemptKey(job_id=directory.parent.name, attempt=int(directory.name))
        jail = Jail.of(str(directory))
        if (directory / records.PLAN).exists() and not (directory / records.FINISHED).exists():
            prepared = records.read_record(str(directory / records.PREPARED))
            found[key] = None if prepared is None else prepared["rendezvous_port"]
        elif any(records.is_locked(str(rank)) for rank in directory.glob("rank-*")) or (jail and jail.exists):
            found[key] = None
    return found


def attempt_processes(home: Path, key: AttemptKey, ranks: Sequence[RankProcess]) -> set[FoundProcess]:
    """Living processes of the attempt, without its supervisors and the helpers of ``jobs exec``.

    These are all descendants of a supervisor or helper. None can leave it: it is a subreaper. If a supervisor was
    killed, they are the rank's own process by its record (before it executes its program, nothing in its environment
    names the attempt), every process whose environment names the attempt, and the descendants of these. For a jailed
    attempt they are all processes in its cgroups, which nothing can leave.
    """
    found = _supervisors_and_helpers(ranks)
    own = {rank.main_process for rank in ranks} - {None}
    pids = {process.pid for process in own if process is not None}
    if (jail := Jail.of(str(attempt_dir(home, key)))) is not None:
        pids |= jail.rank_pids()
    entries = [f"{name}={value}".encode() for name, value in marker(home, key).items()]
    table = all_processes()
    pids |= started_with(table.values(), entries)
    # A supervisor that had the rank before and after the look at all processes had no other rank meanwhile.
    supervisors = set(found) & set(_supervisors_and_helpers(ranks))
    return descendants(
        (process.pid for process in supervisors),
        table,
        also=pids.__contains__,
    )


@asynccontextmanager
async def certain_end(registered: Callable[[], list[SlotContent]], grace_s: float) -> AsyncIterator[threading.Event]:
    """Inside the block the ranks of an attempt are ended ``grace_s`` from now, whatever else the block waits for: a
    disk that hangs, or a launch. ``registered``: the ranks, as the page has them. Yields what is set once the attempt
    is closed; from then on the block asks the ranks to end.

    It only kills. That no rank of the attempt starts again, and that none is left, the block has to see to.
    """
    closed = threading.Event()
    ending: list[asyncio.Task[None]] = []
    begin = asyncio.get_running_loop().call_later(
        CLOSE_PATIENCE_S, lambda: ending.append(asyncio.create_task(_end_registered(registered, grace_s, closed)))
    )
    try:
        yield closed
    finally:
        begin.cancel()
        for task in ending:
            task.cancel()


async def _end_registered(registered: Callable[[], list[SlotContent]], grace_s: float, closed: threading.Event) -> None:
    if grace_s > 0 and not closed.is_set():
        await in_own_thread(lambda: ask_ranks(registered()), name="stop")
    await asyncio.sleep(grace_s)
    hierarchies = find_hierarchies()
    while True:
        await in_own_thread(lambda: end_ranks(registered(), hierarchies), name="stop")
        await asyncio.sleep(_MAX_ROUND_S)


async def end_attempt(home: Path, key: AttemptKey, ranks: Sequence[RankProcess], grace_s: float) -> int:
    """End all processes: SIGTERM, ``grace_s`` seconds, then SIGKILL until none is left. The attempt must be closed.

    Returns how many processes had to be ended. It waits as long as a process does not die (it hangs in the kernel),
    because nobody else may get the GPU before.
    """
    await in_own_thread(lambda: _wait_for_jail(home, key), name="stop")
    for rank in ranks:
        await rank.wait_started()
    if any(rank.may_execute_unseen for rank in ranks):
        await asyncio.sleep(_EXECUTE_S)
    killed = await _end_ranks(home, key, ranks, grace_s)
    jail = Jail.of(str(attempt_dir(home, key)))
    while jail is not None and not await in_own_thread(jail.remove, name="stop"):
        log.error("attempt.jail_not_removed", job=key.job_id, attempt=key.attempt, cgroup=jail.cgroup.name)
    return killed


def has_left_nothing(home: Path, key: AttemptKey, ranks: Sequence[RankProcess]) -> bool:
    """True if every rank of a closed attempt has ended by itself, no process of it is left, and no jail was begun."""
    directory = attempt_dir(home, key)
    if any(os.path.exists(f"{directory}/{name}") for name in (records.JAIL, records.JAIL_LOCK)):
        return False
    return _have_ended(ranks)


def _have_ended(ranks: Sequence[RankProcess]) -> bool:
    return all(rank.left_no_process and not rank.is_locked for rank in ranks)


async def _end_ranks(home: Path, key: AttemptKey, ranks: Sequence[RankProcess], grace_s: float) -> int:
    if _have_ended(ranks):
        return 0
    seen: set[FoundProcess] = set()
    if grace_s > 0:
        living = await _signal_all(home, key, ranks, signal.SIGTERM, seen)
        await wait_all_ended([*living, *_supervisors_and_helpers(ranks)], grace_s)
    pause_s = 0.05
    while living := await _signal_all(home, key, ranks, signal.SIGKILL, seen):
        if not await wait_all_ended(list(living), pause_s):
            pause_s = min(2 * pause_s, _MAX_ROUND_S)
            if pause_s == _MAX_ROUND_S:
                log.warning("attempt.processes_do_not_die", job=key.job_id, attempt=key.attempt, pids=_pids(living))
    # One that saw the attempt closed ends; any other may wait for another rank now, and is none of this attempt's.
    await wait_all_ended(_supervisors_and_helpers(ranks), _SUPERVISOR_PATIENCE_S)
    if supervisors := _supervisors_and_helpers(ranks):
        log.error("attempt.supervisors_killed", job=key.job_id, attempt=key.attempt, pids=_pids(supervisors))
        for process in supervisors:
            send_signal(process, signal.SIGKILL)
        await wait_all_ended(supervisors)
    return len(seen)


async def _signal_all(
    home: Path, key: AttemptKey, ranks: Sequence[RankProcess], number: int, seen: set[FoundProcess]
) -> set[FoundProcess]:
    living = await in_own_thread(lambda: attempt_processes(home, key, ranks), name="stop")
    living |= {process for process in seen if is_alive(process)}  # one that hangs no longer says whose it is
    seen |= living
    if number == signal.SIGKILL and (jail := Jail.of(str(attempt_dir(home, key)))) is not None:
        await in_own_thread(jail.kill, name="stop")
    # Parents first: a shell would run its next command after its child was killed.
    for process in sorted(living, key=lambda process: process.pid):
        send_signal(process, number)
    return living


def _wait_for_jail(home: Path, key: AttemptKey) -> None:
    """Wait until nobody makes a jail for the attempt. It is closed, so none is begun after this."""
    if not wait_for_maker(str(attempt_dir(home, key)), _JAIL_PATIENCE_S):
        log.error("attempt.jail_maker_hangs", job=key.job_id, attempt=key.attempt)


def _supervisors_and_helpers(ranks: Sequence[RankProcess]) -> list[FoundProcess]:
    """Living supervisors, and helpers of ``jobs exec``."""
    found = [process for rank in ranks for process in (rank.supervisor, *rank.exec_helpers)]
    return [process for process in found if process is not None and is_alive(process)]


def _pids(processes: Sequence[FoundProcess] | set[FoundProcess]) -> list[int]:
    return sorted(process.pid for process in processes)
