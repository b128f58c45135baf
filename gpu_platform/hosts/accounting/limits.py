"""Wall-clock limits as the host enforces them, so that they hold while the control plane is away.

The workflow ends an attempt at its limit. The host sends the warning before it, and ends what still runs
``time_limit_slack_s`` after it. Both count from the start of the first rank on the boot clock (seconds since
boot), which no change of the date moves.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from gpu_platform.domain.jobs.attempt import RankLimits
from gpu_platform.hosts.processes.ranks import RankProcess
from gpu_platform.hosts.system import records
from gpu_platform.hosts.system.process_tree import Process, send_signal

_WARNED = "warned"
_OVERDUE = "overdue.json"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def ran_s(ranks: list[RankProcess]) -> float:
    """The number of seconds that the oldest living rank has run. 0.0 if no rank lives."""
    started = [process.started for rank in ranks if (process := rank.main_process) is not None]
    return records.boot_clock_s() - min(started) / _TICKS_PER_S if started else 0.0


def warning_due(limits: RankLimits, attempt_dir: Path, seconds: float) -> bool:
    """True if the warning before the time limit must be sent now and was not sent yet."""
    if limits.time_limit_s is None or not limits.warn_before_s:
        return False
    return seconds >= limits.time_limit_s - limits.warn_before_s and not (attempt_dir / _WARNED).exists()


def warn(limits: RankLimits, attempt_dir: Path, processes: set[Process]) -> int:
    """Send the warning signal, once, to every process that has a handler for it. Returns to how many.

    The signal would end a process without a handler: a shell that started the program, or a data loader.
    """
    number = signal.Signals[f"SIG{limits.warn_signal}"]
    warned = sum(send_signal(process, number) for process in processes if handles(process.pid, number))
    (attempt_dir / _WARNED).touch()
    return warned


def is_overdue(limits: RankLimits, seconds: float, slack_s: float) -> bool:
    """True if the attempt has run longer than its time limit plus ``slack_s``."""
    return limits.time_limit_s is not None and seconds >= limits.time_limit_s + slack_s


def note_overdue(limits: RankLimits, attempt_dir: Path) -> str:
    """Record that the time limit is the reason. Call it before the attempt is ended. Returns the message."""
    message = f"ran longer than its limit of {limits.time_limit_s} s; ask for more with --time"
    records.write_record(str(attempt_dir / _OVERDUE), {"message": message}, durable=True)
    return message


def overdue_message(attempt_dir: Path) -> str | None:
    """Why the host ended the attempt, if the reason was its time limit."""
    record = records.read_record(str(attempt_dir / _OVERDUE))
    return None if record is None else record["message"]


def handles(pid: int, number: int) -> bool:
    """True if the process has a handler for the signal (proc(5), ``/proc/<pid>/status``, SigCgt)."""
    try:
        with open(f"/proc/{pid}/status", errors="replace") as file:  # its name is the job's choice
            [mask] = [int(line.split()[1], 16) for line in file if line.startswith("SigCgt:")]
    except (OSError, ValueError):
        return False
    return bool(mask >> (number - 1) & 1)
