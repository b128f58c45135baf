"""Watches the attempts that run on this host: what they use, whether they make progress, and their time limits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import structlog

from gpu_platform.domain.contracts import AttemptKey
from gpu_platform.domain.hosts.faults import FaultAction
from gpu_platform.domain.jobs.attempt import FaultReport, Stopped, StopRequest
from gpu_platform.lanes import Lane, Stuck
from gpu_platform.node.accounting import limits
from gpu_platform.node.accounting.accounting import Accountant, LiveAttempt
from gpu_platform.node.accounting.counters import ProcessTable
from gpu_platform.node.accounting.gpu_processes import SharedGpuMeter
from gpu_platform.node.accounting.watchdog import Stall, Watchdog
from gpu_platform.node.checkpoints.clock import CheckpointClock
from gpu_platform.node.health.fault_policy import FaultPolicy
from gpu_platform.node.nvml.library import NvmlLibrary
from gpu_platform.node.processes.stopping import attempt_processes
from gpu_platform.node.system import records
from gpu_platform.node.system.process_tree import is_alive
from gpu_platform.settings import NodeSettings

log = structlog.get_logger(__name__)

_CLOCK_S = 0.5
"""Seconds between two checks of the time limits."""
_DISK_S = 3.0
"""They wait so long for the disk with the records."""


class AttemptStopper(Protocol):
    """The part of the node worker that :class:`AttemptWatch` needs."""

    async def stop(self, request: StopRequest) -> Stopped:
        """See :meth:`NodeWorker.stop`."""
        ...


class AttemptWatch:
    """Watches all attempts. ``report`` is called from a thread; ``gpu_indices``: GPU uuid -> index on this host."""

    def __init__(
        self,
        node: NodeSettings,
        nvml: NvmlLibrary,
        home: Path,
        accountant: Accountant,
        policy: FaultPolicy,
        report: Callable[[FaultReport], None],
        gpu_indices: Mapping[str, int],
        checkpoints: CheckpointClock | None = None,
    ) -> None:
        self._checkpoints = checkpoints
        self._node = node
        self._shared = SharedGpuMeter(nvml)
        self._home = home
        self._accountant = accountant
        self._policy = policy
        self._report = report
        self._gpu_indices = gpu_indices
        self._watchdogs: dict[AttemptKey, Watchdog] = {}
        self._ending: dict[AttemptKey, asyncio.Task[Stopped]] = {}
        self._began_s: dict[AttemptKey, tuple[limits.RankLimits, float]] = {}
        """Limits of the attempts that have any, and when their ranks began, by the clock since boot."""
        self._clocks = Lane("time limits", patience_s=_DISK_S)
        self._samples = Lane("accounting", patience_s=_DISK_S)

    async def run(self, worker: AttemptStopper) -> None:
        """Sample the attempts and enforce their time limits, until cancelled."""
        await asyncio.gather(self._end_overdue(worker), self._sample_for_ever())

    async def _end_overdue(self, worker: AttemptStopper) -> None:
        while True:
            try:
                overdue = await self._clocks.run(self.check_clocks)
            except Stuck as error:
                log.error("attempt.limits_from_memory", error=str(error))
                overdue = self.overdue_by_memory()
            for key, end in overdue.items():
                if key not in self._ending:
                    self._ending[key] = asyncio.create_task(self._end(worker, key, end))
            await asyncio.sleep(min(_CLOCK_S, self._node.accounting_interval_s))

    async def _sample_for_ever(self) -> None:
        while True:
            try:
                await self._samples.run(self.sample)
            except Stuck as error:
                log.warning("attempt.not_sampled_in_time", error=str(error))
            await asyncio.sleep(self._node.accounting_interval_s)

    def sample(self) -> None:
        """Read what every live attempt has used, write it to disk, and report attempts that make no progress."""
        table = ProcessTable()
        live = self._accountant.live()
        sampled: list[LiveAttempt] = []
        for attempt in live:
            with _not_lost_on_errors(attempt):
                attempt.sample(table, with_io=(attempt.plan.limits.hang_limit_s or self._node.hang_limit_s) is not None)
                sampled.append(attempt)
        self._shared.measure(sampled)
        for attempt in sampled:
            with _not_lost_on_errors(attempt):
                attempt.save()
                self._look(attempt)
        alive = [attempt.key for attempt in live]
        self._watchdogs = {key: dog for key, dog in self._watchdogs.items() if key in alive}

    def check_clocks(self) -> dict[AttemptKey, limits.RankEnd]:
        """Send the warnings that are due. Returns the attempts that have run too long."""
        overdue: dict[AttemptKey, limits.RankEnd] = {}
        live = self._accountant.live()
        if self._checkpoints is not None:
            by_key = {attempt.key: attempt for attempt in live}
            for key, message in self._checkpoints.look(live):
                if key in by_key:
                    self._send(by_key[key], "no_checkpoint", message, FaultAction.WATCH)
        for attempt in live:
            wanted = limits.in_force(attempt.plan.limits, attempt.directory)
            if wanted.is_endless or not (seconds := limits.ran_s(attempt.ranks)):
                self._began_s.pop(attempt.key, None)
                continue
            self._began_s[attempt.key] = wanted, records.boot_clock_s() - seconds
            end = limits.end_of(wanted, seconds)
            assert end is not None, "it has a limit"
            if limits.warning_due(wanted, attempt.directory, end):
                self._warn_of_the_end(attempt, end)
            if end.left_s <= -self._node.time_limit_slack_s:
                overdue[attempt.key] = end
        return overdue

    def overdue_by_memory(self) -> dict[AttemptKey, limits.RankEnd]:
        """As :meth:`check_clocks`, without the disk: by the limits that were seen last. No warning is sent."""
        overdue: dict[AttemptKey, limits.RankEnd] = {}
        alive = {attempt.key for attempt in self._accountant.live()}
        for key, (wanted, began_s) in [*self._began_s.items()]:
            end = limits.end_of(wanted, records.boot_clock_s() - began_s)
            if key in alive and end is not None and end.left_s <= -self._node.time_limit_slack_s:
                overdue[key] = end
        return overdue

    async def _end(self, worker: AttemptStopper, key: AttemptKey, end: limits.RankEnd) -> Stopped:
        [attempt] = [attempt for attempt in self._accountant.live() if attempt.key == key]
        try:
            await Lane("overdue", patience_s=_DISK_S).run(lambda: limits.note_overdue(end, attempt.directory))
        except (OSError, Stuck) as error:  # the end matters more than its reason
            log.error("attempt.end_not_noted", job=key.job_id, attempt=key.attempt, error=str(error))
        log.warning("attempt.overdue", job=key.job_id, attempt=key.attempt)
        grace_s = attempt.plan.limits.grace_s
        try:
            return await worker.stop(
                StopRequest(key=key, host=attempt.plan.host, grace_s=grace_s, reason=end.message, save_first=True)
            )
        finally:
            self._ending.pop(key, None)

    def _look(self, attempt: LiveAttempt) -> None:
        wanted = attempt.plan.limits
        hang_limit_s = wanted.hang_limit_s or self._node.hang_limit_s
        idle_limit_s = wanted.idle_limit_s or self._node.idle_limit_s
        if hang_limit_s is None and idle_limit_s is None:
            return
        meters = attempt.meters.values()
        now_s = time.monotonic()
        if any(meter.read_at_s is None or now_s - meter.read_at_s > self._silence_s for meter in meters):
            return  # a GPU that does not answer says nothing about the job
        dog = self._watchdogs.setdefault(attempt.key, Watchdog(hang_limit_s, idle_limit_s))
        busy, moved = max(meter.busy_at_s for meter in meters), max(meter.moved_at_s for meter in meters)
        if self._node.hang_without_utilization:
            moved = max(meter.seen_moving_at_s for meter in meters)
        for kind, seconds in dog.look(now_s, attempt.counters, busy, moved).items():
            self._report_stall(attempt, kind, seconds)

    @property
    def _silence_s(self) -> float:
        return max(2.0, 5 * self._node.health_interval_s)

    def _report_stall(self, attempt: LiveAttempt, kind: Stall, seconds: float) -> None:
        plan, wanted = attempt.plan, attempt.plan.limits
        where = f"attempt {plan.key.attempt} on {plan.host}"
        gpus = _several(len(plan.gpu_uuids), "GPU")
        if kind is Stall.HANGS:
            limit = wanted.hang_limit_s or self._node.hang_limit_s
            utilization_known = all(meter.reports_utilization for meter in attempt.meters.values())
            stood = "stood at 0 % with" if utilization_known else "(whose utilisation NVML does not report) had"
            message = (
                f"{where} hangs: for {seconds:.0f} s its {gpus} {stood} unchanged memory, and its "
                f"{_several(len(attempt.counters), 'rank')} used no CPU time, read and wrote nothing and printed "
                f"nothing (hang limit {limit} s)"
            )
            action = self._policy.rules["job_hangs"].do
        elif kind is Stall.IDLES:
            limit = wanted.idle_limit_s or self._node.idle_limit_s
            message = f"{where} left its {gpus} idle for {seconds:.0f} s (idle limit {limit} s)"
            action = FaultAction.FAIL_JOB
        else:
            limit = wanted.idle_limit_s or self._node.idle_limit_s
            message = (
                f"{where} has left its {gpus} idle for {seconds:.0f} s; "
                f"it is ended when they have been idle for {limit} s"
            )
            action = FaultAction.WATCH
        self._send(attempt, kind.value, message, action)

    def _warn_of_the_end(self, attempt: LiveAttempt, end: limits.RankEnd) -> None:
        wanted = attempt.plan.limits
        if wanted.warn_program_only:
            mains = {rank.main_process for rank in attempt.ranks}
            processes = {process for process in mains if process is not None and is_alive(process)}
        else:
            processes = attempt_processes(self._home, attempt.key, attempt.ranks)
        warned = limits.warn(wanted, attempt.directory, processes)
        message = (
            f"{end.what} ends in {max(0, round(end.left_s))} s; SIG{wanted.warn_signal} went to "
            f"{_several(warned, 'process', 'processes')} with a handler for it on {attempt.plan.host}"
        )
        self._send(attempt, "time_warning", message, FaultAction.WATCH)

    def _send(self, attempt: LiveAttempt, kind: str, message: str, action: FaultAction) -> None:
        """Write a message to the job's log, and report it to its workflow and to the event table."""
        key, plan = attempt.key, attempt.plan
        for rank in attempt.ranks:
            _append(key, rank.directory / records.LOG, f"gpu-platform: {message}\n")
        # One report for what only the job did. If the policy takes GPUs for it, one report for each of its GPUs.
        affected_gpus: Sequence[str] = plan.gpu_uuids if action.takes_gpu else plan.gpu_uuids[:1]
        now_ms = time.time_ns() // 1_000_000
        repeated = f"-{now_ms}" if kind == Stall.IDLE_WARNING else ""
        for uuid in affected_gpus:
            index = self._gpu_indices.get(uuid, -1)
            self._report(
                FaultReport(
                    fault_id=f"{key.job_id}-{key.attempt}-{plan.host}-{kind}-{index}{repeated}",
                    host=plan.host,
                    gpu_uuid=uuid,
                    gpu_index=index,
                    xid=None,
                    action=action,
                    message=message,
                    at_ms=now_ms,
                    attempt=key,
                )
            )


@contextmanager
def _not_lost_on_errors(attempt: LiveAttempt) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # finished and forgotten meanwhile, or the disk is full
        key = attempt.key
        log.warning("attempt.not_sampled", job=key.job_id, attempt=key.attempt, error=str(error))


def _append(key: AttemptKey, path: Path, text: str) -> None:
    try:
        with path.open("a") as file:
            file.write(text)
    except OSError as error:  # a full disk must not stop the watch
        log.warning("attempt.log_not_written", job=key.job_id, attempt=key.attempt, path=str(path), error=str(error))


def _several(count: int, one: str, more: str | None = None) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {more or one + 's'}"
