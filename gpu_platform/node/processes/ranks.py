"""One rank on this host as its records show it: never started, alive, ended, or vanished."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_platform.domain.errors import HostUnavailable
from gpu_platform.domain.jobs.attempt import RankExit, RankStarted
from gpu_platform.domain.jobs.job import Failure
from gpu_platform.node.system import records
from gpu_platform.node.system.lock_watch import wait_released
from gpu_platform.node.system.process_tree import FoundProcess, boot_id, is_alive, open_process

VANISHED_CODE = 128 + 9
_LAUNCH_PATIENCE_S = 5.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class RankProcess:
    """The rank whose records are in ``directory``. Nothing is kept in memory: each call asks the disk and the
    kernel."""

    directory: Path
    rank: int
    host: str

    @property
    def started(self) -> RankStarted | None:
        """The start record. None: the rank did not execute its program yet.

        If its supervisor was killed just then, nobody knows whether it did. The pid is that of the supervisor then.
        """
        record = self._read(records.STARTED)
        if record is not None and not _knows_pid(record):
            record = None if self.is_locked else self._read(records.STARTED)
        if record is None:
            return None
        return RankStarted(rank=self.rank, host=self.host, pid=record["pid"], started_at_ms=record["started_at_ms"])

    @property
    def ended(self) -> RankExit | None:
        """The exit record, if its supervisor could write one."""
        record = self._read(records.EXIT)
        if record is None:
            return None
        failure = record["failure"]
        return RankExit(
            rank=self.rank,
            host=self.host,
            exit_code=record["exit_code"],
            ended_at_ms=record["ended_at_ms"],
            failure=Failure.model_validate({**failure, "rank": self.rank}) if failure else None,
        )

    @property
    def ran_s(self) -> float | None:
        """Seconds from its start to its end, or until now, on the clock since boot, which nobody can set. None: it did
        not start, or the host has booted since."""
        started, ended = self._read(records.STARTED), self._read(records.EXIT)
        if started is None or not _knows_pid(started):
            return None
        if ended is None:
            until_s = records.boot_clock_s() if started["boot_id"] == boot_id() else None
        else:
            until_s = ended["ended_boot_s"]
        return None if until_s is None else max(0.0, until_s - started["started"] / _TICKS_PER_S)

    @property
    def used(self) -> dict[str, float] | None:
        """CPU seconds and peak memory (``cpu_s``, ``peak_memory_mib``) once it has ended; see ``supervisor``."""
        record = self._read(records.EXIT)
        return None if record is None else record["usage"]

    @property
    def is_locked(self) -> bool:
        """True while a supervisor has this rank: until it has ended, and what it left was killed."""
        return records.is_locked(str(self.directory))

    @property
    def left_no_process(self) -> bool:
        """True if it has ended, its supervisor saw that no descendant was left, and no exec session of it runs."""
        record = self._read(records.EXIT)
        return record is not None and record["alone"] and not self._exec_locks()

    @property
    def supervisor(self) -> FoundProcess | None:
        """The process of the supervisor that has this rank. It may take another rank after this one."""
        record = self._read(records.LOCK) if self.is_locked else None
        return _process(record)

    @property
    def exec_helpers(self) -> list[FoundProcess]:
        """Living helpers that run other programs beside the rank."""
        locks = [name for name in self._exec_locks() if records.is_locked(str(self.directory), name)]
        return [process for name in locks if (process := _process(self._read(name))) is not None]

    @property
    def main_process(self) -> FoundProcess | None:
        """The rank's own process while it lives, supervised or not."""
        record = self._read(records.STARTED)
        process = _process(record) if record is not None and _knows_pid(record) else None
        return process if process is not None and is_alive(process) else None

    @property
    def may_execute_unseen(self) -> bool:
        """True if its supervisor was killed while it started the rank: then nothing but its environment names it."""
        record = self._read(records.STARTED)
        return record is not None and not _knows_pid(record) and not self.is_locked and self.ended is None

    @property
    def reaped_cpu_s(self) -> float:
        """CPU seconds that its supervisor had inherited from earlier ranks before it took this one."""
        record = self._read(records.LOCK)
        return 0.0 if record is None else record.get("reaped_cpu_s", 0.0)

    async def wait_started(self) -> None:
        """Wait until its supervisor writes ``started.json`` or ends. Either takes milliseconds."""
        deadline = time.monotonic() + _LAUNCH_PATIENCE_S
        while self.is_launching:
            if time.monotonic() > deadline:
                raise HostUnavailable(f"the supervisor in {self.directory} neither starts its rank nor ends")
            await asyncio.sleep(0.002)

    @property
    def is_launching(self) -> bool:
        """True while a supervisor has the rank and its start is not recorded yet."""
        return self.started is None and self.is_locked

    async def wait_ended(self) -> RankExit:
        """Wait, without polling, until its supervisor is done with it or gone. Returns how the rank ended."""
        await wait_released(str(self.directory))
        return self.exit_now()

    def exit_now(self) -> RankExit:
        """How the rank ended, given that no supervisor has it."""
        return self.ended or RankExit(
            rank=self.rank,
            host=self.host,
            exit_code=VANISHED_CODE,
            ended_at_ms=time.time_ns() // 1_000_000,
            vanished=True,
        )

    def _exec_locks(self) -> list[str]:
        try:
            return [name for name in os.listdir(self.directory) if name.startswith(records.EXEC_PREFIX)]
        except FileNotFoundError:
            return []

    def _read(self, name: str) -> dict[str, Any] | None:
        return records.read_record(f"{self.directory}/{name}")


def _knows_pid(started: dict[str, Any]) -> bool:
    return started.get("pid_known", True)


def _process(record: dict[str, Any] | None) -> FoundProcess | None:
    """The recorded process. None also if the record is from before a reboot: its pids mean nothing now."""
    if record is None or record["boot_id"] != boot_id():
        return None
    return FoundProcess(record["pid"], record["started"])


def wait_record(rank: RankProcess) -> RankStarted:
    """The start record, for which it may have to wait: another node worker may be about to write it."""
    deadline = time.monotonic() + _LAUNCH_PATIENCE_S
    while (started := rank.started) is None:
        if time.monotonic() > deadline:
            raise HostUnavailable(f"rank {rank.rank} on {rank.host} is being started by someone else, without end")
        time.sleep(0.002)
    return started


async def wait_all_ended(processes: list[FoundProcess], timeout_s: float | None = None) -> bool:
    """Wait by pidfd until all ``processes`` have ended. False: the time was up first."""
    loop = asyncio.get_running_loop()
    fds = [fd for fd in map(open_process, processes) if fd is not None]
    futures: list[asyncio.Future[None]] = []
    try:
        for fd in fds:
            future: asyncio.Future[None] = loop.create_future()
            loop.add_reader(fd, _ended, loop, fd, future)
            futures.append(future)
        if futures:
            _, late = await asyncio.wait(futures, timeout=timeout_s)
            return not late
        return True
    finally:
        for fd in fds:
            loop.remove_reader(fd)
            os.close(fd)


def _ended(loop: asyncio.AbstractEventLoop, fd: int, future: asyncio.Future[None]) -> None:
    loop.remove_reader(fd)
    if not future.done():
        future.set_result(None)
