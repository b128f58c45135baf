"""Wall-clock limits as the host enforces them, so that they hold while the control plane is away.

The workflow ends an attempt at its limit. The host sends the warning before it, and ends what still runs
``time_limit_slack_s`` after it. A time limit counts from the start of the first rank on the boot clock (seconds since
boot), which no change of the date moves. A deadline is a date.
"""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from gpu_platform.domain.jobs.attempt import RankLimits
from gpu_platform.domain.jobs.blame import FailureCause
from gpu_platform.domain.jobs.deadline import not_ended_message
from gpu_platform.domain.texts import moment
from gpu_platform.node.processes.ranks import RankProcess
from gpu_platform.node.system import records
from gpu_platform.node.system.process_tree import FoundProcess, send_signal

_WARNED = "warned"
_OVERDUE = "overdue.json"
_CHANGED = "time-limit.json"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def ran_s(ranks: list[RankProcess]) -> float:
    """The number of seconds that the oldest living rank has run. 0.0 if no rank lives."""
    started = [process.started for rank in ranks if (process := rank.main_process) is not None]
    return records.boot_clock_s() - min(started) / _TICKS_PER_S if started else 0.0


class RankEnd(NamedTuple):
    """When ranks must end."""

    left_s: float
    """Seconds until then; negative: it has passed."""
    limit_s: float
    """How long they may run in all."""
    cause: FailureCause
    """DEADLINE or TIME_LIMIT."""
    what: str
    """The limit in words."""
    message: str
    """Why the ranks are ended then."""


def end_of(limits: RankLimits, seconds: float, now: float | None = None) -> RankEnd | None:
    """When ranks that have run for ``seconds`` must end: at their time limit or at the deadline, whichever is first.

    None: they have no limit. ``now``: Unix seconds.
    """
    ends: list[RankEnd] = []
    if limits.time_limit_s is not None:
        what = f"the time limit of {limits.time_limit_s} s"
        message = f"ran longer than its limit of {limits.time_limit_s} s; ask for more with --time"
        left_s = limits.time_limit_s - seconds
        ends.append(RankEnd(left_s, limits.time_limit_s, FailureCause.TIME_LIMIT, what, message))
    if limits.deadline_at is not None:
        deadline = datetime.fromtimestamp(limits.deadline_at, UTC)
        left_s = limits.deadline_at - (time.time() if now is None else now)
        what = f"the time until the deadline {moment(deadline)}"
        ends.append(RankEnd(left_s, seconds + left_s, FailureCause.DEADLINE, what, not_ended_message(deadline)))
    return min(ends, default=None)


def change_limit(attempt_dir: Path, time_limit_s: int | None) -> None:
    """Record the time limit that the attempt has from now on, instead of that of its plan."""
    records.write_record(str(attempt_dir / _CHANGED), {"time_limit_s": time_limit_s}, durable=True)


def in_force(limits: RankLimits, attempt_dir: Path) -> RankLimits:
    """The limits of the plan, with the time limit that the attempt got since."""
    record = records.read_record(str(attempt_dir / _CHANGED))
    return limits if record is None else limits.model_copy(update={"time_limit_s": record["time_limit_s"]})


def warning_due(limits: RankLimits, attempt_dir: Path, end: RankEnd) -> bool:
    """True if the warning before the end must be sent now and was not sent yet."""
    return 0 < limits.warn_before_s >= end.left_s and not (attempt_dir / _WARNED).exists()


def warn(limits: RankLimits, attempt_dir: Path, processes: set[FoundProcess]) -> int:
    """Send the warning signal, once, to every process that has a handler for it. Returns to how many.

    The signal would end a process without a handler: a shell that started the program, or a data loader.
    """
    number = signal.Signals[f"SIG{limits.warn_signal}"]
    warned = sum(send_signal(process, number) for process in processes if handles(process.pid, number))
    (attempt_dir / _WARNED).touch()
    return warned


def note_overdue(end: RankEnd, attempt_dir: Path) -> None:
    """Record that this limit is the reason. Call it before the attempt is ended."""
    record = {"message": end.message, "cause": end.cause.value}
    records.write_record(str(attempt_dir / _OVERDUE), record, durable=True)


def overdue(attempt_dir: Path) -> tuple[FailureCause, str] | None:
    """Why the host ended the attempt, if the reason was its time limit or its deadline."""
    record = records.read_record(str(attempt_dir / _OVERDUE))
    return None if record is None else (FailureCause(record["cause"]), record["message"])


def handles(pid: int, number: int) -> bool:
    """True if the process has a handler for the signal (proc(5), ``/proc/<pid>/status``, SigCgt)."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:  # its name is the job's choice
            [mask] = [int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")]
    except (OSError, ValueError):
        return False
    return bool(mask >> (number - 1) & 1)
